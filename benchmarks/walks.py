"""Follow five values through trieye: a logged value, a saved state, an override, a sweep job's override, a transition.

A call carries the value if an argument or the return value contains it, directly or in a container. Counts for each
walk: `modules` and `functions` of trieye that carry the value, `changes` from one module to another within a thread,
and `copies`, the distinct containers of the value. `entered` is the number of modules with any call during the walk.

    value       from run.log to the row in MLflow's database
    save        from run.save to the complete checkpoint
    override    from the command line to the constructor of the optimizer
    job         like override, for a sweep job that Hydra's basic launcher runs in the sweep's process
    transition  from the step of an explorer's environment (in a thread) to the update that learns from it
"""

import argparse
import contextlib
import inspect
import json
import os
import runpy
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import CellType, FrameType, FunctionType
from typing import Any

import numpy as np

import trieye

PACKAGE = Path(trieye.__file__).parent
SLUG = "walks_agent"
DEADLINE_S = 120.0
MAX_DEPTH = 8
MAX_BYTES = 1 << 20  # skips the memory of replay buffers, which is mostly unused
GOALS = {"value": ("entered", 24), "override": ("changes", 90), "transition": ("modules", 15)}
MARKS = {"value": 1234.5, "save": 8765.5, "override": 0.000123456, "job": 0.000123456, "transition": 4321.5}
"""The followed values, which no other number in the process equals. The values of arrays are exact in float32."""


class Trace:
    """Record the calls of trieye's functions that carry a value."""

    def __init__(self, mark: float, *, until: Callable[[FrameType], bool] = lambda _: False) -> None:
        self.mark = mark
        self.is_on = False
        self.entered: set[str] = set()
        self.functions: dict[tuple[str, str], None] = {}
        self.copies: set[int] = set()
        self._containers: list[Any] = []  # keeps their ids unique
        self._changes = 0
        self._last = threading.local()
        self._until = until
        self._encoded = (struct.pack("<d", mark), struct.pack("<f", mark))
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.is_on or event not in {"call", "return"}:
            return
        code = frame.f_code
        if event == "call" and self._until(frame):
            self.is_on = False
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix()
        self.entered.add(module)
        if self._carries(argument if event == "return" else arguments_of(frame), MAX_DEPTH, set()):
            self.functions.setdefault((module, code.co_qualname))
            self._changes += module != getattr(self._last, "module", module)
            self._last.module = module

    def _carries(self, value: Any, depth: int, seen: set[int]) -> bool:  # noqa: PLR0911 - one per kind
        match value:
            case float():
                return value == self.mark
            case str():
                return repr(self.mark) in value
            case bytes() | bytearray() | memoryview():
                return len(value) < MAX_BYTES and any(encoded in bytes(value) for encoded in self._encoded)
            case np.ndarray():
                return value.dtype != object and value.nbytes < MAX_BYTES and self._carries(value.tobytes(), 0, seen)
            case int() | type() | None:
                return False
        if depth == 0 or id(value) in seen:
            return False
        seen.add(id(value))
        # no short circuit: all containers of the value count
        if any([self._carries(part, depth - 1, seen) for part in list(parts_of(value))]):
            if id(value) not in self.copies:
                self.copies.add(id(value))
                self._containers.append(value)
            return True
        return False

    def counts(self) -> dict[str, int]:
        """Return the counts of one walk."""
        modules = {module for module, _ in self.functions}
        return {
            "modules": len(modules),
            "functions": len(self.functions),
            "changes": self._changes,
            "copies": len(self.copies),
            "entered": len(self.entered),
        }


def arguments_of(frame: FrameType) -> list[Any]:
    """Return the arguments of a call without `self` and `cls`."""
    code, values = frame.f_code, frame.f_locals
    flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
    return [values[name] for name in names if name in values and name not in {"self", "cls"}]


def parts_of(value: Any) -> Iterator[Any]:
    """Yield the parts of a container, value object, config or deferred call."""
    if type(value).__module__.startswith("torch") and hasattr(value, "untyped_storage"):
        yield value.detach().cpu().contiguous().view(-1).numpy() if value.numel() else None
    elif isinstance(value, partial):
        yield from (*value.args, *value.keywords.values(), value.func)
    elif isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
    elif type(value).__module__.startswith("omegaconf"):
        yield value.__dict__.get("_content", value.__dict__.get("_val"))
    elif isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        yield from value
    elif hasattr(type(value), "__struct_fields__"):
        yield from (getattr(value, name) for name in type(value).__struct_fields__)
    elif hasattr(type(value), "model_fields") or hasattr(value, "__dataclass_fields__"):
        names = vars(value) if hasattr(value, "__dict__") else value.__dataclass_fields__
        yield from (getattr(value, name, None) for name in list(names))
    elif type(value).__module__.startswith("hydra"):
        yield from vars(value).values() if hasattr(value, "__dict__") else ()


def walk_value(root: Path) -> Trace:
    """Follow a value from `run.log` to MLflow."""
    trace = Trace(MARKS["value"])
    with trieye.Run(config_of(root)) as run:
        run.log("value", 0.0, step=0)  # excludes one-time work: tables, the MLflow run
        run.flush()
        assert run.mlflow_run_id(DEADLINE_S) is not None
        (store,) = run.dir.parents[1].rglob("mlflow.db")
        wait_for(lambda: rows_in(store) == 1)
        trace.is_on = True
        run.log("value", MARKS["value"], step=1)
        run.log("value", 2.0, step=2)
        run.step = 1
        run.flush()  # closes the window of step 1: the hub has no timer here
        wait_for(lambda: rows_in(store) > 1)
        trace.is_on = False
    return trace


