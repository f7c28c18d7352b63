"""How many modules of trieye a value enters on its way from `run.log` to MLflow, and a state on its way to its file.

All threads are watched (`sys.setprofile`) from the call until the row can be read, or the checkpoint is whole. The hub
is a thread here; in a Ray actor the same modules stand on both sides.
"""

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import trieye

PACKAGE = Path(trieye.__file__).parent
DEADLINE_S = 120.0
MAX_FOR_VALUE, MAX_FOR_STATE = 14, 10


class Watch:
    """Notes the modules of trieye in which functions are called, in the order in which they are entered."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: dict[str, None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            name = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
            self.modules.setdefault(name)

    def during(self, action: Callable[[], None]) -> list[str]:
        """Return the modules that are entered while something is done."""
        self.modules = {}
        self.is_on = True
        action()
        self.is_on = False
        return list(self.modules)


def rows_in(store: Path) -> int:
    """Return how many rows the MLflow store has of the value."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM metrics WHERE key = 'value'").fetchone()[0])


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return the config of a run with one metric and one sink."""
    return trieye.TrieyeConfig(
        app_name="ways",
        run_name="run",
        runtime={"kind": "local"},
        persistence={"root_data_dir": str(root)},
        sinks={"tensorboard": {"enabled": False}, "mlflow": {"enabled": True}},
        stats={"metrics": [{"name": "value", "log_frequency_steps": 1}], "own_metrics_seconds": 0},
    )


def measure(root: Path) -> dict[str, list[str]]:
    """Return the modules of both ways."""
    watch = Watch()
    with trieye.Run(config_of(root)) as run:
        run.log("value", 0.0, step=0)  # what happens once does not count: tables are made, the run is begun
        run.flush()
        assert run.mlflow_run_id(DEADLINE_S) is not None
        (store,) = run.dir.parents[1].rglob("mlflow.db")
        wait_for(lambda: rows_in(store) == 1)

        def log() -> None:
            run.log("value", 1.0, step=1)
            run.log("value", 2.0, step=2)  # which completes the first
            wait_for(lambda: rows_in(store) >= 2)

        def save() -> None:
            run.save(weights=np.zeros(1000)).wait()

        run.step = 3
        save()
        run.step = 4
        return {"value": watch.during(log), "state": watch.during(save)}


def wait_for(is_there: Callable[[], bool]) -> None:
    """Wait, without calling anything of trieye."""
    until = time.monotonic() + DEADLINE_S
    while not is_there():
        assert time.monotonic() < until
        time.sleep(0.02)


def main() -> int:
    """Print one JSON line; the exit code says whether both ways are short enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the modules, on stderr")
    options = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with tempfile.TemporaryDirectory() as root:
        ways = measure(Path(root))
    if options.list:
        for name, modules in ways.items():
            print(f"{name}:", *modules, sep="\n  ", file=sys.stderr)
    counts = {name: len(modules) for name, modules in ways.items()}
    met = counts["value"] <= MAX_FOR_VALUE and counts["state"] <= MAX_FOR_STATE
    goal = f"value <= {MAX_FOR_VALUE}, state <= {MAX_FOR_STATE}"
    print(json.dumps({"benchmark": "ways", "unit": "modules", **counts, "goal": goal, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
