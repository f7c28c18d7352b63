"""How busy the slots of a search are whose jobs last differently long, beside batches that wait for the slowest.

16 jobs, of which every fourth lasts ten times as long as the others, on two slots: an Optuna search of ours, which has
a new job for a slot the moment that it is free, and the same number of jobs in batches of two, as Hydra's sweepers
launch them. Utilisation: the time that jobs ran, of the time that the slots were there. Prints one JSON line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 0.85
SLOTS = 2
LONG_S, SHORT_S = 4.0, 0.4
PROGRAM = """
import time
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path=None, config_name=None, version_base="1.3")
def main(cfg):
    began = time.time()
    time.sleep(LONG_S if HydraConfig.get().job.num % 4 == 0 else SHORT_S)
    with open("times", "a") as file:
        file.write(f"{began} {time.time()}\\n")
    return -(float(cfg.x) - 0.25) ** 2

main()
"""


def utilisation(jobs: int, *words: str) -> float:
    """Run a sweep, and return the share of the slots' time in which jobs ran."""
    with tempfile.TemporaryDirectory(prefix="search-") as directory:
        program = PROGRAM.replace("LONG_S", repr(LONG_S)).replace("SHORT_S", repr(SHORT_S))
        (Path(directory) / "program.py").write_text(program)
        common = [
            "-m",
            "hydra/launcher=trieye",
            "hydra.launcher.isolate=worker",
            f"hydra.launcher.num_jobs={SLOTS}",
        ]
        command = [sys.executable, "program.py", *common, *words]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
        lines = (Path(directory) / "times").read_text().splitlines()
    times = sorted(tuple(map(float, line.split())) for line in lines)
    assert len(times) == jobs
    # the first two start Ray's workers, which is none of either side's business
    begun = times[0][0]
    return sum(end - start for start, end in times) / (SLOTS * (max(end for _, end in times) - begun))


def main() -> None:
    """Measure both sides."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=16)
    options = parser.parse_args()
    began = time.perf_counter()
    search = ["hydra/sweeper=trieye", "hydra.sweeper.kind=optuna", f"hydra.sweeper.num_trials={options.jobs}"]
    ours = utilisation(options.jobs, *search, "+x=interval(0,1)")
    values = ",".join(str(number / options.jobs) for number in range(options.jobs))
    batches = utilisation(options.jobs, "hydra/sweeper=basic", f"hydra.sweeper.max_batch_size={SLOTS}", f"+x={values}")
    told = {
        "benchmark": "search", "jobs": options.jobs, "slots": SLOTS, "utilisation": round(ours, 3),
        "in_batches": round(batches, 3), "goal": GOAL, "met": ours >= GOAL,
        "took_s": round(time.perf_counter() - began, 1),
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
