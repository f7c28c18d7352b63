"""Kill the only process of a run with `runtime=local`, again and again, and count what arrived.

Two variants: a run that only logs, and goes on with the next step after each death; and one that saves checkpoints and
resumes from them, whose curves have to be those of a run that was never killed.
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
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from curves import deliver, metrics_for, places, problems_of_prefix
from producer import RANGE, Producer, figures

import trieye

WINDOW = 1000
SAVE_EVERY = 50
EVENTS_PER_STEP = 20
LIFE_STEPS = 2_000
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


def log_for_ever(root: Path, life: int, rate: int) -> None:
    """Log event after event until this process is killed."""
    with trieye.Run(config_of(root, "logs")) as run:
        Producer(run, "value", life, str(root / "notes"), rate)
        threading.Event().wait()


def train(root: Path, total: int) -> None:
    """Train a run that saves and resumes, to the end."""
    with trieye.Run(config_of(root, "trains")) as run:
        run.restore()
        for step in run.steps(total):
            for number in range(EVENTS_PER_STEP):
                run.log("value", float(step), step=(step - 1) * EVENTS_PER_STEP + number + 1)
            run.log("step", 1.0)
            time.sleep(0.002)
            if run.save_due:
                run.save(step=step)


def begin(life: Callable[..., None], *arguments: Any, fork: bool) -> BaseProcess:
    """Start a life of a run in a process of its own."""
    context = multiprocessing.get_context("fork" if fork else "spawn")
    process = context.Process(target=silently, args=(life, *arguments))  # type: ignore[attr-defined]  # of both
    process.start()
    return process


def silently(life: Callable[..., None], *arguments: Any) -> None:
    """Live without progress bars."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    life(*arguments)


def kill_after(process: BaseProcess, seconds: float) -> bool:
    """Kill a process after some time; return False if it had ended before."""
    process.join(seconds)
    is_alive = process.is_alive()
    process.kill()
    process.join()
    return is_alive


def wait_for_acknowledgement(notes: Path, life: int) -> None:
    """Wait until a life of the producer has something acknowledged."""
    until = time.monotonic() + DEADLINE_S
    while figures(notes, "value", life)[0] == 0:
        if time.monotonic() > until:
            raise TimeoutError("the run does not log anything")
        time.sleep(0.02)


def kill_loggers(root: Path, *, kills: int, rate: int, calm_s: float, fork: bool) -> None:
    """Kill a run that only logs, again and again."""
    notes = root / "notes"
    notes.mkdir()
    for life in range(kills):
        process = begin(log_for_ever, root, life, rate, fork=fork)
        wait_for_acknowledgement(notes, life)
        kill_after(process, random.uniform(0, calm_s))
        print(f"{life + 1} of {kills} kills of a run that logs", file=sys.stderr)


def judge_logging(root: Path, *, kills: int) -> dict[str, Any]:
    """Return what is wrong with the curves of the run that only logged."""
    notes, run_dir = root / "notes", deliver(config_of(root, "logs")).dir
    problems = []
    for place, curves in places(run_dir).items():
        for life in range(kills):
            acknowledged, sent = figures(notes, "value", life)
            found = problems_of_prefix(
                curves, "value", first=life * RANGE + 1, acknowledged=acknowledged, sent=sent, window=WINDOW
            )
            problems += [f"{place}, life {life}: {problem}" for problem in found]
    events = sum(figures(notes, "value", life)[0] for life in range(kills))
    return {"kills": kills, "events": events, "problems": problems}


def kill_trainers(root: Path, *, kills: int, total: int, calm_s: float, fork: bool) -> tuple[int, int | None]:
    """Kill a run that saves and resumes, and let it finish; return how often, and the exit code of its last life."""
    num_kills = 0
    while True:
        process = begin(train, root, total, fork=fork)
        if num_kills == kills or not kill_after(process, random.uniform(1.0, 1.0 + calm_s)):
            process.join()
            return num_kills, process.exitcode
        num_kills += 1
        print(f"{num_kills} of {kills} kills of a run that trains", file=sys.stderr)


def judge_training(root: Path, *, kills: int, total: int, exit_code: int | None) -> dict[str, Any]:
    """Compare the curves of the run that trained with those of a run left in peace."""
    run_dir = deliver(config_of(root, "trains")).dir
    problems = [f"the last process ended with {exit_code}"] if exit_code else []
    events = total * EVENTS_PER_STEP
    for place, curves in places(run_dir).items():
        expected = [(step, 100.0) for step in range(100, total + 1, 100)]
        if curves["steps/count"] != expected:
            problems.append(f"{place}: steps/count is {curves['steps/count'][:5]} ...")
        counts = [(step, float(WINDOW)) for step in range(WINDOW, events + 1, WINDOW)]
        if curves["value/count"] != counts:
            problems.append(f"{place}: value/count is {curves['value/count'][:5]} ...")
    return {"kills": kills, "events": events, "problems": problems}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second")
    parser.add_argument("--calm", type=float, default=3.0, help="a process is killed within so many seconds")
    parser.add_argument("--total", type=int, default=LIFE_STEPS, help="steps of the run that trains")
    parser.add_argument("--fork", action="store_true", help="do not start Python anew for each life: much faster")
    options = parser.parse_args()
    common = {"kills": options.kills, "calm_s": options.calm, "fork": options.fork}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        kill_loggers(Path(one), rate=options.rate, **common)
        num_kills, exit_code = kill_trainers(Path(two), total=options.total, **common)
        # after all forks: MLflow and pyarrow begin threads of their own
        logging = judge_logging(Path(one), kills=options.kills)
        training = judge_training(Path(two), kills=num_kills, total=options.total, exit_code=exit_code)
    met = not logging["problems"] and not training["problems"]
    print(json.dumps({"benchmark": "local_kills", "logging": logging, "training": training, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
