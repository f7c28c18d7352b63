"""FanOut: the sinks of a run, from the config, installed packages and the user; each runs independently.

`trieye.Run(config, sinks=[MySink()])` uses the user's sink objects. A package registers a sink with an entry point in
its `pyproject.toml`; an installed sink receives every point, unless `sinks.exclude_plugins=[mine]` excludes it:

    [project.entry-points."trieye.sinks"]
    mine = "my_package.sinks:MySink"

`MySink` is a class with a constructor without arguments that implements `trieye.sinks.base.Sink`;
`trieye.testing.SinkContract` tests it.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from numbers import Real
from typing import Any

from trieye.config.base import did_you_mean
from trieye.config.names import is_text
from trieye.config.packages import import_directories
from trieye.config.sinks import OUR_NAMES, SinksConfig
from trieye.exceptions import ConfigurationError
from trieye.process.waiting import moved_bytes, wait_while_moving
from trieye.sinks.base import ArtifactSink, Flushable, HistoryReader, RunInfo, RunStatus, Sink
from trieye.sinks.health import SinkHealth
from trieye.sinks.thread import SinkThread

log = logging.getLogger("trieye.sinks")

ENTRY_POINT_GROUP = "trieye.sinks"
"""Entry-point group of sinks: the name of the sink, and a class with a constructor without arguments."""

CLOSE_GRACE_S = 2.0
"""Seconds that a stalled sink gets to close after a patient wait."""


class FanOut:
    """All sinks of a run; only the methods with a timeout wait for a sink.

    The constructor starts a thread per sink, which opens the sink and reads the history from the sink's cursor on.

    Args:
        sinks: The sinks, not yet open.
        run: The run, passed to `Sink.open`.
        source: The history of the run.

    Raises:
        JournalError: The journal, which stores the cursors of the sinks, cannot be read.
    """

    def __init__(self, sinks: Sequence[Sink], run: RunInfo, source: HistoryReader) -> None:
        self._threads = [SinkThread(sink, run, source) for sink in sinks]

    def wake(self) -> None:
        """Make every sink check the history for new items; returns immediately."""
        for thread in self._threads:
            thread.wake()

    def rewind(self, first_superseded: int) -> None:
        """Notify every sink that a rewind superseded the items from an index on; returns immediately."""
        for thread in self._threads:
            thread.rewind(first_superseded)

    def flush(self, timeout_s: float, *, working_only: bool = False) -> bool:
        """Wait until every sink has all current items of the history; return whether all succeeded.

        Args:
            timeout_s: Maximum seconds to wait.
            working_only: Do not wait for sinks that are failing.
        """
        deadline = time.monotonic() + timeout_s
        threads = [thread for thread in self._threads if not (working_only and thread.error)]
        targets = [(thread, thread.request_flush()) for thread in threads]
        are_flushed = [thread.wait_flushed(target, deadline) for thread, target in targets]
        return all(are_flushed)

    def close(self, status: RunStatus, timeout_s: float, *, patient: bool = False) -> bool:
        """Deliver remaining items, close every sink and return whether all got everything.

        The next attempt delivers undelivered items first.

        Args:
            status: Final status of the run.
            timeout_s: Maximum seconds to wait.
            patient: Apply the timeout to time without any activity instead of total time.
        """
        if patient:
            for thread in self._threads:
                thread.request_close(status, math.inf)
            wait_while_moving(self._have_ended, self.activity, timeout_s)
            timeout_s = CLOSE_GRACE_S
        return _closed(self._threads, status, timeout_s)

    def _have_ended(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        return all([thread.has_ended(max(0.0, deadline - time.monotonic())) for thread in self._threads])

    def activity(self) -> object:
        """Return a value that changes while any sink, or another process that blocks one, makes progress."""
        return [thread.activity for thread in self._threads], moved_bytes()

    def close_sink(self, name: str, timeout_s: float) -> bool:
        """Remove and close one sink while the others continue; return whether it got everything."""
        threads = [thread for thread in self._threads if thread.sink.name == name]
        self._threads = [thread for thread in self._threads if thread.sink.name != name]
        return _closed(threads, "FINISHED", timeout_s)

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Wait for the MLflow run and return its id; None without MLflow or if the store is unreachable."""
        for thread in self._threads:
            if thread.sink.name == "mlflow":
                thread.when_ready(timeout_s)
                return getattr(thread.sink, "run_id", None)
        return None

    @property
    def artifact_sinks(self) -> list[str]:
        """Names of the sinks that store files."""
        return [thread.sink.name for thread in self._threads if isinstance(thread.sink, ArtifactSink)]

    def health(self) -> list[SinkHealth]:
        """Return the health of each sink."""
        return [thread.health for thread in self._threads]


