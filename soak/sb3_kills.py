"""Kill trainings of stable-baselines3 with -9 five times each, start them again, and compare with unkilled ones.

Timesteps add up, the replay is what it was at the checkpoint, each value of a curve is there once, and the return of
the policy in the end is within the interval that the unkilled seeds predict. The mean of `rollout/ep_rew_mean` in the
last third is told, too, but not compared: each kill takes the episodes that were under way, the long ones more often,
and so it lags behind where episodes are long.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "scripts/sb3_training.py"
DEADLINE_S = 900.0
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Two trainings run at once, and threads of both that wait for one another spin: many times as long on two cores."""
T_975 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Quantile of Student's t for so many seeds."""


def train(algorithm: str, timesteps: int, job: tuple[int, int]) -> tuple[Path, list[str]]:
    """Run a training of a seed to its end, killed so many times before; return its directory and what went wrong."""
    seed, kills = job
    root = Path(tempfile.mkdtemp())
    words = [sys.executable, str(PROGRAM), algorithm, "--seed", str(seed), "--timesteps", str(timesteps)]
    with (root / "log").open("ab") as log:
        for number in range(1, kills + 1):
            process = subprocess.Popen(words, cwd=root, env=ONE_THREAD, stdout=log, stderr=log)
            deadline = time.monotonic() + DEADLINE_S
            goal = timesteps * number // (kills + 1)
            while saved(root) < goal and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
            process.wait()
        last = subprocess.run(words, cwd=root, env=ONE_THREAD, stdout=log, stderr=log, timeout=DEADLINE_S, check=False)
    said = (root / "log").read_text(errors="replace")
    return root, [f"{algorithm} {seed} ended with {last.returncode}: {said[-1500:]}"] if last.returncode else []


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


def compared(roots: list[Path], num_killed: int) -> tuple[dict[str, Any], list[str]]:
    """Compare the returns of the trainings that were killed, the first ones, with those of the others."""
    timesteps, returns = zip(*(json.loads((root / "final").read_text()) for root in roots), strict=True)
    problems = [] if len(set(timesteps)) == 1 else [f"timesteps are {timesteps}"]
    late = [late_return(root, timesteps[0] * 2 / 3) for root in roots]
    killed, whole = returns[:num_killed], returns[num_killed:]
    half = T_975[len(whole)] * statistics.stdev(whole) * (1 + 1 / len(whole)) ** 0.5
    interval = [round(statistics.fmean(whole) + side * half, 1) for side in (-1, 1)]
    problems += [
        f"its return is {value}, of unkilled ones {whole}"
        for value in killed
        if not interval[0] <= value <= interval[1]
    ]
    resumed = [[step for what, step, *_ in digests(root) if what == "goes on"] for root in roots[:num_killed]]
    more = {"in_training": late[:num_killed], "unkilled_in_training": late[num_killed:]}
    told = {
        "timesteps": timesteps[0],
        "went_on_at": resumed,
        "returns": killed,
        "unkilled": whole,
        "interval": interval,
    }
    return told | more, problems


def late_return(root: Path, first: float) -> float:
    """Return the mean return of the episodes that the logger told after a timestep."""
    from trieye.history.history import read_history

    table = read_history(next(root.glob(".trieye_data/*/runs/*")))
    rows = zip(*(table[name].to_pylist() for name in ("metric", "step", "value")), strict=True)
    late = [value for name, step, value in rows if name == "rollout/ep_rew_mean" and step > first]
    return round(statistics.fmean(late), 1)


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="of each training")
    parser.add_argument("--killed", type=int, default=3, help="seeds that are killed")
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(T_975), help="that are not killed")
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--only", choices=["dqn", "ppo"], help="one of the algorithms")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    problems: list[str] = []
    for algorithm in [options.only] if options.only else ["dqn", "ppo"]:
        seeds = [*range(options.killed), *range(options.seeds)]
        kills = [options.kills] * options.killed + [0] * options.seeds
        with ThreadPoolExecutor(2) as threads:
            jobs = zip(seeds, kills, strict=True)
            run = partial(train, algorithm, options.timesteps)
            done = list(threads.map(run, jobs))
        roots, own = [root for root, _ in done], [problem for _, said in done for problem in said]
        if not own:
            own = [problem for root in roots[: options.killed] for problem in check(root, options.kills)]
            found[algorithm], more = compared(roots, options.killed)
            own += more
        problems += [f"{algorithm}: {problem}" for problem in own]
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"benchmark": "sb3_kills", **found, "problems": problems[:10], "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
