"""How many modules of trieye a value passes on its way from `run.log` to MLflow, and a state on its way to its file.

A module is on the way if one of its functions is called with the value, or returns it: as a number, in an array, in
bytes, or in whatever container, value object or call that waits to be made. All threads are watched (`sys.setprofile`)
from the call until the row can be read, or the checkpoint is whole; the hub does nothing else meanwhile. `entered`
counts all modules of which any function is called, those that only guard, count or wake somebody included. The hub is
a thread here; in a Ray actor the same modules stand on both sides.
"""

import argparse
import contextlib
import inspect
import json
import os
import sqlite3
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import CellType, FrameType, FunctionType
from typing import Any

import msgspec
import numpy as np

import trieye

PACKAGE = Path(trieye.__file__).parent
DEADLINE_S = 120.0
MAX_FOR_VALUE, MAX_FOR_STATE = 14, 10


VALUE, STATE = 1234.5678, 8765.4321
"""The value, and each number of the state; no other numbers in the process are equal to them."""
MAX_DEPTH = 8


def carries(held: Any, mark: float, depth: int = MAX_DEPTH) -> bool:
    """Tell whether something is a number, or holds it."""
    match held:
        case float():
            return held == mark
        case bytes() | bytearray() | memoryview():
            return struct.pack("<d", mark) in bytes(held)
        case np.ndarray():
            return held.dtype != object and struct.pack("<d", mark) in held.tobytes()
        case str() | int() | None:
            return False
    return depth > 0 and any(carries(part, mark, depth - 1) for part in parts_of(held))


def parts_of(held: Any) -> Iterable[Any]:
    """Return what is inside a container, a value object or a call that waits to be made."""
    parts: Iterable[Any] = ()
    match held:
        case Mapping():
            parts = held.values()
        case tuple() | list() | set() | frozenset() | deque():
            parts = held
        case partial():
            parts = [*held.args, *held.keywords.values(), held.func]
        case FunctionType():
            parts = [cell.cell_contents for cell in held.__closure__ or () if cell != CellType()]
        case msgspec.Struct():
            parts = [getattr(held, name) for name in held.__struct_fields__]
        case object(__dataclass_fields__=fields) if not isinstance(held, type):
            parts = [getattr(held, name) for name in fields]
    return list(parts)


class Watch:
    """Notes the modules of trieye in which functions are called, in the order in which they are entered.

    Attributes:
        entered: All of them.
        passed: Those of which a function was called with the value, or returned it.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.mark = 0.0
        self.entered: dict[str, None] = {}
        self.passed: dict[str, None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if not self.is_on or event not in {"call", "return"} or not code.co_filename.startswith(str(PACKAGE)):
            return
        name = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
        self.entered.setdefault(name)
        if name not in self.passed and carries(argument if event == "return" else arguments_of(frame), self.mark):
            self.passed.setdefault(name)

    def during(self, action: Callable[[], None], mark: float) -> tuple[list[str], list[str]]:
        """Return the modules that a number passes and those that are entered while something is done."""
        self.entered, self.passed, self.mark = {}, {}, mark
        self.is_on = True
        action()
        self.is_on = False
        return list(self.passed), list(self.entered)


def arguments_of(frame: FrameType) -> list[Any]:
    """Return what a function is called with, but for the object whose method it is."""
    code, held = frame.f_code, frame.f_locals
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
    return [held[name] for name in names if name in held and name not in {"self", "cls"}]


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
        sinks={"tensorboard": {"enabled": False}, "console": {"enabled": False}},
        stats={
            "metrics": [{"name": "value", "log_frequency_steps": 1}],
            "own_metrics_seconds": 0,
            "processing_interval_seconds": 3600,
        },
    )


def measure(root: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return the modules of both ways, and those that are entered meanwhile."""
    watch = Watch()
    with trieye.Run(config_of(root)) as run:
        run.log("value", 0.0, step=0)  # what happens once does not count: tables are made, the run is begun
        run.flush()
        assert run.mlflow_run_id(DEADLINE_S) is not None
        (store,) = run.dir.parents[1].rglob("mlflow.db")
        wait_for(lambda: rows_in(store) == 1)

        def log() -> None:
            run.log("value", VALUE, step=1)
            run.log("value", 2.0, step=2)
            run.step = 1
            run.flush()  # closes the window of step 1: the hub has no timer that does so
            wait_for(lambda: rows_in(store) >= 2)

        def save() -> None:
            run.save(weights=np.full(1000, STATE)).wait()

        run.step = 3
        save()
        run.step = 4
        return {"value": watch.during(log, VALUE), "state": watch.during(save, STATE)}


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
        for name, (passed, _) in ways.items():
            print(f"{name}:", *passed, sep="\n  ", file=sys.stderr)
    counts = {name: len(passed) for name, (passed, _) in ways.items()}
    entered = {name: len(entered) for name, (_, entered) in ways.items()}
    met = counts["value"] <= MAX_FOR_VALUE and counts["state"] <= MAX_FOR_STATE
    goal = f"value <= {MAX_FOR_VALUE}, state <= {MAX_FOR_STATE}"
    print(json.dumps({"benchmark": "ways", "unit": "modules", **counts, "entered": entered, "goal": goal, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
