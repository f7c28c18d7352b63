"""FanOut: the sinks of a run, each one on its own."""

import math
import time
from collections.abc import Sequence

from trieye.process.waiting import moved_bytes, wait_while_moving
from trieye.sinks.base import RunInfo, RunStatus, Sink, Source, Tracker
from trieye.sinks.thread import SinkHealth, SinkThread

LAST_WORDS_S = 2.0
"""How long a sink that takes nothing any more may still take to close."""


class FanOut:
    """All sinks of a run; nothing here waits for a sink except what has a timeout.

    Sinks start to open at once, each on its own thread, and read the history from where each of them is.

    Args:
        sinks: The sinks, not yet open.
        run: What they may know.
        source: The history of the run.

    Raises:
        JournalError: The journal, which has the cursors of the sinks, cannot be read.
    """

    def __init__(self, sinks: Sequence[Sink], run: RunInfo, source: Source) -> None:
        self._threads = [SinkThread(sink, run, source) for sink in sinks]

    def wake(self) -> None:
        """Let every sink look at what was appended to the history; returns at once."""
        for thread in self._threads:
            thread.wake()

    def rewind(self, kept: int) -> None:
        """Let every sink go on although the history has superseded what it held from `kept` on; returns at once."""
        for thread in self._threads:
            thread.rewind(kept)

    def flush(self, timeout_s: float, *, working_only: bool = False) -> bool:
        """Wait until every sink has what is in the history now, and tell whether all have.

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
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.request_close(status, timeout_s)
        closed = [thread.wait_closed(deadline) for thread in self._threads]  # each of them, also after a failure
        return all(closed)

    def _close_patiently(self, status: RunStatus, timeout_s: float) -> None:
        for thread in self._threads:
            thread.request_close(status, math.inf)
        wait_while_moving(self._have_ended, lambda: (self._backlogs(), moved_bytes()), timeout_s)

    def _have_ended(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        return all([thread.has_ended(max(0.0, deadline - time.monotonic())) for thread in self._threads])

    def _backlogs(self) -> list[int]:
        return [thread.backlog for thread in self._threads]

    def close_sink(self, name: str, timeout_s: float) -> bool:
        """Let one sink finish while the others go on, and tell whether it got everything; it gets nothing more."""
        deadline = time.monotonic() + timeout_s
        closing = [thread for thread in self._threads if thread.sink.name == name]
        self._threads = [thread for thread in self._threads if thread.sink.name != name]
        for thread in closing:
            thread.request_close("FINISHED", timeout_s)
        closed = [thread.wait_closed(deadline) for thread in closing]
        return all(closed)

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
