"""SinkThread: one sink on a thread of its own, so that its failures and its slowness stay there."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trieye.exceptions import RunClosedError
from trieye.sinks.backlog import Backlog
from trieye.sinks.base import Flushable, RunInfo, RunStatus, Sink
from trieye.sinks.operations import Operation, split_points
from trieye.sinks.retry import FIRST_DELAY_S, Retry
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

MAX_FAILURES_AT_CLOSE = 3
"""How often a call may fail once the run is closing; one chance only for a sink that did not work before."""
DRAIN_SHARE = 0.8
"""Part of the time of `close` in which the backlog is sent; the rest is for the sink's own close and for the file."""


@dataclass(frozen=True, slots=True)
class SinkHealth:
    """How a sink is.

    Attributes:
        name: Name of the sink.
        error: Why it does not work at the moment, or None.
        backlog: Points, and other operations, that wait to be sent.
        refused: Points, and other operations, that the sink refused for good.
        lost: Points, and other operations, that could neither be sent nor kept on disk.
    """

    name: str
    error: str | None
    backlog: int
    refused: int
    lost: int


class SinkThread:
    """Runs a sink on a daemon thread, which starts at once.

    Submitting never waits for the sink. What cannot be sent is retried with growing pauses, in order; what is still
    unsent at the end goes to `<spool_dir>/<sink>.jsonl` and is sent first by the next attempt.
    """

    def __init__(
        self, sink: Sink, run: RunInfo, *, max_backlog_points: int = 1_000_000, first_delay_s: float = FIRST_DELAY_S
    ) -> None:
        self.sink = sink
        self._run = run
        self._file = run.spool_dir / f"{sink.name}.jsonl"
        self._backlog = Backlog(self._file, max_backlog_points)
        self._changed = self._backlog.changed
        self._retry = Retry(sink.name, self._pause, first_delay_s)
        self._ready = threading.Event()
        self._closing: RunStatus | None = None
        self._drain_until = 0.0
        self._hurry = False
        self._flush_target = 0
        self._flushed = 0
        self._unflushed_since = 0.0
        self._thread = threading.Thread(target=self._main, name=f"trieye-sink-{sink.name}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> str | None:
        """Why the sink does not work at the moment, or None."""
        return self._retry.error

    @property
    def backlog(self) -> int:
        """Points, and other operations, that wait to be sent."""
        return self._backlog.weight

    @property
    def refused(self) -> int:
        """Points, and other operations, that the sink refused for good."""
        return self._retry.refused + int(getattr(self.sink, "refused", 0))

    @property
    def health(self) -> SinkHealth:
        """How the sink is now."""
        return SinkHealth(self.sink.name, self.error, self.backlog, self.refused, self._backlog.lost)

    def submit_points(self, points: Sequence[Point]) -> None:
        """Queue points.

        Raises:
            RunClosedError: `close` was called before.
        """
        self._submit(list(split_points(points)))

    def submit(self, operation: Operation) -> None:
        """Queue an operation behind all that was submitted before.

        Raises:
            RunClosedError: `close` was called before.
        """
        self._submit([operation])

    def when_ready(self, timeout_s: float) -> bool:
        """Wait until the sink is open and tell whether it is."""
        return self._ready.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sink has all that was submitted before, and tell whether it has.

        A sink that does not work is tried at once and goes on being retried until the time is over.
        """
        return self.wait_flushed(self.request_flush(), time.monotonic() + timeout_s)

    def request_flush(self) -> int:
        """Ask for a flush without waiting and return what `wait_flushed` waits for."""
        with self._changed:
            self._flush_target = self._backlog.arrived
            self._hurry = True
            self._changed.notify_all()
            return self._flush_target

    def wait_flushed(self, target: int, deadline: float) -> bool:
        """Wait until the flush of `request_flush` is done or `time.monotonic()` is at the deadline."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._ready.is_set() and self._flushed >= target, max(0.0, deadline - time.monotonic())
            )
            return done and not self._backlog.lost

    def close(self, status: RunStatus, timeout_s: float) -> bool:
        """Send what is left, close the sink and tell whether it got everything; what it did not get is in the file."""
        self.request_close(status, timeout_s)
        return self.wait_closed(time.monotonic() + timeout_s)

    def request_close(self, status: RunStatus, timeout_s: float) -> None:
        """Let the sink finish within about `timeout_s`, without waiting; the first status counts."""
        with self._changed:
            if self._closing is None:
                self._closing = status
                self._drain_until = time.monotonic() + DRAIN_SHARE * timeout_s
            self._changed.notify_all()

    def wait_closed(self, deadline: float) -> bool:
        """Wait for the end until `time.monotonic()` is at the deadline; tell whether the sink got everything."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():  # stuck in a call of the sink; it is a daemon and dies with the process
            self._backlog.save()
            self._say_what_is_kept()
            return False
        return not self.backlog and not self._backlog.lost

    def _submit(self, operations: Sequence[Operation]) -> None:
        with self._changed:
            if self._closing:
                raise RunClosedError(f"sink {self.sink.name!r}: the run is closed; nothing more can be written")
            self._backlog.put(operations)

    def _main(self) -> None:
        self._backlog.load()
        if self._settle(lambda: self.sink.open(self._run)):
            with self._changed:
                self._ready.set()
                self._changed.notify_all()
            self._send()
            self._settle(lambda: self.sink.close(self._closing or "FINISHED"))
        self._backlog.save()
        self._say_what_is_kept()

    def _send(self) -> None:
        while self._wait_for_work():
            if not (self._flush_now() if self._flush_is_due() else self._send_one()):
                return

    def _wait_for_work(self) -> bool:
        """Return True when there is something to send or to flush, False when the thread is to end."""
        with self._changed:
            while True:
                if self._closing and (not self.backlog or time.monotonic() >= self._drain_until):
                    return False
                if self.backlog or self._flush_is_due():
                    return True
                self._changed.wait(self._time_to_flush_s())

    def _send_one(self) -> bool:
        operation = self._backlog.peek()
        if operation is None:  # another thread saved everything: the time of `close` is over
            return False
        settled = self._settle(lambda: operation.apply(self.sink), operation.weight)
        if settled:
            with self._changed:
                if self._flushed == self._backlog.finished:
                    self._unflushed_since = time.monotonic()
                self._backlog.pop()
        return settled

    def _flush_is_due(self) -> bool:
        finished = self._backlog.finished
        if self._flushed == finished:
            return False
        return self._flushed < self._flush_target <= finished or self._time_to_flush_s() == 0.0

    def _time_to_flush_s(self) -> float | None:
        if self._flushed == self._backlog.finished:
            return None
        interval_s = self.sink.flush_interval_s if isinstance(self.sink, Flushable) else 0.0
        return max(0.0, self._unflushed_since + interval_s - time.monotonic())

    def _flush_now(self) -> bool:
        if isinstance(self.sink, Flushable) and not self._settle(self.sink.flush):
            return False
        with self._changed:
            self._flushed = self._backlog.finished
            self._changed.notify_all()
        return True

    def _settle(self, call: Callable[[], None], weight: int = 0) -> bool:
        worked_before = self.error is None
        return self._retry.until_it_works(call, weight, lambda failures: self._gives_up(failures, worked_before))

    def _gives_up(self, failures: int, worked_before: bool) -> bool:
        if self._closing is None:
            return False
        return failures >= (MAX_FAILURES_AT_CLOSE if worked_before else 1) or time.monotonic() >= self._drain_until

    def _pause(self, delay_s: float) -> None:
        with self._changed:
            was_closing = self._closing
            self._changed.wait_for(lambda: self._hurry or self._closing is not was_closing, delay_s)
            self._hurry = False

    def _say_what_is_kept(self) -> None:
        if self.backlog:
            log.warning(
                "sink %r did not get %d points: they are kept in %s and sent first when the run is started again",
                self.sink.name,
                self.backlog,
                self._file,
            )
