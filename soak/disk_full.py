"""Log to a full disk: accepted events survive, the overflow policy applies to the others, and one error reports it.

A limit on the size of files (RLIMIT_FSIZE) simulates the full disk: no file of the process can grow beyond it.
"""

import argparse
import json
import logging
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from curves import curves_in_history, metrics_for, stored_curves

import trieye

WINDOW = 100
LIMIT_BYTES = 4096
BATCH = 200
BLOCKED_S = 1.0
PATIENCE_S = 30.0


class Messages(logging.Handler):
    """Stores the warnings and errors of the library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a message."""
        self.texts.append(record.getMessage())


class Disk:
    """A simulated disk of this process, which can be filled and freed."""

    def __init__(self) -> None:
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Prevent files from growing."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, self._hard))

    def free(self) -> None:
        """Remove the limit."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._soft, self._hard))


class Trainer(threading.Thread):
    """Logs events as fast as the run accepts them."""

    def __init__(self, run: trieye.Run) -> None:
        super().__init__(daemon=True)
        self._run = run
        self.stopped = threading.Event()
        self.num_logged = 0

    def run(self) -> None:
        """Log until `stopped`."""
        while not self.stopped.is_set():
            for _ in range(BATCH):
                self.num_logged += 1
                self._run.log("value", float(self.num_logged), step=self.num_logged)
            time.sleep(0.005)

    def is_blocked(self, patience_s: float) -> bool:
        """Wait up to `patience_s` for a second without events; on a busy machine, the buffer of events fills slowly."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            before = self.num_logged
            time.sleep(BLOCKED_S)
            if self.num_logged == before:
                return True
        return False


def soak(root: Path, overflow: str, *, full_s: float, calm_s: float) -> dict[str, Any]:
    """Run the soak with one policy and return its figures."""
    disk, messages = Disk(), Messages()
    logging.getLogger("trieye").addHandler(messages)
    config = trieye.TrieyeConfig(
        app_name="soak",
        run_name=f"full_{overflow}",
        runtime={"kind": "local", "overflow": overflow, "max_pending_events": 10_000},
        persistence={"root_data_dir": str(root)},
        stats={"metrics": metrics_for(["value"], WINDOW)},
    )
    problems = []
    with trieye.Run(config) as run:
        run_dir = run.dir
        trainer = Trainer(run)
        trainer.start()
        time.sleep(calm_s)
        run.flush()
        accepted_before = run.health()["accepted"]
        disk.fill()
        try:
            time.sleep(full_s)
            is_training = not trainer.is_blocked(PATIENCE_S if overflow == "block" else BLOCKED_S)
        finally:
            disk.free()
        if is_training != (overflow == "drop"):
            problems.append(f"overflow={overflow}: the training {'continued' if is_training else 'stopped'}")
        time.sleep(1.5 * calm_s)
        trainer.stopped.set()
        trainer.join()
        run.flush()
        health = run.health()
        num_logged, dropped = trainer.num_logged, health["dropped"].get("overflow", 0)
        if health["accepted"] + dropped != num_logged:
            problems.append(f"{num_logged} logged, {health['accepted']} accepted, {dropped} dropped")
        if overflow == "block" and dropped:
            problems.append(f"{dropped} dropped although the policy is block")
    logging.getLogger("trieye").removeHandler(messages)
    for store, curves in stored_curves(run_dir).items():
        counted = sum(value for _, value in curves["value/count"])
        if counted != health["accepted"]:
            problems.append(f"{store}: {counted} events, {health['accepted']} accepted")
    if overflow == "block":
        total = sum(value for _, value in curves_in_history(run_dir)["value/sum"])
        if total != num_logged * (num_logged + 1) / 2:
            problems.append("the sum of the values is wrong")
    errors = [text for text in messages.texts if "journal" in text]
    return {
        "overflow": overflow,
        "accepted_before": accepted_before,
        "accepted": health["accepted"],
        "dropped": dropped,
        "messages": errors,
        "problems": problems,
        "met": not problems,
    }


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--full", type=float, default=20.0, help="seconds with a full disk")
    parser.add_argument("--calm", type=float, default=2.0, help="seconds with free space, before and after")
    options = parser.parse_args()
    runs = []
    for overflow in ("block", "drop"):
        with tempfile.TemporaryDirectory() as root:
            runs.append(soak(Path(root), overflow, full_s=options.full, calm_s=options.calm))
    met = all(figures["met"] for figures in runs)
    print(json.dumps({"benchmark": "disk_full", "runs": runs, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
