"""Idle time of a search whose trials differ in duration, against Hydra's Optuna sweeper.

16 trials on four slots; every fourth trial is ten times longer than the others. An Optuna search of trieye starts a
trial as soon as a slot is free; hydra-optuna-sweeper, in a separate environment, launches batches of four through
joblib. The idle share is the fraction of slot time without a trial, from the start of the fourth trial, when all
workers are up, to the start of the last trial. Prints one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peer.environments import installed

GOAL = 0.05
SLOTS = 4
LONG_S, SHORT_S = 30.0, 3.0
PEER = {"hydra_optuna_sweeper": ["hydra-optuna-sweeper==1.2.0"]}
PROGRAM = """
import time
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

@hydra.main(config_path=None, config_name="config", version_base="1.3")
def main(cfg):
    start = time.time()
    time.sleep(LONG_S if HydraConfig.get().job.num % 4 == 0 else SHORT_S)
    with open("FILE", "a") as file:
        file.write(f"{start} {time.time()}\\n")
    return -(float(cfg.x) - 0.25) ** 2

ConfigStore.instance().store("config", {"x": 0.0})
main()
"""
TRIEYE = [
    "hydra/launcher=trieye", "hydra.launcher.isolate=worker", f"hydra.launcher.num_jobs={SLOTS}",
    "hydra.launcher.num_cpus=0.1", "hydra.launcher.backend=local", "hydra/sweeper=trieye", "hydra.sweeper.kind=optuna",
]  # fmt: skip
OPTUNA = [
    "hydra/launcher=joblib", f"hydra.launcher.n_jobs={SLOTS}", "hydra/sweeper=optuna", f"hydra.sweeper.n_jobs={SLOTS}",
    "hydra.sweeper.direction=maximize",
]  # fmt: skip


def figures(python: str, num_trials: int, *words: str) -> dict[str, float]:
    """Run a search; return the idle share of its slots and its duration from the first start to the last end."""
    with tempfile.TemporaryDirectory(prefix="search-") as directory:
        times_path = Path(directory, "times")
        values = {"LONG_S": repr(LONG_S), "SHORT_S": repr(SHORT_S), "FILE": str(times_path)}
        program = PROGRAM
        for placeholder, value in values.items():
            program = program.replace(placeholder, value)
        Path(directory, "program.py").write_text(program)
        command = [python, "program.py", "-m", *words, "x=interval(0,1)"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-800:])
        times = sorted(tuple(map(float, line.split())) for line in times_path.read_text().splitlines())
    assert len(times) == num_trials
    first, last = times[SLOTS - 1][0], times[-1][0]
    busy_s = sum(max(min(end, last) - max(start, first), 0.0) for start, end in times)
    duration_s = max(end for _, end in times) - times[0][0]
    return {"idle_share": round(1 - busy_s / (SLOTS * (last - first)), 3), "took_s": round(duration_s, 1)}


def main() -> None:
    """Measure both sides and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=16)
    options = parser.parse_args()
    start = time.perf_counter()
    python = str(installed("search", PEER))
    install_s = round(time.perf_counter() - start, 1)
    trieye = figures(sys.executable, options.trials, *TRIEYE, f"hydra.sweeper.num_trials={options.trials}")
    try:
        peer: dict[str, float] | str = figures(
            python, options.trials, *OPTUNA, f"hydra.sweeper.n_trials={options.trials}"
        )
    except RuntimeError as error:
        peer = f"skipped: {str(error).strip().splitlines()[-1]}"
    print(
        json.dumps(
            {
                "benchmark": "search", "trials": options.trials, "slots": SLOTS, "trieye": trieye, "peer": peer,
                "peer_install_s": install_s, "load": os.getloadavg()[0] / (os.cpu_count() or 1), "goal": GOAL,
                "met": trieye["idle_share"] <= GOAL,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
