"""Let the disk be full for a while: accepted events stay, the policy decides about the others, and one error says so.

A limit on the size of files (RLIMIT_FSIZE) stands in for the disk: no file of the process can grow beyond it.
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

from curves import curves_in_history, metrics_for, places

import trieye

WINDOW = 100
FULL_BYTES = 4096
BATCH = 200
STILL_S = 1.0
PATIENCE_S = 30.0


class Messages(logging.Handler):
    """Keeps what the library says."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.texts.append(record.getMessage())


class Disk:
    """The disk of this process, which can be full."""

    def __init__(self) -> None:
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self) -> None:
        """Let no file grow any more."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, self._hard))

    def free(self) -> None:
        """Let files grow again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._soft, self._hard))


class Trainer(threading.Thread):
    """Logs without pause, as fast as it is let."""

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

    def stands_still(self, patience_s: float) -> bool:
        """Tell whether it logs nothing for a second; on a busy machine it takes a while to fill what may wait."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            before = self.num_logged
            time.sleep(STILL_S)
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
            went_on = not trainer.stands_still(PATIENCE_S if overflow == "block" else STILL_S)
        finally:
            disk.free()
        if went_on != (overflow == "drop"):
            problems.append(f"overflow={overflow}: the training {'went on' if went_on else 'stopped'}")
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
    for place, curves in places(run_dir).items():
        counted = sum(value for _, value in curves["value/count"])
        if counted != health["accepted"]:
            problems.append(f"{place}: {counted} events, {health['accepted']} accepted")
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
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--full", type=float, default=20.0, help="seconds without room")
    parser.add_argument("--calm", type=float, default=2.0, help="seconds with room, before and after")
    options = parser.parse_args()
    found = []
    for overflow in ("block", "drop"):
        with tempfile.TemporaryDirectory() as root:
            found.append(soak(Path(root), overflow, full_s=options.full, calm_s=options.calm))
    met = all(figures["met"] for figures in found)
    print(json.dumps({"benchmark": "disk_full", "runs": found, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
