"""AdoptedRun: opens a run for a program without a trieye config, and closes it at exit with the right status."""

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self

from trieye.config import TrieyeConfig
from trieye.config.names import MAX_NAME_BYTES, check_name
from trieye.config.packages import command, is_installed
from trieye.files.run_record import RunStatus
from trieye.process.progress import say
from trieye.run.run import Run
from trieye.runs.finding import ROOT_VARIABLE

APP = "TRIEYE_APP"
"""Environment variable: the app of new runs."""

_UNSAFE = re.compile(r"[^\w.,=+@()\[\]-]+")

SHARED: dict[str, Any] = {}
"""`AdoptedRun.join` arguments with which every SummaryWriter joins an open run; empty: each writer opens its own."""


def safe_name(text: str) -> str:
    """Return the most similar valid name for a run directory."""
    name = re.sub(r"\.{2,}", ".", _UNSAFE.sub("_", text).strip(" ._-")) or "run"
    return check_name("run_name", name.encode()[:MAX_NAME_BYTES].decode(errors="ignore"))


def app_of_program() -> str:
    """Return the app from `TRIEYE_APP`, by default named after the working directory."""
    return safe_name(os.environ.get(APP) or Path.cwd().name)


def run_dir_of(name: str, *, app: str | None = None, root: Path | None = None) -> Path:
    """Return the directory that `AdoptedRun.join` would use for the same arguments, without creating anything.

    Raises:
        ConfigurationError: The name is no valid run name.
    """
    config_items = {} if root is None else {"root": root}
    return adopted_config(name, app or app_of_program(), config_items).persistence.get_run_base_dir()


class AdoptedRun:
    """A run of this process, which several loggers may share; it is closed at program exit.

    The status is FINISHED, FAILED after an uncaught exception, or KILLED after a signal or Ctrl-C.

    Args:
        config: Config of the run, from `adopted_config`.

    Attributes:
        run: The run, open until `close`.
        users: The loggers that log to the run; a deleted one no longer counts.
        before_close: Called with the status before the run is closed, so that loggers can write pending values.
    """

    _open: ClassVar["dict[Path, AdoptedRun]"] = {}

    def __init__(self, config: TrieyeConfig) -> None:
        self.run = _ProgramRun(config).open()
        if not is_installed("mlflow"):
            say(f"run {config.run_name!r} is not logged to MLflow, which is not installed: {command('mlflow')}")
        self.users = weakref.WeakSet[Any]()  # a re-executed notebook cell replaces its writer without closing it
        self._status: RunStatus = "FINISHED"
        self.before_close: list[Callable[[RunStatus], Any]] = []
        self._open[self.run.dir] = self
        _Ending.watch()

    @classmethod
    def join(cls, name: str, *, app: str | None = None, root: Path | None = None, **config_items: Any) -> "AdoptedRun":
        """Open a run, or share this process's open run of that name; the caller adds its logger to `users`.

        Values logged after joining an open run count as a new attempt, so a re-executed notebook cell shows each step
        once.

        Args:
            name: Name of the run; a later start with the same name resumes it.
            app: Name of the app; None: see `app_of_program`.
            root: Directory of all runs; None: `TRIEYE_ROOT`, or the default of the config.
            config_items: Further config items, such as `tags`, `description` and `seed`.
        """
        items = config_items if root is None else {**config_items, "root": root}
        config = adopted_config(name, app or app_of_program(), items)
        adopted_run = cls._open.get(config.persistence.get_run_base_dir())
        if adopted_run is None:
            adopted_run = cls(config)
        else:
            adopted_run.run.flush()
            adopted_run.run.supersede(None)
            adopted_run._status = "FINISHED"
        return adopted_run

    def leave(self, logger: Any, status: RunStatus = "FINISHED") -> None:
        """Release the run; the last user to leave closes it, as FAILED or KILLED if another user left so."""
        self._note_status(status)
        self.users.discard(logger)
        if not self.users:
            self.close(status)

    @property
    def is_closed(self) -> bool:
        """Whether the run was closed."""
        return self._open.get(self.run.dir) is not self

    def close(self, status: RunStatus = "FINISHED") -> None:
        """Close the run, as KILLED after a signal, or as `leave` describes; a second call does nothing."""
        self._note_status(status)
        status = "KILLED" if self.run.was_interrupted else self._status
        with contextlib.ExitStack() as stack:  # an error in one call does not skip the others
            stack.callback(self._close_run, status)
            while not self.is_closed and self.before_close:
                stack.callback(self.before_close.pop(0), status)

    def _note_status(self, status: RunStatus) -> None:
        self._status = status if self._status == "FINISHED" else self._status

    def _close_run(self, status: RunStatus) -> None:
        if self._open.pop(self.run.dir, None) is not None:
            self.run.close(status)

    def resumes_at(self, step: int) -> None:
        """Supersede all points at or after a step, because the program restored its state from before that step."""
        if self.run.supersede(step):
            say(f"run {self.run.name!r} resumes at step {step}; its points from that step on are superseded")


