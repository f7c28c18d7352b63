"""SinkThread: delivers items to one sink on a dedicated thread, isolating its failures and its latency."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast, get_args
from urllib.parse import quote

from trieye.config.metric import LogTarget
from trieye.exceptions import ProcessingError, TrieyeError
from trieye.process.waiting import computed
from trieye.sinks.base import (
    MAX_POINTS_PER_WRITE,
    ArtifactSink,
    Filtering,
    HistoryReader,
    MediaSink,
    RunInfo,
    RunStatus,
    SingleWriterSink,
    Sink,
    Tracker,
)
from trieye.sinks.bookmark import make_bookmark
from trieye.sinks.health import FIRST_DELAY_S, Lag, Retry, SinkHealth
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

MAX_FAILURES_AT_CLOSE = 3
"""Attempts per call while the run closes; a sink that was already failing gets one."""
DRAIN_SHARE = 0.8
"""Fraction of the close timeout for delivering items; the rest is for the sink's `close` and its cursor."""
COPIES_DIRECTORY = "artifacts"
"""Directory of the run that contains the copies of logged files, each in a subdirectory."""
PENDING_PREFIX = ".pending-"
"""Prefix of the names of pending marks; see `pending_mark`."""
_TARGETS: frozenset[str] = frozenset(get_args(LogTarget))


def pending_mark(copy: Path, sink_name: str) -> Path:
    """Return the path of the file that exists beside a copy until the sink has stored the copy."""
    return copy.parent / f"{PENDING_PREFIX}{quote(sink_name, safe='')}"


class SinkCall(NamedTuple):
    """A pending call to a sink.

    Attributes:
        make: Makes the call.
        weight: Number of points in the call; 1 for any other operation.
        end: After the call the sink has every item before this index; None: a later call carries the index.
    """

    make: Callable[[], None]
    weight: int
    end: int | None