def _closed(threads: Sequence[SinkThread], status: RunStatus, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.request_close(status, timeout_s)
    are_closed = [thread.wait_closed(deadline) for thread in threads]  # wait for each, even after a failure
    return all(are_closed)


def make_sinks(
    config: SinksConfig, *, on_run_id: Callable[[str], None] | None = None, own_sinks: Sequence[Sink] = ()
) -> list[Sink]:
    """Return the enabled sinks, the user's sinks and the sinks of installed packages, none of them open.

    Args:
        config: Enables and configures sinks.
        on_run_id: Called with the id of the MLflow run, on the sink's thread, before the first point is written.
        own_sinks: The user's sinks, which passed `check_own`.

    Raises:
        ConfigurationError: The library of an enabled sink is not installed.
    """
    config.check()
    used_names = {*OUR_NAMES, *(sink.name for sink in own_sinks)}
    return [*_built_in(config, on_run_id), *own_sinks, *_sinks_of_packages(used_names, config.exclude_plugins)]


def _built_in(config: SinksConfig, on_run_id: Callable[[str], None] | None) -> Iterator[Sink]:
    """Yield the enabled sinks of trieye; the module of a disabled sink is not imported."""
    if config.mlflow.enabled:
        from trieye.sinks.mlflow.sink import MlflowSink

        interval_s = config.mlflow.system_metrics_interval_s if config.mlflow.system_metrics else None
        yield MlflowSink(on_run_id, system_metrics_interval_s=interval_s)
    if config.tensorboard.enabled:
        from trieye.sinks.tensorboard.sink import TensorboardSink

        yield TensorboardSink(config.tensorboard.flush_interval_s)
    if config.console.enabled:
        from trieye.sinks.console import ConsoleSink

        yield ConsoleSink()
    if config.wandb.enabled:
        from trieye.sinks.wandb import WandbSink

        yield WandbSink(config.wandb)


def check_own(sinks: Iterable[Sink]) -> list[Sink]:
    """Check the sinks that the user passed to a run, and return them.

    Raises:
        ConfigurationError: The argument is no list, or an element cannot be a sink of the run.
    """
    if not isinstance(sinks, Iterable):
        kind = sinks if isinstance(sinks, type) else type(sinks)
        raise ConfigurationError(f"sinks={sinks!r}: expected a list of sinks, such as sinks=[{kind.__name__}()]")
    own_sinks, names = list(sinks), set(OUR_NAMES)
    for sink in own_sinks:
        if (problem := _problem_of(sink, names)) is not None:
            raise ConfigurationError(f"sinks=[{sink!r}]: {problem}")
        names.add(sink.name)
    return own_sinks


def _problem_of(sink: Any, used_names: Collection[str]) -> str | None:
    """Return why an object cannot be a sink of a run with sinks of these names; None if it can."""
    if isinstance(sink, type):
        return f"it is a class; pass {sink.__name__}()"
    lacking = [method for method in ("open", "write", "close") if not callable(getattr(sink, method, None))]
    lacking = lacking if hasattr(sink, "name") else ["name", *lacking]
    if lacking:
        return f"not a sink, because it has no {' and no '.join(lacking)}; see trieye.sinks.base.Sink"
    if not isinstance(sink.name, str) or not is_text(sink.name) or sink.name in used_names:
        return f"the name {sink.name!r} is already used, or not valid Unicode; rename it"
    if isinstance(sink, Flushable) and not isinstance(sink.flush_interval_s, Real):
        return f"flush_interval_s={sink.flush_interval_s!r}; expected seconds"
    return None


@lru_cache(maxsize=1)
def _entry_points(_directories: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Return the sinks of the packages that are installed in the directories."""
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _sinks_of_packages(used_names: set[str], exclude: Collection[str]) -> list[Sink]:
    sinks: list[Sink] = []
    entries = _entry_points(import_directories())
    for entry_point in entries:
        if entry_point.name in exclude:  # its package is not even imported
            continue
        try:
            sink = entry_point.load()()
            if (problem := _problem_of(sink, used_names)) is not None:
                raise ValueError(problem)  # noqa: TRY301 - see below
        except Exception as error:  # noqa: BLE001 - the border to a sink: a faulty package must not stop the run
            text = "skipping sink %s of an installed package: %s; install the package again if its directory was moved"
            log.warning(text, entry_point.value, error)
            continue
        used_names.add(sink.name)
        if sink.name not in exclude:
            sinks.append(sink)
    names = [entry_point.name for entry_point in entries] + [sink.name for sink in sinks]
    for name in set(exclude).difference(names, used_names):  # may be installed on other machines
        if hint := did_you_mean(name, names):
            log.warning("sinks.exclude_plugins: no installed package has a sink %r%s", name, hint)
    return sinks
