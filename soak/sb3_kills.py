"""Kill trainings of stable-baselines3 with SIGKILL five times each, and compare them with uninterrupted trainings.

The sum of timesteps must be correct, the restored replay must equal the replay at the checkpoint, each point of a curve
must exist once, and the final return must be within the prediction interval of the uninterrupted seeds. The mean of
`rollout/ep_rew_mean` in the last third is reported, but not compared: each kill discards unfinished episodes, mostly
long ones, so the mean lags behind in environments with long episodes.
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
"""Two trainings run concurrently; on two cores, waiting threads of torch spin and slow both down many times."""
T_975 = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
"""Quantile of Student's t distribution, by the number of seeds."""


def train(algorithm: str, timesteps: int, job: tuple[int, int]) -> tuple[Path, list[str]]:
    """Kill a training of a seed `kills` times, complete it, and return its directory and the problems."""
    seed, kills = job
    root = Path(tempfile.mkdtemp())
    words = [sys.executable, str(PROGRAM), algorithm, "--seed", str(seed), "--timesteps", str(timesteps)]
    with (root / "log").open("ab") as log:
        for number in range(1, kills + 1):
            process = subprocess.Popen(words, cwd=root, env=ONE_THREAD, stdout=log, stderr=log)
            deadline = time.monotonic() + DEADLINE_S
            target = timesteps * number // (kills + 1)
            while saved_step(root) < target and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(random.uniform(0.0, 1.0))
            process.kill()
            process.wait()
        last = subprocess.run(words, cwd=root, env=ONE_THREAD, stdout=log, stderr=log, timeout=DEADLINE_S, check=False)
    log_text = (root / "log").read_text(errors="replace")
    problems = [f"{algorithm} {seed} exited with {last.returncode}: {log_text[-1500:]}"] if last.returncode else []
    return root, problems


def saved_step(root: Path) -> int:
    """Return the timestep of the newest checkpoint."""
    return max((step for kind, step, *_ in read_digests(root) if kind == "saved"), default=0)


def read_digests(root: Path) -> list[list[Any]]:
    """Return the recorded digests of the replay: kind, timestep, rows and digest."""
    path = root / "digests"
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


def check(root: Path, kills: int) -> list[str]:
    """Return the problems of a training that was killed."""
    from trieye.files.run_record import RunRecord
    from trieye.history.history import read_history

    (run_dir,) = root.glob(".trieye_data/*/runs/*")
    record, problems = RunRecord.read(run_dir / "run.json"), []
    if record is None or (record.attempt, record.status) != (kills + 1, "FINISHED"):
        problems.append(f"not FINISHED after {kills + 1} attempts: {record}")
    saved: dict[int, list[Any]] = {}
    resumed: list[int] = []
    for kind, step, *digest in read_digests(root):
        if kind == "saved":
            saved[step] = digest
            continue
        resumed.append(step)
        if saved.get(step, digest) != digest:  # a kill may prevent the record of the newest save
            problems.append(f"the replay at {step} was {saved[step]} and is {digest}")
    if len(resumed) != kills or not all(step in saved for step in resumed[:1]):
        problems.append(f"resumed from {resumed} after {kills} kills")
    table = read_history(run_dir)
    points = Counter(zip(table["metric"].to_pylist(), table["step"].to_pylist(), strict=True))
    repeated = [key for key, count in points.items() if count > 1]
    steps = sorted({step for name, step in points if name == "time/total_timesteps"})
    values = zip(table["metric"].to_pylist(), table["step"].to_pylist(), table["value"].to_pylist(), strict=True)
    if repeated or any(step != value for name, step, value in values if name == "time/total_timesteps"):
        problems.append(f"repeated values, or values at wrong steps: {repeated[:3]}")
    if not steps:
        problems.append("nothing was logged")
    return problems


def compare(roots: list[Path], num_killed: int) -> tuple[dict[str, Any], list[str]]:
    """Compare the returns of the killed trainings, the first `num_killed`, with the uninterrupted ones."""
    timesteps, returns = zip(*(json.loads((root / "final").read_text()) for root in roots), strict=True)
    problems = [] if len(set(timesteps)) == 1 else [f"timesteps are {timesteps}"]
    late = [late_return(root, timesteps[0] * 2 / 3) for root in roots]
    killed, uninterrupted = returns[:num_killed], returns[num_killed:]
    half_width = T_975[len(uninterrupted)] * statistics.stdev(uninterrupted) * (1 + 1 / len(uninterrupted)) ** 0.5
    interval = [round(statistics.fmean(uninterrupted) + sign * half_width, 1) for sign in (-1, 1)]
    problems += [
        f"the return is {value}, of uninterrupted trainings {uninterrupted}"
        for value in killed
        if not interval[0] <= value <= interval[1]
    ]
    resumed = [[step for kind, step, *_ in read_digests(root) if kind == "resumed"] for root in roots[:num_killed]]
    figures = {
        "timesteps": timesteps[0],
        "resumed_from": resumed,
        "returns": killed,
        "uninterrupted": uninterrupted,
        "interval": interval,
        "in_training": late[:num_killed],
        "uninterrupted_in_training": late[num_killed:],
    }
    return figures, problems


def late_return(root: Path, first: float) -> float:
    """Return the mean of the logged `rollout/ep_rew_mean` after a timestep."""
    from trieye.history.history import read_history

    table = read_history(next(root.glob(".trieye_data/*/runs/*")))
    rows = zip(*(table[name].to_pylist() for name in ("metric", "step", "value")), strict=True)
    late = [value for name, step, value in rows if name == "rollout/ep_rew_mean" and step > first]
    return round(statistics.fmean(late), 1)


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="kills of each training")
    parser.add_argument("--killed", type=int, default=3, help="number of seeds with kills")
    parser.add_argument("--seeds", type=int, default=5, choices=sorted(T_975), help="number of seeds without kills")
    parser.add_argument("--timesteps", type=int, default=50_000)
    parser.add_argument("--only", choices=["dqn", "ppo"], help="test only this algorithm")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    problems: list[str] = []
    for algorithm in [options.only] if options.only else ["dqn", "ppo"]:
        seeds = [*range(options.killed), *range(options.seeds)]
        kills = [options.kills] * options.killed + [0] * options.seeds
        with ThreadPoolExecutor(2) as threads:
            jobs = zip(seeds, kills, strict=True)
            run = partial(train, algorithm, options.timesteps)
            trainings = list(threads.map(run, jobs))
        roots = [root for root, _ in trainings]
        own_problems = [problem for _, each in trainings for problem in each]
        if not own_problems:
            own_problems = [problem for root in roots[: options.killed] for problem in check(root, options.kills)]
            figures[algorithm], differences = compare(roots, options.killed)
            own_problems += differences
        problems += [f"{algorithm}: {problem}" for problem in own_problems]
        for root in roots:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({"benchmark": "sb3_kills", **figures, "problems": problems[:10], "met": not problems}))
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
