"""Kill the only process of a run with `runtime=local` repeatedly, and count the delivered events.

Two variants: a run that only logs and continues with the next step after each kill; and a run that saves checkpoints
and resumes from them, whose curves must equal the curves of a run without kills.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from curves import deliver, metrics_for, problems_of_prefix, stored_curves
from producer import RANGE, Producer, event_counts

import trieye

WINDOW = 1000
SAVE_EVERY = 50
EVENTS_PER_STEP = 20
TOTAL_STEPS = 2_000
DEADLINE_S = 120.0


def config_of(root: Path, run_name: str) -> trieye.TrieyeConfig:
    """Return the config of a run that logs `value` in windows, and `step` at every tenth step."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name=run_name,
        runtime={"kind": "local", "flush_interval_s": 0.05},
        persistence={"root_data_dir": str(root), "checkpoint_save_freq_steps": SAVE_EVERY, "keep_last": 2},
        stats={
            "processing_interval_seconds": 0.2,
            "metrics": [
                *metrics_for(["value"], WINDOW),
                {"name": "steps/count", "raw_event_name": "step", "aggregation": "count", "log_frequency_steps": 100},
            ],
        },
    )


def log_until_killed(root: Path, incarnation: int, rate: int) -> None:
    """Log events until this process is killed."""
    with trieye.Run(config_of(root, "logs")) as run:
        Producer(run, "value", incarnation, str(root / "counts"), rate)
        threading.Event().wait()


def train(root: Path, total: int) -> None:
    """Train a run that saves and resumes until it is complete."""
    with trieye.Run(config_of(root, "trains")) as run:
        run.restore()
        for step in run.steps(total):
            for number in range(EVENTS_PER_STEP):
                run.log("value", float(step), step=(step - 1) * EVENTS_PER_STEP + number + 1)
            run.log("step", 1.0)
            time.sleep(0.002)
            if run.save_due:
                run.save(step=step)


def start(program: Callable[..., None], *arguments: Any, fork: bool) -> BaseProcess:
    """Start an attempt of a run in a new process."""
    context: ForkContext | SpawnContext = (
        multiprocessing.get_context("fork") if fork else multiprocessing.get_context("spawn")
    )
    process = context.Process(target=run_silently, args=(program, *arguments))
    process.start()
    return process


def run_silently(program: Callable[..., None], *arguments: Any) -> None:
    """Run without progress bars."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    program(*arguments)


def kill_after(process: BaseProcess, seconds: float) -> bool:
    """Kill a process after some seconds; return False if it had already exited."""
    process.join(seconds)
    is_alive = process.is_alive()
    process.kill()
    process.join()
    return is_alive


def wait_for_acknowledgement(counts_dir: Path, incarnation: int) -> None:
    """Wait until an incarnation of the producer has recorded an acknowledged event."""
    until = time.monotonic() + DEADLINE_S
    while event_counts(counts_dir, "value", incarnation)[0] == 0:
        if time.monotonic() > until:
            raise TimeoutError("no event was acknowledged")
        time.sleep(0.02)


def kill_loggers(root: Path, *, kills: int, rate: int, calm_s: float, fork: bool) -> None:
    """Kill and restart a run that only logs."""
    counts_dir = root / "counts"
    counts_dir.mkdir()
    for incarnation in range(kills):
        process = start(log_until_killed, root, incarnation, rate, fork=fork)
        wait_for_acknowledgement(counts_dir, incarnation)
        kill_after(process, random.uniform(0, calm_s))
        print(f"{incarnation + 1} of {kills} kills of a run that logs", file=sys.stderr)


def judge_logging(root: Path, *, kills: int) -> dict[str, Any]:
    """Return the figures and problems of the run that only logs."""
    counts_dir, run_dir = root / "counts", deliver(config_of(root, "logs")).dir
    problems = []
    for store, curves in stored_curves(run_dir).items():
        for incarnation in range(kills):
            acknowledged, sent = event_counts(counts_dir, "value", incarnation)
            problems += [
                f"{store}, incarnation {incarnation}: {problem}"
                for problem in problems_of_prefix(
                    curves, "value", first=incarnation * RANGE + 1, acknowledged=acknowledged, sent=sent, window=WINDOW
                )
            ]
    events = sum(event_counts(counts_dir, "value", incarnation)[0] for incarnation in range(kills))
    return {"kills": kills, "events": events, "problems": problems}


def kill_trainers(root: Path, *, kills: int, total: int, calm_s: float, fork: bool) -> tuple[int, int | None]:
    """Kill a run that saves and resumes, then let it finish; return the number of kills and the last exit code."""
    num_kills = 0
    while True:
        process = start(train, root, total, fork=fork)
        if num_kills == kills or not kill_after(process, random.uniform(1.0, 1.0 + calm_s)):
            process.join()
            return num_kills, process.exitcode
        num_kills += 1
        print(f"{num_kills} of {kills} kills of a run that trains", file=sys.stderr)


def judge_training(root: Path, *, kills: int, total: int, exit_code: int | None) -> dict[str, Any]:
    """Compare the curves of the run that trains with the curves of a run without kills."""
    run_dir = deliver(config_of(root, "trains")).dir
    problems = [f"the last process exited with {exit_code}"] if exit_code else []
    events = total * EVENTS_PER_STEP
    for store, curves in stored_curves(run_dir).items():
        expected = [(step, 100.0) for step in range(100, total + 1, 100)]
        if curves["steps/count"] != expected:
            problems.append(f"{store}: steps/count is {curves['steps/count'][:5]} ...")
        counts = [(step, float(WINDOW)) for step in range(WINDOW, events + 1, WINDOW)]
        if curves["value/count"] != counts:
            problems.append(f"{store}: value/count is {curves['value/count'][:5]} ...")
    return {"kills": kills, "events": events, "problems": problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second")
    parser.add_argument(
        "--calm", type=float, default=3.0, help="longest time in seconds from the start of an attempt to the kill"
    )
    parser.add_argument("--total", type=int, default=TOTAL_STEPS, help="steps of the run that trains")
    parser.add_argument(
        "--fork", action="store_true", help="fork the attempts instead of starting Python for each: much faster"
    )
    options = parser.parse_args()
    common = {"kills": options.kills, "calm_s": options.calm, "fork": options.fork}
    with tempfile.TemporaryDirectory() as logging_root, tempfile.TemporaryDirectory() as training_root:
        kill_loggers(Path(logging_root), rate=options.rate, **common)
        num_kills, exit_code = kill_trainers(Path(training_root), total=options.total, **common)
        # after all forks, because MLflow and pyarrow start threads
        logging = judge_logging(Path(logging_root), kills=options.kills)
        training = judge_training(Path(training_root), kills=num_kills, total=options.total, exit_code=exit_code)
    met = not logging["problems"] and not training["problems"]
    print(json.dumps({"benchmark": "local_kills", "logging": logging, "training": training, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