class AdoptingLogger:
    """A logger over a run of `AdoptedRun`, as a context manager that ends with the status of its block."""

    _adopted: AdoptedRun | None = None

    def _end(self, status: RunStatus) -> None:
        """Write pending values and leave the run."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_clean_exit = error is None or (isinstance(error, SystemExit) and not error.code)
        self._end("FINISHED" if is_clean_exit else "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")


class _ProgramRun(Run):
    """A run that ends with the program, whose exit status it gets; on a resume, it begins after `AdoptedRun`."""

    def _close_at_exit(self) -> None:
        _Ending.close_all()


def adopted_config(name: str, app: str, config_items: Mapping[str, Any]) -> TrieyeConfig:
    """Return the config of a run whose program has none.

    Args:
        name: Name of the run.
        app: Name of the app.
        config_items: Further config items, and `root`, the directory of all runs.

    Raises:
        ConfigurationError: A name is invalid.
    """
    check_name("app_name", app)
    check_name("run_name", name)
    persistence: dict[str, Any] = {"auto_resume_latest": False, "save_buffer": False, "tensorboard_dir_name": "."}
    root = config_items.get("root", os.environ.get(ROOT_VARIABLE))
    if root:
        persistence["root_data_dir"] = str(root)
    settings: dict[str, Any] = {
        "app_name": app,
        "run_name": name,
        "runtime": {"kind": "local"},
        "persistence": persistence,
        "stats": {"undeclared": "each", "hub_metrics_interval_s": 0.0},
        "sinks": {"console": {"enabled": False}, "mlflow": {"enabled": is_installed("mlflow")}, "log_config": False},
    }
    for key, value in config_items.items():
        if key != "root":
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, Mapping) else value
    return TrieyeConfig.model_validate(settings)


class _Ending:
    """Exit status of the program, recorded by hooks on errors and `sys.exit`: exit handlers do not receive it."""

    status: RunStatus = "FINISHED"
    _is_watching: ClassVar[bool] = False

    @classmethod
    def watch(cls) -> None:
        cls.status = "FINISHED"  # the program caught its exit if it opens another run
        atexit.unregister(cls.close_all)
        atexit.register(cls.close_all)  # registered after the handlers of the runs, so it runs before them
        if not cls._is_watching:
            cls._is_watching = True
            sys.excepthook = functools.partial(cls._note_error, sys.excepthook)
            sys.exit = functools.partial(cls._note_exit, sys.exit)
            os.register_at_fork(after_in_child=cls._forget)

    @classmethod
    def _note_error(
        cls, old_hook: Callable[..., Any], kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        cls.status = "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        old_hook(kind, error, trace)

    @classmethod
    def _note_exit(cls, old_exit: Callable[[Any], NoReturn], code: Any = None, /) -> NoReturn:
        if threading.current_thread() is threading.main_thread():  # in another thread it ends only that thread
            cls.status = "FINISHED" if code is None or code == 0 else "FAILED"
        old_exit(code)

    @classmethod
    def close_all(cls) -> None:
        atexit.unregister(cls.close_all)  # a run may have called it before its turn
        with contextlib.ExitStack() as stack:  # an error in one call does not skip the others
            for adopted_run in AdoptedRun._open.values():  # noqa: SLF001 - its own
                stack.callback(adopted_run.close, cls.status)

    @classmethod
    def _forget(cls) -> None:
        AdoptedRun._open.clear()  # noqa: SLF001 - its own; they belong to the parent process
