"""Damage the journal of a killed run in many ways, and restart the run.

The first part opens damaged journals: truncated at every byte of the last 4 KiB of the database and of its write-ahead
log, or with flipped bits in each page. The second part restarts runs with a sample of such damage: no wrong value may
reach a sink, intact events must, and lost events must be reported.
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

from curves import Curve, curves_in_mlflow, metrics_for, stored_curves
from local_kills import wait_for_acknowledgement
from producer import Producer, event_counts

import trieye

sys.path.append(str(Path(__file__).parents[1]))
from tests.journal.journal_damage_cases import KINDS, damaged, problems
from tests.moved import moved

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
    """Log the value 1 until this process is killed, so that the sum of each window equals its count."""
    with trieye.Run(config_of(root)) as run:
        run.mlflow_run_id(60.0)
        Producer(_OnesLogger(run), "value", 0, str(root / "counts"), RATE)
        threading.Event().wait()


class _OnesLogger:
    """A client that logs 1 instead of the value."""

    def __init__(self, run: trieye.Run) -> None:
        self._run = run
        self.flush = run.flush

    def log(self, name: str, value: float, *, step: int) -> None:
        """Log 1."""
        del value
        self._run.log(name, 1.0, step=step)


def killed_run(root: Path, live_s: float) -> int:
    """Kill a run while it logs, and return the number of acknowledged events."""
    (root / "counts").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, __file__, "--child", "--root", str(root)], stderr=subprocess.DEVNULL)
    wait_for_acknowledgement(root / "counts", 0)
    time.sleep(live_s)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return event_counts(root / "counts", "value", 0)[0]


def damaged_runs(original: Path, scratch: Path, cases: int, seed: int) -> Iterator[str]:
    """Restart copies of a run with damaged journals, and yield their problems."""
    run_dir = config_of(original).persistence.get_run_base_dir()
    acknowledged = event_counts(original / "counts", "value", 0)[0]
    before = curves_in_mlflow(run_dir)
    all_cases = list(damaged(run_dir, stride=64, bits=2, seed=seed))
    for number, (text, files, is_cut_log) in enumerate(
        random.Random(seed).sample(all_cases, min(cases, len(all_cases)))
    ):
        root = scratch / str(number)
        shutil.copytree(original, root)
        moved(config_of(root).persistence.get_run_base_dir())
        for name, data in files.items():
            (config_of(root).persistence.get_run_base_dir() / name).write_bytes(data)
        try:
            for problem in problems_of_run(root, before, acknowledged, is_cut_log=is_cut_log):
                yield f"{text}: {problem}"
        except Exception as error:  # noqa: BLE001 - any exception is a problem of this case
            yield f"{text}: {error!r}"
        shutil.rmtree(root)


def problems_of_run(root: Path, before: dict[str, Curve], acknowledged: int, *, is_cut_log: bool) -> Iterator[str]:
    """Restart a run with a damaged journal, and yield the problems of its curves.

    Args:
        root: Root directory of the run.
        before: The curves that MLflow had before the damage.
        acknowledged: Number of acknowledged events.
        is_cut_log: Whether the damage truncated the write-ahead log, which trieye cannot always detect.
    """
    with trieye.Run(config_of(root)) as run:
        run_dir, health = run.dir, run.health()
    is_reported = bool(health["journal_damage"]) or health["dropped"].get("journal_damage", 0) > 0
    for store, curves in stored_curves(run_dir).items():
        counts, sums = curves.get("value/count", []), curves.get("value/sum", [])
        if [count for _, count in counts] != [total for _, total in sums]:
            yield f"{store}: a wrong value"
        if any(count > WINDOW for _, count in counts):
            yield f"{store}: events counted twice"
        num_counted = sum(count for _, count in counts)
        if num_counted < acknowledged and not (is_reported or is_cut_log):
            yield f"{store}: {num_counted} of {acknowledged} events, and no loss is reported"
        if store == "mlflow" and not set(before.get("value/count", [])) <= set(counts):
            yield "delivered points disappeared"


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--stride", type=int, default=1, help="truncate at every n-th byte (default: 1); 0 damages only runs"
    )
    parser.add_argument(
        "--bits", type=int, default=4, help="number of bits flipped in each page, one per case (default: 4)"
    )
    parser.add_argument("--runs", type=int, default=60, help="number of damaged runs (default: 60)")
    parser.add_argument("--live", type=float, default=3.0, help="seconds of logging before the kill (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        log_ones(options.root)
    with tempfile.TemporaryDirectory() as scratch:
        kinds = KINDS if options.stride else ()
        files = list(problems(Path(scratch), kinds, stride=options.stride, bits=options.bits, seed=options.seed))
    print(f"journals: {len(files)} problems", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        acknowledged = killed_run(Path(scratch) / "original", options.live)
        runs = list(damaged_runs(Path(scratch) / "original", Path(scratch), options.runs, options.seed))
    figures: dict[str, Any] = {
        "journal": files[:10],
        "acknowledged": acknowledged,
        "runs": options.runs,
        "damage": runs[:10],
    }
    met = not files and not runs and acknowledged > 0
    print(json.dumps({"benchmark": "journal_damage", **figures, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
