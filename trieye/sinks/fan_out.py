"""FanOut: the sinks of a run, each one on its own: of the config, of installed packages, and objects of one's own.

`trieye.Run(config, sinks=[MySink()])` takes sinks as they are. A package offers one with three lines in its
`pyproject.toml`, and it gets every point as soon as the package is installed; `sinks.without=[mine]` leaves it out:

    [project.entry-points."trieye.sinks"]
    mine = "my_package.sinks:MySink"

`MySink` is a class that is called without arguments and follows `trieye.sinks.base.Sink`; it passes the tests of
`trieye.testing.SinkContract`.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.metadata import entry_points

from trieye.config.sinks import SinksConfig
from trieye.exceptions import ConfigurationError
from trieye.process.waiting import moved_bytes, wait_while_moving
from trieye.sinks.base import RunInfo, RunStatus, Sink, Source, Tracker
from trieye.sinks.console import ConsoleSink
from trieye.sinks.health import SinkHealth
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.sinks.thread import SinkThread
from trieye.sinks.wandb import WandbSink

log = logging.getLogger("trieye.sinks")

ENTRY_POINT_GROUP = "trieye.sinks"
"""Packages offer a sink under this group: its name, and a class that is called without arguments."""

OUR_NAMES = ("mlflow", "tensorboard", "console", "wandb")

LAST_WORDS_S = 2.0
"""How long a sink that takes nothing any more may still take to close."""


class FanOut:
    """All sinks of a run; only the methods with a timeout wait for a sink.

    Each sink begins to open at once, on its own thread, and reads the history from its own cursor on.

    Args:
        sinks: The sinks, not yet open.
        run: What the sinks may know of the run.
        source: The history of the run.

    Raises:
        JournalError: The journal, which has the cursors of the sinks, cannot be read.
    """

    def __init__(self, sinks: Sequence[Sink], run: RunInfo, source: Source) -> None:
        self._threads = [SinkThread(sink, run, source) for sink in sinks]

    def wake(self) -> None:
        """Let every sink look for new items of the history; returns at once."""
        for thread in self._threads:
            thread.wake()

    def rewind(self, kept: int) -> None:
        """Tell every sink that the history has superseded what it held from `kept` on; returns at once."""
        for thread in self._threads:
            thread.rewind(kept)

    def flush(self, timeout_s: float, *, working_only: bool = False) -> bool:
        """Wait until every sink has all items that the history holds now, and tell whether all have.

        Args:
            timeout_s: Seconds to wait at most.
            working_only: Do not wait for a sink that is known to fail now.
        """
        deadline = time.monotonic() + timeout_s
        asked = [thread for thread in self._threads if not (working_only and thread.error)]
        targets = [(thread, thread.request_flush()) for thread in asked]
        flushed = [thread.wait_flushed(target, deadline) for thread, target in targets]
        return all(flushed)

    def close(self, status: RunStatus, timeout_s: float, *, patient: bool = False) -> bool:
        """Let every sink finish and tell whether all got everything; the next attempt begins with the rest.

        Args:
            status: How the run ended.
            timeout_s: Seconds to wait at most.
            patient: Only count those seconds in which nothing goes on.
        """
        if patient:
            self._close_patiently(status, timeout_s)
            timeout_s = LAST_WORDS_S
        return _closed(self._threads, status, timeout_s)

    def _close_patiently(self, status: RunStatus, timeout_s: float) -> None:
        for thread in self._threads:
            thread.request_close(status, math.inf)
        wait_while_moving(self._have_ended, self.activity, timeout_s)

    def _have_ended(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        return all([thread.has_ended(max(0.0, deadline - time.monotonic())) for thread in self._threads])

    def activity(self) -> object:
        """Return what changes as long as a sink gets on, or waits for others who get on."""
        return [thread.activity for thread in self._threads], moved_bytes()

    def close_sink(self, name: str, timeout_s: float) -> bool:
        """Let one sink finish while the others go on, and tell whether it got everything; it gets nothing more."""
        closing = [thread for thread in self._threads if thread.sink.name == name]
        self._threads = [thread for thread in self._threads if thread.sink.name != name]
        return _closed(closing, "FINISHED", timeout_s)

    def mlflow_run_id(self, timeout_s: float) -> str | None:
        """Wait for the MLflow run and return its id; None without MLflow, or while it is unreachable."""
        for thread in self._threads:
            if thread.sink.name == "mlflow":
                thread.when_ready(timeout_s)
                return getattr(thread.sink, "run_id", None)
        return None

    @property
    def trackers(self) -> list[str]:
        """Names of the sinks that take files."""
        return [thread.sink.name for thread in self._threads if isinstance(thread.sink, Tracker)]

    def health(self) -> list[SinkHealth]:
        """Return how each sink is."""
        return [thread.health for thread in self._threads]


def _closed(threads: Sequence[SinkThread], status: RunStatus, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.request_close(status, timeout_s)
    closed = [thread.wait_closed(deadline) for thread in threads]  # each of them, also after a failure
    return all(closed)


def make_sinks(
    config: SinksConfig,
    *,
    on_run_id: Callable[[str], None] | None = None,
    own: Sequence[Sink] = (),
) -> list[Sink]:
    """Make the enabled sinks, not yet open; then those given, and one of each kind that installed packages offer.

    Args:
        config: Which sinks are enabled.
        on_run_id: Told the id of the MLflow run, on the sink's thread, before the first point is written.
        own: More sinks, each as `check_own` takes it.

    Raises:
        ConfigurationError: A sink is enabled whose library is not installed.
    """
    config.check()
    sinks: list[Sink] = []
    if config.mlflow.enabled:
        interval_s = config.mlflow.system_metrics_interval_s if config.mlflow.system_metrics else None
        sinks.append(MlflowSink(on_run_id, system_metrics_interval_s=interval_s))
    if config.tensorboard.enabled:
        sinks.append(TensorboardSink(config.tensorboard.flush_interval_s))
    if config.console.enabled:
        sinks.append(ConsoleSink())
    if config.wandb.enabled:
        sinks.append(WandbSink(config.wandb))
    return [*sinks, *own, *_sinks_of_packages({*OUR_NAMES, *(sink.name for sink in own)}, config.without)]


def check_own(sinks: Sequence[Sink]) -> None:
    """Make sure that objects can be the sinks of a run, besides ours.

    Raises:
        ConfigurationError: They are no list, one is no sink, or has a name that is taken.
    """
    if not isinstance(sinks, Iterable):
        kind = sinks if isinstance(sinks, type) else type(sinks)
        raise ConfigurationError(f"sinks={sinks!r}: one sink is a list, too: sinks=[{kind.__name__}()]")
    names: list[str] = []
    for sink in sinks:
        given = f"sinks=[{sink!r}]"
        if isinstance(sink, type):
            raise ConfigurationError(f"{given}: a class; make an object of it, as {sink.__name__}()")
        lacking = [method for method in ("open", "write", "close") if not callable(getattr(sink, method, None))]
        if lacking or not isinstance(getattr(sink, "name", None), str):
            raise ConfigurationError(
                f"{given}: no sink, for it has no {' and no '.join(lacking) or 'name'}; a sink has a name and the "
                "methods open(run), write(points) and close(status): see trieye.sinks.base.Sink"
            )
        if sink.name in {*OUR_NAMES, *names}:
            raise ConfigurationError(f"{given}: its name {sink.name!r} is taken by another sink; choose another one")
        names.append(sink.name)


def _sinks_of_packages(taken: set[str], without: Collection[str]) -> list[Sink]:
    sinks: list[Sink] = []
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name in without:  # its package is not even imported
            continue
        try:
            sink = entry_point.load()()
            if not isinstance(sink.name, str) or sink.name in taken:
                raise ValueError(f"its name {sink.name!r} is taken or no string")  # noqa: TRY301 - the border is one
        except Exception as error:  # noqa: BLE001 - the border to a sink: somebody else's package must not stop the run
            log.warning("sink %s of an installed package is left out: %s", entry_point.value, error)
            continue
        taken.add(sink.name)
        if sink.name not in without:
            sinks.append(sink)
    return sinks
