"""SinkThread: one sink on a thread of its own, so that its failures and its slowness stay there; what the sink gets."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, cast, get_args

from trieye.config.metric import LogTarget
from trieye.exceptions import JournalError, ProcessingError, TrieyeError
from trieye.process.waiting import computed
from trieye.sinks.base import MAX_POINTS_PER_WRITE, Media, RunInfo, RunStatus, Shared, Sink, Source, Tracker
from trieye.sinks.bookmark import make_bookmark
from trieye.sinks.health import FIRST_DELAY_S, Lag, Retry, SinkHealth
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

log = logging.getLogger("trieye.sinks")

MAX_FAILURES_AT_CLOSE = 3
"""How often a call may fail once the run is closing; one chance only for a sink that did not work before."""
MAX_COUNTED = 200_000
"""Items that are looked at to say how many of them a sink has not got."""
DRAIN_SHARE = 0.8
"""Part of the time of `close` in which items are sent; the rest is for the sink's own close and for its cursor."""
_TARGETS: frozenset[str] = frozenset(get_args(LogTarget))


class Call(NamedTuple):
    """One call of a sink.

    Attributes:
        make: Makes the call.
        weight: How many points the call brings; 1 for any other operation.
        end: After the call the sink has every item before this index; None: a later call tells.
    """

    make: Callable[[], None]
    weight: int
    end: int | None