def walk_save(root: Path) -> Trace:
    """Follow a state from `run.save` to its checkpoint."""
    trace = Trace(MARKS["save"])
    with trieye.Run(config_of(root)) as run:
        run.step = 3
        run.save(weights=np.zeros(1000)).wait()
        run.step = 4
        trace.is_on = True
        run.save(weights=np.full(1000, MARKS["save"])).wait()
        trace.is_on = False
    return trace


def walk_override(root: Path, *options: str) -> Trace:
    """Follow an override from the command line to the optimizer."""
    trace = Trace(MARKS["override"], until=lambda frame: is_optimizer(frame, MARKS["override"]))
    trace.is_on = True
    train(root, f"agent.lr={MARKS['override']!r}", *options)
    assert not trace.is_on, "no optimizer was created with the learning rate"
    return trace


def walk_job(root: Path) -> Trace:
    """Follow an override of a sweep to the optimizer of its job."""
    return walk_override(root, "-m", "hydra/launcher=basic")


def walk_transition(root: Path) -> Trace:
    """Follow a reward from an explorer's environment to the update."""
    trace = Trace(MARKS["transition"], until=lambda frame: is_update(frame, trace))
    (root / SLUG / SLUG / "marked.py").write_text(MARKED_ENV)
    trace.is_on = True
    explorer = ("explorer.num=1", "loop.env_steps=600", "replay.capacity=1000")
    train(root, "env.id=walks_agent.marked:Marked-v0", "agent.batch_size=128", *explorer)
    assert not trace.is_on, "no update learned from the marked transition"
    return trace


MARKED_ENV = """
import gymnasium, numpy

class Marked(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return numpy.zeros(4, numpy.float32), {}
    def step(self, action):
        self.t += 1
        return numpy.zeros(4, numpy.float32), 4321.5 if self.t == 300 else 1.0, False, self.t == 500, {}

gymnasium.register("Marked-v0", Marked)
"""


def is_optimizer(frame: FrameType, lr: float) -> bool:
    """Return True if a call creates an Adam optimizer with this learning rate."""
    code = frame.f_code
    return code.co_name == "__init__" and code.co_filename.endswith("adam.py") and frame.f_locals.get("lr") == lr


def is_update(frame: FrameType, trace: Trace) -> bool:
    """Return True if a call is an update with a batch that contains the value."""
    return frame.f_code.co_name == "train_step" and bool(frame.f_locals["batch"]["reward"].eq(trace.mark).any())


def train(root: Path, *options: str) -> None:
    """Run the project's training command in this process, for a few steps."""
    os.chdir(root / SLUG)
    sys.path.insert(0, str(root / SLUG))
    limits: tuple[str, ...] = ("runtime=local", "agent.learning_starts=128", "explorer.fragment_steps=64")
    if not any(option.startswith("loop.env_steps") for option in options):
        limits = (*limits, "loop.env_steps=64")
    sys.argv = [f"{SLUG}.train", *options, *limits]
    with contextlib.suppress(SystemExit):
        runpy.run_module(f"{SLUG}.train", run_name="__main__")


def rows_in(store: Path) -> int:
    """Return the number of rows of the metric in the MLflow database."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM metrics WHERE key = 'value'").fetchone()[0])


def config_of(root: Path) -> trieye.TrieyeConfig:
    """Return the config of a run with one metric and one sink."""
    return trieye.TrieyeConfig(
        app_name="walks",
        run_name="run",
        runtime={"kind": "local"},
        persistence={"root_data_dir": str(root)},
        sinks={"tensorboard": {"enabled": False}, "console": {"enabled": False}},
        stats={
            "metrics": [{"name": "value", "log_frequency_steps": 1}],
            "hub_metrics_interval_s": 0,
            "processing_interval_seconds": 3600,
        },
    )


def wait_for(is_done: Callable[[], bool]) -> None:
    """Wait without a call of trieye's functions."""
    until = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < until
        time.sleep(0.02)


WALKS = {
    "value": walk_value,
    "save": walk_save,
    "override": walk_override,
    "job": walk_job,
    "transition": walk_transition,
}


def measure(name: str) -> dict[str, int]:
    """Return the counts of one walk, in a new process."""
    with tempfile.TemporaryDirectory() as root:
        new = [sys.executable, "-m", "trieye.cli", "new", SLUG, "--no-input", "--ci", "none", "-o", root]
        subprocess.run(new, check=True, stdout=subprocess.DEVNULL)
        command = [sys.executable, __file__, "--child", name, root, *sys.argv[1:]]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    counts: dict[str, int] = json.loads(output.splitlines()[-1])
    return counts


def run_child(name: str, root: str, *flags: str) -> None:
    """Run one walk in this process and print its counts."""
    trace = WALKS[name](Path(root))
    sys.setprofile(None)
    if "--list" in flags:
        print(
            f"{name}:", *(f"{module}: {function}" for module, function in trace.functions), sep="\n  ", file=sys.stderr
        )
    print(json.dumps(trace.counts()), flush=True)


def main() -> int:
    """Print one JSON line for each walk."""
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", nargs="*", choices=[*WALKS, []], help="walks to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the functions that carry the value to stderr")
    options = parser.parse_args()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    for name in options.walks or WALKS:
        counts = measure(name)
        line: dict[str, Any] = {"benchmark": f"walks/{name}", **counts}
        if name in GOALS:
            unit, most = GOALS[name]
            line |= {"goal": f"{unit} <= {most}", "met": counts[unit] <= most}
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
