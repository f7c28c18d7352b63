"""Opening a run for a program that has no config of ours, and closing it however the program ends."""

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn

from trieye.config import TrieyeConfig
from trieye.config.names import MAX_NAME_BYTES, check_name
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.process.progress import say
from trieye.run.run import Run

ROOT, APP = "TRIEYE_ROOT", "TRIEYE_APP"
"""Environment variables: directory of all runs, and the app that runs belong to."""

_UNSAFE = re.compile(r"[^\w.,=+@()\[\]-]+")

BEFORE_CLOSE: list[Callable[[RunStatus], None]] = []
"""Called with the status of the program before its runs are closed at exit, for loggers that still have values."""

SHARED: dict[str, Any] = {}
"""Arguments of `AdoptedRun.join` that SummaryWriters use, to log to a run that is open; empty: each opens its own."""


def open_runs() -> list[str]:
    """Return the names of the runs that this process has open."""
    return [path.name for path in AdoptedRun._open]  # noqa: SLF001 - its own


def safe_name(text: str) -> str:
    """Return a name that may be that of a directory, as similar as can be."""
    name = _UNSAFE.sub("_", text).strip(" ._-") or "run"
    while ".." in name:
        name = name.replace("..", ".")
    while len(name.encode()) > MAX_NAME_BYTES:
        name = name[:-1]
    return check_name("run_name", name)


def app_of_program() -> str:
    """Return the app that the environment names, or else one named after the working directory."""
    return safe_name(os.environ.get(APP) or Path.cwd().name)


def run_dir_of(name: str, *, app: str | None = None, root: Path | None = None) -> Path:
    """Return the directory that `AdoptedRun.join` with the same arguments uses; nothing is made or opened.

    Raises:
        ConfigurationError: The name cannot be that of a run.
    """
    given = {} if root is None else {"root": root}
    return adopted_config(name, app or app_of_program(), given).persistence.get_run_base_dir()


class AdoptedRun:
    """A run of this process, which several loggers may share; it is closed when the program ends.

    It is FINISHED then, or FAILED after an exception that nobody caught, or KILLED after a signal or Ctrl-C.

    Args:
        name: Name of the run; another start with the same name goes on in the same run.
        app: Name of the app.
        given: More of the config, such as `tags`, `description` and `seed`.

    Attributes:
        run: The run, open until `close`.
    """

    _open: ClassVar["dict[Path, AdoptedRun]"] = {}

    def __init__(self, name: str, app: str, given: Mapping[str, Any]) -> None:
        self.run = Run(adopted_config(name, app, given)).open()
        self._users = 0
        self._open[self.run.dir] = self
        _Ending.watch()

    @classmethod
    def join(cls, name: str, *, app: str | None = None, root: Path | None = None, **given: Any) -> "AdoptedRun":
        """Open a run, or share the one of that name that this process has open; `leave` it as often.

        What is logged through a run that was open counts as logged by another attempt, so that a cell of a notebook
        which is executed again shows each step once.

        Args:
            name: Name of the run.
            app: Name of the app; None: see `app_of_program`.
            root: Directory of all runs; None: as the environment says.
            given: More of the config.
        """
        app = app or app_of_program()
        given = given if root is None else {**given, "root": root}
        config = adopted_config(name, app, given)
        held = cls._open.get(config.persistence.get_run_base_dir())
        if held is None:
            held = cls(name, app, given)
        else:
            held.run.flush()
            held.run.supersede(None)
        held._users += 1
        return held

    def leave(self, status: RunStatus = "FINISHED") -> None:
        """Take note that one of its users is done; the last one closes it."""
        self._users -= 1
        if self._users <= 0:
            self.close(status)

    @property
    def is_closed(self) -> bool:
        """Whether the run is no more open."""
        return self._open.get(self.run.dir) is not self

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the run; a second call does nothing."""
        if self._open.pop(self.run.dir, None) is not None:
            self.run.close(status)

    def resumes_at(self, step: int) -> None:
        """Supersede what was logged at a step or later, because the program has restored its state before that step."""
        if self.run.supersede(step):
            say(f"run {self.run.name!r} resumes at step {step}: what it had logged from there on is superseded")


def adopted_config(name: str, app: str, given: Mapping[str, Any]) -> TrieyeConfig:
    """Return the config of a run whose program has none.

    Args:
        name: Name of the run.
        app: Name of the app.
        given: More of the config, and `root`, the directory of all runs.

    Raises:
        ConfigurationError: A name cannot be one.
    """
    try:
        check_name("app_name", app)
        check_name("run_name", name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    persistence: dict[str, Any] = {"auto_resume_latest": False, "save_buffer": False, "tensorboard_dir_name": "."}
    root = given.get("root", os.environ.get(ROOT))
    if root:
        persistence["root_data_dir"] = str(root)
    settings: dict[str, Any] = {
        "app_name": app,
        "run_name": name,
        "runtime": {"kind": "local"},
        "persistence": persistence,
        "stats": {"undeclared": "each", "own_metrics_seconds": 0.0},
        "sinks": {"console": {"enabled": False}, "config_params": False},
    }
    for key, held in given.items():
        if key != "root":
            settings[key] = {**settings.get(key, {}), **held} if isinstance(held, Mapping) else held
    return TrieyeConfig.model_validate(settings)


class _Ending:
    """How the program ends: exit handlers do not receive it, so uncaught exceptions and `sys.exit` record it."""

    status: RunStatus = "FINISHED"
    _is_watching: ClassVar[bool] = False

    @classmethod
    def watch(cls) -> None:
        cls.status = "FINISHED"  # the program caught its exit if it opens another run
        atexit.unregister(cls.close_all)
        atexit.register(cls.close_all)  # after those of the runs, and so before them
        if not cls._is_watching:
            cls._is_watching = True
            sys.excepthook = functools.partial(cls._note_error, sys.excepthook)
            sys.exit = functools.partial(cls._note_exit, sys.exit)
            os.register_at_fork(after_in_child=cls._forget)

    @classmethod
    def _note_error(
        cls,
        before: Callable[..., Any],
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        cls.status = "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        before(kind, error, trace)

    @classmethod
    def _note_exit(cls, before: Callable[[Any], NoReturn], code: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # in another thread it ends only that thread
            cls.status = "FINISHED" if code is None or code == 0 else "FAILED"
        before(code)

    @classmethod
    def close_all(cls) -> None:
        with contextlib.ExitStack() as rest:  # an error in one call does not skip the others
            for held in AdoptedRun._open.values():  # noqa: SLF001 - its own
                rest.callback(held.close, "KILLED" if held.run.was_interrupted else cls.status)
            for finish in BEFORE_CLOSE:
                rest.callback(finish, cls.status)

    @classmethod
    def _forget(cls) -> None:
        BEFORE_CLOSE.clear()
        AdoptedRun._open.clear()  # noqa: SLF001 - its own; they belong to the parent process
