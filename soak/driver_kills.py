"""Kill the driver of a run with `runtime=ray`, and with it all that it started, and start it again by the same name."""

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

from curves import deliver, metrics_for, places, problems_of_prefix
from local_kills import wait_for_acknowledgement
from producer import RANGE, Producer, figures

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


def log_for_ever(root: Path, life: int, rate: int) -> None:
    """Log event after event until this process is killed."""
    with trieye.Run(config_of(root)) as run:
        Producer(run, "value", life, str(root / "notes"), rate)
        threading.Event().wait()


def soak(root: Path, *, kills: int, rate: int, calm_s: float) -> dict[str, Any]:
    """Kill driver after driver, let the last one end in peace, and return what is wrong with the curves."""
    notes = root / "notes"
    notes.mkdir()
    for life in range(kills):
        arguments = ["--child", "--root", str(root), "--life", str(life), "--rate", str(rate)]
        process = subprocess.Popen([sys.executable, __file__, *arguments], stderr=subprocess.DEVNULL)
        wait_for_acknowledgement(notes, life)
        threading.Event().wait(random.uniform(0.2, calm_s))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        print(f"{life + 1} of {kills} kills", file=sys.stderr)
    run_dir = deliver(config_of(root)).dir
    record = RunRecord.read(run_dir / "run.json")
    attempts = 0 if record is None else record.attempt
    problems = [] if attempts == kills + 1 else [f"{attempts} attempts"]
    for place, curves in places(run_dir).items():
        for life in range(kills):
            acknowledged, sent = figures(notes, "value", life)
            found = problems_of_prefix(
                curves, "value", first=life * RANGE + 1, acknowledged=acknowledged, sent=sent, window=WINDOW
            )
            problems += [f"{place}, life {life}: {problem}" for problem in found]
    events = sum(figures(notes, "value", life)[0] for life in range(kills))
    return {"benchmark": "driver_kills", "kills": kills, "events": events, "problems": problems, "met": not problems}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=int, default=20_000, help="events a second")
    parser.add_argument("--calm", type=float, default=4.0, help="a driver is killed within so many seconds")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--life", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        log_for_ever(options.root, options.life, options.rate)
    with tempfile.TemporaryDirectory() as root:
        found = soak(Path(root), kills=options.kills, rate=options.rate, calm_s=options.calm)
    print(json.dumps(found))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