class SinkCalls:
    """Converts items of the history into calls to a sink.

    A sink whose name is a `LogTarget` receives the points whose `log_to` names it, any other sink every point. An
    operation is omitted if the sink has no method for it.

    Args:
        sink: The sink.
        run_dir: Current directory of the run.
    """

    def __init__(self, sink: Sink, run_dir: Path = Path()) -> None:
        self._sink, self._run_dir = sink, run_dir
        self._target = sink.name if sink.name in _TARGETS else None
        self._tracker = sink if isinstance(sink, Tracker) else None
        self._artifacts = sink if isinstance(sink, ArtifactSink) else None
        self._media = sink if isinstance(sink, MediaSink) else None

    def select(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points that are routed to the sink."""
        target = self._target
        return points if target is None else [point for point in points if target in point.log_to]

    def convert(self, items: Sequence[Item], start: int, end: int) -> list[SinkCall]:
        """Return the calls for items, in order: one for consecutive points, one for each operation.

        Args:
            items: Items of the history in [start, end) without superseded ones.
            start: Start index of the read.
            end: Index of the next read.
        """
        calls: list[tuple[int, int, Callable[[], None]]] = []
        index = start
        for kind, group in groupby(items, key=type):
            operations = list(group)
            if kind is Point:
                points = self.select(cast("list[Point]", operations))
                if points:
                    calls.append((index, len(points), partial(self._sink.write, points)))
            else:
                for item_index, operation in enumerate(operations, index):
                    if (call := self._operation_call(operation)) is not None:
                        calls.append((item_index, 1, call))
            index += len(operations)
        # counted indices match the history only if no superseded item was omitted
        starts: list[int | None] = [first if index == end else None for first, _, _ in calls]
        ends = [*starts[1:], end]
        return [SinkCall(call, weight, call_end) for (_, weight, call), call_end in zip(calls, ends, strict=False)]

    def _operation_call(self, operation: Item) -> Callable[[], None] | None:
        if isinstance(operation, Medium):
            return None if self._media is None else partial(self._media.log_media, operation)
        if isinstance(operation, LogArtifact):
            return None if self._artifacts is None else partial(self._log_artifact, self._artifacts, operation)
        tracker = self._tracker
        if tracker is None:
            return None
        match operation:
            case LogParams():
                return partial(tracker.log_params, operation.params)
            case SetTags():
                return partial(tracker.set_tags, operation.tags)
        return None

    def _log_artifact(self, sink: ArtifactSink, operation: LogArtifact) -> None:
        path = self._run_dir / operation.path
        # a foreign journal must not upload the user's files to a tracker
        if not path.resolve().is_relative_to(self._run_dir.resolve()):
            raise ProcessingError(f"artifact {operation.path} is outside the run directory {self._run_dir}; skipped")
        is_copy = path.parent.parent == self._run_dir / COPIES_DIRECTORY and path.exists()
        mark = pending_mark(path, self._sink.name)
        if is_copy:
            mark.touch()
        sink.log_artifact(path, operation.artifact_path)
        if is_copy:  # a refused copy keeps its mark, and so waits for `trieye rebuild`
            mark.unlink(missing_ok=True)


class SinkThread:
    """Delivers the items of a run's history to a sink on a daemon thread, which the constructor starts.

    The thread starts at the sink's cursor. A sink never blocks its producers: undelivered items stay in the history,
    and the thread retries them in order with exponential backoff; the next attempt delivers the rest.

    Args:
        sink: The sink, not yet open.
        run: The run, passed to `Sink.open`.
        source: The history of the run.
        first_delay_s: Seconds between the first failure and the first retry.

    Raises:
        JournalError: The journal, which stores the sink's cursor, cannot be read.
    """

    def __init__(
        self, sink: Sink, run: RunInfo, source: HistoryReader, *, first_delay_s: float = FIRST_DELAY_S
    ) -> None:
        self.sink = sink
        self._run = run
        self._source = source
        self._calls = SinkCalls(sink, run.run_dir)
        self._bookmark = make_bookmark(sink, source, self._calls.select)
        self._pending: deque[SinkCall] = deque()
        self._read_end = 0
        # guards `_lag` and the fields from `_num_requests` to `_has_ended`, and wakes the thread, which owns all other
        # fields; a thread that holds it may acquire the lock of the history's tail, and no other lock
        self._changed = threading.Condition()
        self._retry = Retry(sink.name, first_delay_s)
        self._ready_event = threading.Event()
        self._lag = Lag()
        self._lag.note(source.end)
        self._num_requests = self._num_requests_seen = 0
        self._flush_target = self._flushed_end = 0
        self._rewind_start: int | None = None
        self._close_status: RunStatus | None = None
        self._close_end = 0
        self._drain_until = 0.0
        self._has_ended = self._is_abandoned = False
        self._store_error: str | None = None
        self._thread = threading.Thread(target=self._main, name=f"trieye-sink-{sink.name}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> str | None:
        """The current error, or None if the sink works."""
        return self._retry.error or self._store_error

    @property
    def backlog(self) -> int:
        """Number of items of the history that the sink has not received."""
        return max(0, self._source.end - self._bookmark.index)

    @property
    def activity(self) -> object:
        """A value that changes while the sink delivers, imports or computes, or other processes write to its store."""
        store_activity = self.sink.store_activity() if isinstance(self.sink, SingleWriterSink) else None
        return self._bookmark.index, computed(self._thread.native_id), store_activity

    @property
    def refused(self) -> int:
        """Number of points and other operations that the sink rejected permanently."""
        return self._retry.refused + (self.sink.num_refused if isinstance(self.sink, Filtering) else 0)

    @property
    def health(self) -> SinkHealth:
        """The current health of the sink."""
        with self._changed:
            lag_s = self._lag.seconds(self._bookmark.index)
        return SinkHealth(self.sink.name, self.error, self.backlog, lag_s, self.refused, self._retry.is_gone)

    def wake(self) -> None:
        """Make the thread check the history for new items; returns immediately."""
        with self._changed:
            self._lag.note(self._source.end)
            self._changed.notify_all()

    def rewind(self, first_superseded: int) -> None:
        """Notify the thread that a rewind superseded all items from an index on; returns immediately.

        The thread clears a `Resumable` sink that shows superseded items, and reports them to a `Rerunning` one.
        """
        with self._changed:
            last_start = self._rewind_start
            self._rewind_start = first_superseded if last_start is None else min(first_superseded, last_start)
            self._flushed_end = -1  # a flush must wait until all items are delivered again
            self._request()

    def when_ready(self, timeout_s: float) -> bool:
        """Wait until the sink is open, and return whether it is."""
        return self._ready_event.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sink has every current item of the history, and return whether it has.

        The thread retries a failing sink immediately, then repeatedly until the timeout.
        """
        return self.wait_flushed(self.request_flush(), time.monotonic() + timeout_s)

    def request_flush(self) -> int:
        """Request a flush without waiting, and return the target for `wait_flushed`."""
        with self._changed:
            self._flush_target = self._source.end
            self._request()
            return self._flush_target

    def wait_flushed(self, target: int, deadline: float) -> bool:
        """Wait for a requested flush until `time.monotonic()` reaches the deadline; return whether it is done."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_flushed(target) or self._has_ended, max(0.0, deadline - time.monotonic())
            )
            return self._has_flushed(target)

    def _has_flushed(self, target: int) -> bool:
        return self._ready_event.is_set() and self._flushed_end >= target

    def close(self, status: RunStatus, timeout_s: float) -> bool:
        """Deliver remaining items, close the sink and return whether it got everything."""
        self.request_close(status, timeout_s)
        return self.wait_closed(time.monotonic() + timeout_s)

    def request_close(self, status: RunStatus, timeout_s: float) -> None:
        """Request that the sink finishes within about `timeout_s`, without waiting.

        Of several requests the first status and the last timeout count. Items appended later are not delivered.
        """
        with self._changed:
            if self._close_status is None:
                self._close_status = status
                self._close_end = self._source.end
            self._drain_until = time.monotonic() + DRAIN_SHARE * timeout_s
            self._request()

    def has_ended(self, timeout_s: float) -> bool:
        """Join the thread, and return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_closed(self, deadline: float) -> bool:
        """Join the thread until `time.monotonic()` reaches the deadline; return whether the sink got everything."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and not self._is_abandoned:
            # stuck in a call to the sink; a daemon thread ends with the process
            self._is_abandoned = True
            self._report_undelivered()
        return not self._is_abandoned and self._num_undelivered == 0

    def _request(self) -> None:
        """Wake the thread, even during a retry delay; the caller holds the lock."""
        self._num_requests += 1
        self._changed.notify_all()

    def _main(self) -> None:
        if self._call_sink(lambda: self.sink.open(self._run)):
            with self._changed:
                self._ready_event.set()
                self._changed.notify_all()
            self._deliver_all()
            self._call_sink(lambda: self.sink.close(self._close_status or "FINISHED"))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        if not self._is_abandoned:
            self._report_undelivered()

    def _deliver_all(self) -> None:
        if not self._call_sink(self._bookmark.begin):
            return
        while (work := self._next_work()) is not None:
            if not work() and self._rewind_start is None:
                break
        if not self._is_abandoned:  # otherwise the journal is closed, or another attempt writes to it
            if self._bookmark.time_to_flush_s() is not None:  # an empty flush succeeds even on a failing sink
                self._call_sink(self._bookmark.flush)
            self._store_error = self._store()

    def _next_work(self) -> Callable[[], bool] | None:
        """Wait for the next unit of work and return it; None when the thread should exit."""
        with self._changed:
            while True:
                if self._close_status and time.monotonic() >= self._drain_until:
                    return None
                if self._rewind_start is not None:
                    return self._rewind_now
                if self._flush_is_due():
                    return self._flush_now
                if self._bookmark.time_to_store_s() == 0.0:
                    return self._store_now
                if self._pending or self._bookmark.index < (
                    self._close_end if self._close_status else self._source.end
                ):
                    return self._deliver
                if self._close_status:
                    return None
                times = self._bookmark.time_to_flush_s(), self._bookmark.time_to_store_s()
                self._changed.wait(min((time_s for time_s in times if time_s is not None), default=None))

    def _rewind_now(self) -> bool:
        with self._changed:
            start, self._rewind_start = self._rewind_start or 0, None
        self._pending.clear()  # some calls may contain superseded items
        is_done = self._call_sink(lambda: self._bookmark.rewind(start))
        with self._changed:
            self._lag.note(self._source.end)
        return is_done

    def _deliver(self) -> bool:
        if not self._pending:
            return self._call_sink(self._read)
        make_call, weight, end = self._pending[0]
        self._bookmark.announce(self._read_end if end is None else end)
        if not self._call_sink(make_call, weight, until_rewind=True):
            return False
        self._pending.popleft()
        self._bookmark.advance(end)
        return True

    def _read(self) -> None:
        start = self._bookmark.index
        items, end = self._source.read(start, MAX_POINTS_PER_WRITE)
        self._bookmark.follow()
        self._read_end = end
        self._pending.extend(self._calls.convert(items, start, end))
        if not self._pending:
            self._bookmark.advance(end)

    def _flush_is_due(self) -> bool:
        is_requested = self._flushed_end < self._flush_target <= self._bookmark.index
        return (is_requested and self._bookmark.is_exact) or self._bookmark.time_to_flush_s() == 0.0

    def _flush_now(self) -> bool:
        target = self._flush_target
        if not self._call_sink(self._bookmark.flush, until_rewind=True):
            return False
        if self._flushed_end < target <= self._bookmark.index:
            self._store()
        with self._changed:
            if self._rewind_start is None and target <= self._bookmark.index:
                self._flushed_end = max(self._flushed_end, target)
            self._changed.notify_all()
        return True

    def _store_now(self) -> bool:
        self._store()
        return True

    def _store(self) -> str | None:
        """Store the cursor and return the error if that fails: the stored cursor lags until the next attempt."""
        try:
            self._bookmark.store()
        except (TrieyeError, OSError) as error:
            return f"its cursor cannot be stored: {error}"
        return None

    def _call_sink(self, call: Callable[[], None], weight: int = 0, *, until_rewind: bool = False) -> bool:
        """Call the sink with retries; return False if the close, or with `until_rewind` a rewind, aborted the call."""
        worked_before = self._retry.error is None

        def attempt() -> None:
            self._num_requests_seen = self._num_requests
            call()

        def is_obsolete() -> bool:
            return until_rewind and self._rewind_start is not None

        def wait_to_retry(failures: int, delay_s: float) -> bool:
            if self._should_abort(failures, worked_before):
                return False
            with self._changed:
                self._changed.wait_for(lambda: is_obsolete() or self._num_requests != self._num_requests_seen, delay_s)
                return not is_obsolete()

        return self._retry.run(attempt, weight, wait_to_retry)

    def _should_abort(self, failures: int, worked_before: bool) -> bool:
        if self._close_status is None:
            return False
        if self._retry.is_gone:
            return True
        return failures >= (MAX_FAILURES_AT_CLOSE if worked_before else 1) or time.monotonic() >= self._drain_until

    @property
    def _num_undelivered(self) -> int:
        return max(0, self._close_end - self._bookmark.index)

    def _report_undelivered(self) -> None:
        if self._num_undelivered:
            log.warning(
                # `trieye close` creates the sinks of the config and of packages, but cannot create the program's own
                "sink %r did not receive the last %d items (points, parameters, tags, files): they are stored in the "
                "history and delivered when the run is restarted with this sink, or closed with `trieye close` if the "
                "config or an installed package provides the sink",
                self.sink.name,
                self._num_undelivered,
            )
        elif self._store_error is not None:
            log.warning(
                "sink %r received everything, but %s; its latest items will be delivered again",
                self.sink.name,
                self._store_error,
            )
