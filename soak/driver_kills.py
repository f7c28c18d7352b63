"""Kill the driver of a run with `runtime=ray`, including all processes that it started, and restart the run."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from curves import deliver, metrics_for, problems_of_prefix, stored_curves
from local_kills import wait_for_acknowledgement
from producer import RANGE, Producer, event_counts

import trieye
from trieye.files.run_record import RunRecord

WINDOW = 1000


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return the config of the run."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="driver",
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics_for(["value"], WINDOW)},
    )


def log_until_killed(root: Path, incarnation: int, rate: int) -> None:
    """Log events until this process is killed."""
    with trieye.Run(config_of(root)) as run:
        Producer(run, "value", incarnation, str(root / "counts"), rate)
        threading.Event().wait()


def soak(root: Path, *, kills: int, rate: int, calm_s: float) -> dict[str, Any]:
    """Kill and restart the driver, deliver the remaining points, and return the problems of the curves."""
    counts_dir = root / "counts"
    counts_dir.mkdir()
    for incarnation in range(kills):
        arguments = ["--child", "--root", str(root), "--incarnation", str(incarnation), "--rate", str(rate)]
        process = subprocess.Popen([sys.executable, __file__, *arguments], stderr=subprocess.DEVNULL)
        wait_for_acknowledgement(counts_dir, incarnation)
        threading.Event().wait(random.uniform(0.2, calm_s))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        print(f"{incarnation + 1} of {kills} kills", file=sys.stderr)
    run_dir = deliver(config_of(root)).dir
    record = RunRecord.read(run_dir / "run.json")
    attempts = 0 if record is None else record.attempt
    problems = [] if attempts == kills + 1 else [f"{attempts} attempts"]
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
    return {"benchmark": "driver_kills", "kills": kills, "events": events, "problems": problems, "met": not problems}


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=int, default=20_000, help="events per second")
    parser.add_argument(
        "--calm", type=float, default=4.0, help="longest time in seconds from the first acknowledgement to the kill"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--incarnation", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        log_until_killed(options.root, options.incarnation, options.rate)
    with tempfile.TemporaryDirectory() as root:
        figures = soak(Path(root), kills=options.kills, rate=options.rate, calm_s=options.calm)
    print(json.dumps(figures))
    return 0 if figures["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
