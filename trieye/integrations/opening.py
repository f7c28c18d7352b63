"""Opening a run for a program that has no config of ours, and closing it however the program ends."""

import atexit
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from trieye.config import TrieyeConfig
from trieye.config.names import MAX_NAME_BYTES, check_name
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.process.progress import say
from trieye.run.run import Run

ROOT, APP = "TRIEYE_ROOT", "TRIEYE_APP"
"""Environment variables: directory of all runs, and the app that runs belong to."""

_UNSAFE = re.compile(r"[^\w.,=+@()\[\]-]+")
_EARLY = 20
"""A program that begins within the first twentieth of what was done before begins anew."""


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
        is_new_attempt: Whether this process has not had the run before.
    """

    _open: ClassVar["dict[Path, AdoptedRun]"] = {}
    _seen: ClassVar[set[Path]] = set()

    def __init__(self, name: str, app: str, given: Mapping[str, Any]) -> None:
        self.run = Run(adopted_config(name, app, given)).open()
        self.is_new_attempt = self.run.dir not in self._seen and self.run.attempt > 1
        self._decided = not self.is_new_attempt
        self._users = 0
        self._open[self.run.dir] = self
        self._seen.add(self.run.dir)
        _Ending.watch()

    @classmethod
    def join(cls, name: str, *, app: str | None = None, root: Path | None = None, **given: Any) -> "AdoptedRun":
        """Open a run, or share the one of that name that this process has open; `leave` it as often.

        Args:
            name: Name of the run.
            app: Name of the app; None: see `app_of_program`.
            root: Directory of all runs; None: as the environment says.
            given: More of the config.
        """
        app = app or app_of_program()
        given = given if root is None else {**given, "root": root}
        config = adopted_config(name, app, given)
        held = cls._open.get(config.persistence.get_run_base_dir()) or cls(name, app, given)
        held._users += 1  # noqa: SLF001 - its own
        return held

    def leave(self, status: RunStatus = "FINISHED") -> None:
        """Take note that one of its users is done; the last one closes it."""
        self._users -= 1
        if self._users <= 0:
            self.close(status)

    @property
    def last_step(self) -> int | None:
        """The highest step that was logged over all attempts; None before the first."""
        return max(self.run.last_steps().values(), default=None)

    @property
    def is_closed(self) -> bool:
        """Whether the run is no more open."""
        return self._open.get(self.run.dir) is not self

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the run; a second call does nothing."""
        if self._open.pop(self.run.dir, None) is not None:
            self.run.close(status)

    def goes_on_at(self, step: int, *, exactly: bool = False) -> None:
        """Take note of the first step that this attempt logs: what earlier ones logged from there on is superseded.

        Only the first call counts. A step within the first twentieth of what there is means a start from nothing.

        Args:
            step: The step.
            exactly: Take it as it is, whenever it comes: the program says so.
        """
        if self._decided and not exactly:
            return
        self._decided = True
        last = self.last_step
        if last is None or step > last:
            return
        begins_anew = not exactly and step * _EARLY <= last
        self.run.supersede(min(step, 0) if begins_anew else step)
        where = "from the beginning" if begins_anew else f"at step {step}"
        say(f"run {self.run.name!r} goes on {where}: what it had logged from there to step {last} is superseded")


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
    """How the program ends, which an exit handler is not told."""

    status: RunStatus = "FINISHED"
    _before: ClassVar[Callable[..., Any] | None] = None

    @classmethod
    def watch(cls) -> None:
        atexit.unregister(cls.close_all)
        atexit.register(cls.close_all)  # after those of the runs, and so before them
        if cls._before is None:
            cls._before, sys.excepthook = sys.excepthook, cls._note

    @classmethod
    def _note(cls, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        cls.status = "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        if cls._before is not None:
            cls._before(kind, error, trace)

    @classmethod
    def close_all(cls) -> None:
        for held in list(AdoptedRun._open.values()):  # noqa: SLF001 - its own
            held.close("KILLED" if held.run.was_interrupted else cls.status)
