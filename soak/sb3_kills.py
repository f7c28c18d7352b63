"""Kill trainings of stable-baselines3 with -9 five times each, start them again, and compare with unkilled ones.

Timesteps add up, the replay is what it was at the checkpoint, each value of a curve is there once, and the return in
the end is within the interval that the unkilled seeds predict.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "scripts/sb3_training.py"
DEADLINE_S = 900.0
T_975 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Quantile of Student's t for so many seeds."""


def train(algorithm: str, seed: int, timesteps: int, kills: int = 0) -> tuple[Path, list[str]]:
    """Run a training to its end, killed so many times before; return its directory and what went wrong."""
    root = Path(tempfile.mkdtemp())
    words = [sys.executable, str(PROGRAM), algorithm, "--seed", str(seed), "--timesteps", str(timesteps)]
    with (root / "log").open("ab") as log:
        for number in range(1, kills + 1):
            process = subprocess.Popen(words, cwd=root, stdout=log, stderr=log)
            deadline = time.monotonic() + DEADLINE_S
            goal = timesteps * number // (kills + 1)
            while saved(root) < goal and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
            process.wait()
        code = subprocess.run(words, cwd=root, stdout=log, stderr=log, timeout=DEADLINE_S, check=False).returncode
    said = (root / "log").read_text(errors="replace")
    return root, [f"{algorithm} {seed} ended with {code}: {said[-1500:]}"] if code else []


def saved(root: Path) -> int:
    """Return the timestep of the newest checkpoint."""
    return max((told[1] for told in digests(root) if told[0] == "saved"), default=0)


def digests(root: Path) -> list[list[Any]]:
    """Return what the program wrote down."""
    path = root / "digests"
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


def check(root: Path, kills: int) -> list[str]:
    """Return what is wrong with a training that was killed."""
    from trieye.files.run_record import RunRecord
    from trieye.history.history import read_history

    (run_dir,) = root.glob(".trieye_data/*/runs/*")
    record, problems = RunRecord.read(run_dir / "run.json"), []
    if record is None or (record.attempt, record.status) != (kills + 1, "FINISHED"):
        problems.append(f"the run is {record}")
    told = digests(root)
    at_save: dict[int, list[Any]] = {}
    for what, step, *rest in told:
        if what == "saved":
            at_save[step] = rest
        elif step in at_save and at_save[step] != rest:  # of the newest save, whose note may not have been written
            problems.append(f"the replay at {step} was {at_save[step]} and is {rest}")
    resumed = [step for what, step, *_ in told if what == "goes on"]
    if len(resumed) != kills or not all(step in at_save for step in resumed[:1]):
        problems.append(f"it went on at {resumed}, of {kills} kills")
    table = read_history(run_dir)
    points = Counter(zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True))
    again = [key for key, count in points.items() if count > 1]
    steps = sorted({step for name, step in points if name == "time/total_timesteps"})
    values = zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True)
    if again or any(step != value for name, step, value in values if name == "time/total_timesteps"):
        problems.append(f"values that are there twice, or not where they belong: {again[:3]}")
    if not steps:
        problems.append("nothing was logged")
    return problems


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="of each training")
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(T_975), help="that are not killed")
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--only", choices=["dqn", "ppo"], help="one of the algorithms")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    problems: list[str] = []
    for algorithm in [options.only] if options.only else ["dqn", "ppo"]:
        jobs = [(algorithm, seed, options.timesteps, 0) for seed in range(options.seeds)]
        with ThreadPoolExecutor(2) as threads:
            killed, *whole = threads.map(
                lambda job: train(*job), [(algorithm, 0, options.timesteps, options.kills), *jobs]
            )
        own = [problem for _, said in (killed, *whole) for problem in said]
        if not own:
            own = check(killed[0], options.kills)
            finals = [json.loads((root / "final").read_text()) for root, _ in (killed, *whole)]
            if len({steps for steps, _ in finals}) > 1:
                own.append(f"timesteps are {[steps for steps, _ in finals]}")
            returns = [value for _, value in finals[1:]]
            half = T_975[options.seeds] * statistics.stdev(returns) * (1 + 1 / options.seeds) ** 0.5
            interval = [statistics.fmean(returns) - half, statistics.fmean(returns) + half]
            if not interval[0] <= finals[0][1] <= interval[1]:
                own.append(f"the return in the end is {finals[0][1]}, of unkilled ones {returns}")
            resumed = [step for what, step, *_ in digests(killed[0]) if what == "goes on"]
            found[algorithm] = {
                "timesteps": finals[0][0],
                "went_on_at": resumed,
                "return": finals[0][1],
                "unkilled": returns,
                "interval": [round(value, 1) for value in interval],
            }
        problems += [f"{algorithm}: {problem}" for problem in own]
        for root, _ in (killed, *whole):
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"benchmark": "sb3_kills", **found, "problems": problems[:10], "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
