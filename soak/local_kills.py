"""Kill the only process of a run with `runtime=local`, again and again, and count what arrived.

Two variants: a run that only logs, and goes on with the next step after each death; and one that saves checkpoints and
resumes from them, whose curves have to be those of a run that was never killed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
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


def child(*arguments: str) -> "subprocess.Popen[bytes]":
    """Start this script again in another role."""
    return subprocess.Popen([sys.executable, __file__, *arguments], stderr=subprocess.DEVNULL)


def kill_after(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Kill a process after some time; return False if it had ended before."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True
    return False


def wait_for_acknowledgement(notes: Path, life: int) -> None:
    """Wait until a life of the producer has something acknowledged."""
    until = time.monotonic() + DEADLINE_S
    while figures(notes, "value", life)[0] == 0:
        if time.monotonic() > until:
            raise TimeoutError("the run does not log anything")
        time.sleep(0.02)


def soak_logging(root: Path, *, kills: int, rate: int, calm_s: float) -> dict[str, Any]:
    """Kill a run that only logs, and return what is wrong with its curves."""
    notes = root / "notes"
    notes.mkdir()
    for life in range(kills):
        process = child("--child", "log", "--root", str(root), "--life", str(life), "--rate", str(rate))
        wait_for_acknowledgement(notes, life)
        kill_after(process, random.uniform(0, calm_s))
        print(f"{life + 1} of {kills} kills of a run that logs", file=sys.stderr)
    run_dir = deliver(config_of(root, "logs")).dir
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


def soak_training(root: Path, *, kills: int, total: int, calm_s: float) -> dict[str, Any]:
    """Kill a run that saves and resumes, let it finish, and compare its curves with those of a run left in peace."""
    num_kills = 0
    while True:
        process = child("--child", "train", "--root", str(root), "--total", str(total))
        was_killed = num_kills < kills and kill_after(process, random.uniform(1.0, 1.0 + calm_s))
        if not was_killed:
            process.wait()
            break
        num_kills += 1
        print(f"{num_kills} of {kills} kills of a run that trains", file=sys.stderr)
    run_dir = deliver(config_of(root, "trains")).dir
    problems = [] if process.returncode == 0 else [f"the last process ended with {process.returncode}"]
    events = total * EVENTS_PER_STEP
    for place, curves in places(run_dir).items():
        expected = [(step, 100.0) for step in range(100, total + 1, 100)]
        if curves["steps/count"] != expected:
            problems.append(f"{place}: steps/count is {curves['steps/count'][:5]} ...")
        counts = [(step, float(WINDOW)) for step in range(WINDOW, events + 1, WINDOW)]
        if curves["value/count"] != counts:
            problems.append(f"{place}: value/count is {curves['value/count'][:5]} ...")
    return {"kills": num_kills, "events": events, "problems": problems}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second")
    parser.add_argument("--calm", type=float, default=3.0, help="a process is killed within so many seconds")
    parser.add_argument("--total", type=int, default=LIFE_STEPS, help="steps of the run that trains")
    parser.add_argument("--child", choices=("log", "train"), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--life", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child == "log":
        log_for_ever(options.root, options.life, options.rate)
    if options.child == "train":
        train(options.root, options.total)
        return 0
    with tempfile.TemporaryDirectory() as root:
        logging = soak_logging(Path(root), kills=options.kills, rate=options.rate, calm_s=options.calm)
    with tempfile.TemporaryDirectory() as root:
        training = soak_training(Path(root), kills=options.kills, total=options.total, calm_s=options.calm)
    met = not logging["problems"] and not training["problems"]
    print(json.dumps({"benchmark": "local_kills", "logging": logging, "training": training, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
