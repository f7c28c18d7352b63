"""Damage the journal of a killed run in many ways, and start the run again.

First the journal by itself: cut at every byte of its last 4 KiB and of that of its write-ahead log, and with bits
flipped in each page. Then whole runs, a sample of such damages: no wrong value may reach a sink, what is intact must,
and what is lost must be reported.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from curves import Curve, metrics_for, places
from local_kills import wait_for_acknowledgement
from producer import Producer, figures

import trieye

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "journal")]
from journal_damage_cases import KINDS, damaged, problems
from moved import moved

WINDOW = 100
RATE = 5_000


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return the config of the run."""
    return trieye.TrieyeConfig(
        app_name="soak",
        run_name="damaged",
        runtime={"kind": "local", "flush_interval_s": 0.05},
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics_for(["value"], WINDOW), "processing_interval_seconds": 0.3},
    )


def log_ones(root: Path) -> None:
    """Log the value 1 until this process is killed, so that in every window the sum is the count."""
    with trieye.Run(config_of(root)) as run:
        run.mlflow_run_id(60.0)
        Producer(_Ones(run), "value", 0, str(root / "notes"), RATE)
        threading.Event().wait()


class _Ones:
    """A client that logs 1 whatever it is given."""

    def __init__(self, run: trieye.Run) -> None:
        self._run = run
        self.flush = run.flush

    def log(self, name: str, value: float, *, step: int) -> None:
        """Log 1."""
        del value
        self._run.log(name, 1.0, step=step)


def killed_run(root: Path, live_s: float) -> int:
    """Make a run that was killed while it logged, and return how many events were acknowledged."""
    (root / "notes").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, __file__, "--child", "--root", str(root)], stderr=subprocess.DEVNULL)
    wait_for_acknowledgement(root / "notes", 0)
    time.sleep(live_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return figures(root / "notes", "value", 0)[0]


def damaged_runs(original: Path, scratch: Path, cases: int, seed: int) -> Iterator[str]:
    """Start copies of a run with damaged journals, and yield what is wrong with them."""
    run_dir = config_of(original).persistence.get_run_base_dir()
    acknowledged = figures(original / "notes", "value", 0)[0]
    before = places_before(original)
    every = list(damaged(run_dir, stride=64, bits=2, seed=seed))
    for number, (text, files, is_cut_log) in enumerate(random.Random(seed).sample(every, min(cases, len(every)))):
        root = scratch / str(number)
        shutil.copytree(original, root)
        moved(config_of(root).persistence.get_run_base_dir())
        for name, data in files.items():
            (config_of(root).persistence.get_run_base_dir() / name).write_bytes(data)
        try:
            for problem in problems_of_run(root, before, acknowledged, is_cut_log=is_cut_log):
                yield f"{text}: {problem}"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a problem of this case
            yield f"{text}: {error!r}"
        shutil.rmtree(root)


def places_before(root: Path) -> dict[str, Curve]:
    """Return the points that MLflow has of the killed run."""
    from curves import curves_in_mlflow

    return curves_in_mlflow(config_of(root).persistence.get_run_base_dir())


def problems_of_run(root: Path, before: dict[str, Curve], acknowledged: int, *, is_cut_log: bool) -> Iterator[str]:
    """Start a run again whose journal was damaged, and yield what is wrong with its sinks."""
    with trieye.Run(config_of(root)) as run:
        run_dir, health = run.dir, run.health()
    reported = bool(health["journal_damage"]) or health["dropped"].get("journal_damage", 0) > 0
    for place, curves in places(run_dir).items():
        counts, sums = curves.get("value/count", []), curves.get("value/sum", [])
        if [count for _, count in counts] != [total for _, total in sums]:
            yield f"{place}: a wrong value"
        if any(count > WINDOW for _, count in counts):
            yield f"{place}: events counted twice"
        found = sum(count for _, count in counts)
        if found < acknowledged and not (reported or is_cut_log):
            yield f"{place}: {found} of {acknowledged} events, and nothing reported"
        if place == "mlflow" and not set(before.get("value/count", [])) <= set(counts):
            yield "points that were delivered are gone"


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--stride", type=int, default=1, help="cut at every so manieth byte (default: 1); 0: damage whole runs only"
    )
    parser.add_argument("--bits", type=int, default=4, help="bits flipped in each page, one at a time (default: 4)")
    parser.add_argument("--runs", type=int, default=60, help="how many whole runs are damaged (default: 60)")
    parser.add_argument("--live", type=float, default=3.0, help="seconds for which the run logs (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        log_ones(options.root)
    with tempfile.TemporaryDirectory() as scratch:
        kinds = KINDS if options.stride else ()
        files = list(problems(Path(scratch), kinds, stride=options.stride, bits=options.bits, seed=options.seed))
    print(f"the journal by itself: {len(files)} problems", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        acknowledged = killed_run(Path(scratch) / "original", options.live)
        runs = list(damaged_runs(Path(scratch) / "original", Path(scratch), options.runs, options.seed))
    found: dict[str, Any] = {
        "journal": files[:10],
        "acknowledged": acknowledged,
        "runs": options.runs,
        "damage": runs[:10],
    }
    met = not files and not runs and acknowledged > 0
    print(json.dumps({"benchmark": "journal_damage", **found, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