class Calls:
    """Turns items of the history into the calls that a sink gets.

    A sink named like a `LogTarget` gets the points whose `log_to` names it, any other sink every point. A sink gets no
    operation for which it has no method.

    Args:
        sink: The sink.
        run_dir: Where the files of the run are now.
    """

    def __init__(self, sink: Sink, run_dir: Path = Path()) -> None:
        self._sink, self._run_dir = sink, run_dir
        self._target = sink.name if sink.name in _TARGETS else None
        self._tracker = sink if isinstance(sink, Tracker) else None
        self._media = sink if isinstance(sink, Media) else None

    def meant(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points that are meant for the sink."""
        target = self._target
        return points if target is None else [point for point in points if target in point.log_to]

    def of(self, items: Sequence[Item], start: int, after: int) -> list[Call]:
        """Return the calls for items in order: one for points that follow each other, one for each operation.

        Args:
            items: What the history holds from `start` on, except what is superseded.
            start: Index at which they were read.
            after: Index to go on with.
        """
        made: list[tuple[int, int, Callable[[], None]]] = []
        place = start
        for kind, group in groupby(items, key=type):
            alike = list(group)
            if kind is Point:
                points = self.meant(cast("list[Point]", alike))
                if points:
                    made.append((place, len(points), partial(self._sink.write, points)))
            else:
                for number, operation in enumerate(alike, place):
                    if (make := self._of_operation(operation)) is not None:
                        made.append((number, 1, make))
            place += len(alike)
        # an item has its place as its index, unless something before it was left out
        starts: list[int | None] = [first if place == after else None for first, _, _ in made]
        ends = [*starts[1:], after]
        return [Call(make, weight, end) for (_, weight, make), end in zip(made, ends, strict=False)]

    def _of_operation(self, operation: Item) -> Callable[[], None] | None:
        tracker = self._tracker
        if isinstance(operation, Medium):
            return None if self._media is None else partial(self._media.log_media, operation)
        if tracker is None:
            return None
        match operation:
            case LogParams():
                return partial(tracker.log_params, operation.params)
            case SetTags():
                return partial(tracker.set_tags, operation.tags)
            case LogArtifact():
                return partial(self._log_artifact, tracker, operation)
        return None

    def _log_artifact(self, tracker: Tracker, operation: LogArtifact) -> None:
        path = self._run_dir / operation.path
        # a journal that somebody else made must not hand the user's own files to a tracker
        if not path.resolve().is_relative_to(self._run_dir.resolve()):
            raise ProcessingError(f"artifact {operation.path} lies outside of {self._run_dir}; it is left out")
        tracker.log_artifact(path, operation.artifact_path)


class SinkThread:
    """Brings the items of a run's history to a sink, on a daemon thread, which starts at once.

    The thread begins at the sink's cursor. Nobody ever waits for the sink: items that the sink does not take stay in
    the history, and the thread tries them again in order, after growing pauses; items that the sink has not got at the
    end come first in the next attempt.

    Args:
        sink: The sink, not yet open.
        run: What the sink may know.
        source: The history of the run.
        first_delay_s: Seconds of the first pause after a failure.

    Raises:
        JournalError: The journal, which has the sink's cursor, cannot be read.
    """

    def __init__(self, sink: Sink, run: RunInfo, source: Source, *, first_delay_s: float = FIRST_DELAY_S) -> None:
        self.sink = sink
        self._run = run
        self._source = source
        self._calls = Calls(sink, run.run_dir)
        self._bookmark = make_bookmark(sink, source, self._calls.meant)
        self._due: deque[Call] = deque()
        self._after = 0
        # guards `_lag` and the fields from `_num_wishes` to `_has_ended`, and wakes the thread, to which all other
        # fields belong; a thread that holds it takes the lock of the history's tail, and no other one
        self._changed = threading.Condition()
        self._retry = Retry(sink.name, first_delay_s)
        self._ready = threading.Event()
        self._lag = Lag()
        self._lag.note(source.end)
        self._num_wishes = self._num_seen = 0
        self._asked = self._answered = 0
        self._kept: int | None = None
        self._closing: RunStatus | None = None
        self._last = 0
        self._drain_until = 0.0
        self._has_ended = self._is_abandoned = False
        self._store_error: str | None = None
        self._thread = threading.Thread(target=self._main, name=f"trieye-sink-{sink.name}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> str | None:
        """Why the sink does not work at the moment, or None."""
        return self._retry.error or self._store_error

    @property
    def backlog(self) -> int:
        """Items of the history that the sink has not got."""
        return max(0, self._source.end - self._bookmark.index)

    @property
    def activity(self) -> object:
        """What changes as long as the sink gets on, imports or computes, or waits for others who write to its store."""
        of_store = self.sink.store_activity() if isinstance(self.sink, Shared) else None
        return self._bookmark.index, computed(self._thread.native_id), of_store

    @property
    def refused(self) -> int:
        """Points, and other operations, that the sink refused for good."""
        return self._retry.refused + int(getattr(self.sink, "refused", 0))

    @property
    def health(self) -> SinkHealth:
        """How the sink is now."""
        with self._changed:
            lag_s = self._lag.seconds(self._bookmark.index)
        return SinkHealth(self.sink.name, self.error, self.backlog, lag_s, self.refused, self._retry.is_gone)

    def wake(self) -> None:
        """Let the thread look for new items of the history; returns at once."""
        with self._changed:
            self._lag.note(self._source.end)
            self._changed.notify_all()

    def rewind(self, kept: int) -> None:
        """Tell the thread that the history has superseded everything from `kept` to its end; returns at once.

        The thread clears a `Resumable` sink that shows superseded items, and tells a `Rerunning` one of them.
        """
        with self._changed:
            self._kept = kept if self._kept is None else min(kept, self._kept)
            self._answered = -1  # a flush has to wait for all that comes again
            self._wish()

    def when_ready(self, timeout_s: float) -> bool:
        """Wait until the sink is open and tell whether it is."""
        return self._ready.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the sink has every item that the history holds now, and tell whether it has.

        The thread tries a sink that does not work at once, and again and again until the time is over.
        """
        return self.wait_flushed(self.request_flush(), time.monotonic() + timeout_s)

    def request_flush(self) -> int:
        """Ask for a flush without waiting and return what `wait_flushed` waits for."""
        with self._changed:
            self._asked = self._source.end
            self._wish()
            return self._asked

    def wait_flushed(self, target: int, deadline: float) -> bool:
        """Wait until the flush of `request_flush` is done or `time.monotonic()` is at the deadline."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._has_flushed(target) or self._has_ended, max(0.0, deadline - time.monotonic())
            )
            return self._has_flushed(target)

    def _has_flushed(self, target: int) -> bool:
        return self._ready.is_set() and self._answered >= target

    def close(self, status: RunStatus, timeout_s: float) -> bool:
        """Send what is left, close the sink and tell whether it got everything."""
        self.request_close(status, timeout_s)
        return self.wait_closed(time.monotonic() + timeout_s)

    def request_close(self, status: RunStatus, timeout_s: float) -> None:
        """Let the sink finish within about `timeout_s`, without waiting; the first status and the last time count.

        The thread does not send items that are appended to the history later.
        """
        with self._changed:
            if self._closing is None:
                self._closing = status
                self._last = self._source.end
            self._drain_until = time.monotonic() + DRAIN_SHARE * timeout_s
            self._wish()

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the end of the thread, and tell whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wait_closed(self, deadline: float) -> bool:
        """Wait for the end until `time.monotonic()` is at the deadline; tell whether the sink got everything."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and not self._is_abandoned:
            # stuck in a call of the sink; it is a daemon and dies with the process
            self._is_abandoned = True
            self._say_what_is_kept()
        return not self._is_abandoned and self._num_missing == 0

    def _wish(self) -> None:
        """Wake the thread, from a pause, too; the caller holds the lock."""
        self._num_wishes += 1
        self._changed.notify_all()

    def _main(self) -> None:
        if self._settle(lambda: self.sink.open(self._run)):
            with self._changed:
                self._ready.set()
                self._changed.notify_all()
            self._bring()
            self._settle(lambda: self.sink.close(self._closing or "FINISHED"))
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        if not self._is_abandoned:
            self._say_what_is_kept()

    def _bring(self) -> None:
        if not self._settle(self._bookmark.begin):
            return
        while (work := self._next_work()) is not None:
            if not work() and self._kept is None:
                break
        if not self._is_abandoned:  # otherwise the journal is closed, or another attempt writes to it
            if self._bookmark.time_to_flush_s() is not None:  # a flush of nothing always works, whatever the sink does
                self._settle(self._bookmark.flush)
            self._store_error = self._store()

    def _next_work(self) -> Callable[[], bool] | None:
        """Wait for something to do and return it; None when the thread is to end."""
        with self._changed:
            while True:
                if self._closing and time.monotonic() >= self._drain_until:
                    return None
                if self._kept is not None:
                    return self._rewind_now
                if self._flush_is_due():
                    return self._flush_now
                if self._bookmark.time_to_store_s() == 0.0:
                    return self._store_now
                if self._due or self._bookmark.index < (self._last if self._closing else self._source.end):
                    return self._deliver
                if self._closing:
                    return None
                times = self._bookmark.time_to_flush_s(), self._bookmark.time_to_store_s()
                self._changed.wait(min((time_s for time_s in times if time_s is not None), default=None))

    def _rewind_now(self) -> bool:
        with self._changed:
            kept, self._kept = self._kept or 0, None
        self._due.clear()  # some of it may be superseded
        settled = self._settle(lambda: self._bookmark.rewind(kept))
        with self._changed:
            self._lag.note(self._source.end)
        return settled

    def _deliver(self) -> bool:
        if not self._due:
            return self._settle(self._read)
        _, weight, end = self._due[0]
        self._bookmark.announce(self._after if end is None else end)
        if not self._settle(self._make_first, weight, or_rewound=True):
            return False
        self._due.popleft()
        self._bookmark.advance(end)
        return True

    def _make_first(self) -> None:
        self._due[0].make()

    def _read(self) -> None:
        start = self._bookmark.index
        items, after = self._source.read(start, MAX_POINTS_PER_WRITE)
        self._bookmark.follow()
        self._after = after
        self._due.extend(self._calls.of(items, start, after))
        if not self._due:
            self._bookmark.advance(after)

    def _flush_is_due(self) -> bool:
        asked = self._answered < self._asked <= self._bookmark.index
        return (asked and self._bookmark.is_exact) or self._bookmark.time_to_flush_s() == 0.0

    def _flush_now(self) -> bool:
        asked = self._asked
        if not self._settle(self._bookmark.flush, or_rewound=True):
            return False
        if self._answered < asked <= self._bookmark.index:
            self._store()
        with self._changed:
            if self._kept is None and asked <= self._bookmark.index:
                self._answered = max(self._answered, asked)
            self._changed.notify_all()
        return True

    def _store_now(self) -> bool:
        self._store()
        return True

    def _store(self) -> str | None:
        """Store the cursor, or return why the journal cannot: the cursor stays a little behind until another try."""
        try:
            self._bookmark.store()
        except (TrieyeError, OSError) as error:
            return f"how far it is cannot be stored: {error}"
        return None

    def _settle(self, call: Callable[[], None], weight: int = 0, *, or_rewound: bool = False) -> bool:
        worked_before = self._retry.error is None

        def attempt() -> None:
            self._num_seen = self._num_wishes
            call()

        def is_pointless() -> bool:
            return or_rewound and self._kept is not None

        def again(failures: int, delay_s: float) -> bool:
            if self._gives_up(failures, worked_before):
                return False
            with self._changed:
                self._changed.wait_for(lambda: is_pointless() or self._num_wishes != self._num_seen, delay_s)
                return not is_pointless()

        return self._retry.until_it_works(attempt, weight, again)

    def _gives_up(self, failures: int, worked_before: bool) -> bool:
        if self._closing is None:
            return False
        if self._retry.is_gone:
            return True
        return failures >= (MAX_FAILURES_AT_CLOSE if worked_before else 1) or time.monotonic() >= self._drain_until

    @property
    def _num_missing(self) -> int:
        return max(0, self._last - self._bookmark.index)

    def _what_is_missing(self) -> str:
        """Return in words how much that is meant for the sink it has not got."""
        num_points, num_all, place = 0, 0, self._bookmark.index
        try:
            while place < min(self._last, self._bookmark.index + MAX_COUNTED):
                items, after = self._source.read(place, min(MAX_POINTS_PER_WRITE, self._last - place))
                num_points += len(self._calls.meant([item for item in items if isinstance(item, Point)]))
                num_all += sum(call.weight for call in self._calls.of(items, place, after))
                place = after
        except JournalError:
            return f"{self._num_missing} points and others"
        more = "more than " if place < self._last else ""
        others = num_all - num_points
        return f"{more}{num_points} points" + (f" and {others} of the parameters, tags and files" if others else "")

    def _say_what_is_kept(self) -> None:
        if self._num_missing:
            log.warning(
                "sink %r did not get %s: kept in the history, and sent first when the run is started again %s",
                self.sink.name,
                self._what_is_missing(),
                # who closes a run makes the sinks of its config and those of packages, but not an object of the program
                "or closed with `trieye close`"
                if type(self.sink).__module__.startswith("trieye.")
                else "with this sink; `trieye close` can send it only if an installed package brings the sink",
            )
        elif self._store_error is not None:
            log.warning("sink %r got everything, but %s; the last of it comes again", self.sink.name, self._store_error)
