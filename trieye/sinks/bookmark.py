"""Bookmark: a sink's progress in the history of its run, and the sink's reaction to a rewind."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from trieye.exceptions import ProcessingError
from trieye.sinks.base import MAX_POINTS_PER_WRITE, Cursor, Flushable, HistoryReader, Rerunning, Resumable, Sink
from trieye.stats.point import Point

FROM_THE_BEGINNING = "from the beginning"
"""Position in a cursor that makes the sink clear its content and start from scratch."""

STORE_EVERY_S = 1.0
"""Cursor interval: a commit per write would cost more than delivering one second of points again after a crash."""

PointFilter = Callable[[Sequence[Point]], Sequence[Point]]


class _ResumableSink(Sink, Resumable, Protocol):
    """Intersection of both protocols."""


class _RerunningSink(Sink, Rerunning, Protocol):
    """Intersection of both protocols."""


class Bookmark:
    """Progress of a sink: updated in memory after each call, and stored in the journal about once a second.

    Only flushed progress is stored, so after a crash the journal's cursor may lag behind the sink but never leads it.
    Only the sink's thread calls the methods; other threads may read the attributes.

    Attributes:
        index: The sink has every item of the history before this index.
        touched: No item from this index on was ever passed to the sink.
        is_exact: Whether the sink has no item from `index` on.
    """

    def __init__(self, sink: Sink, source: HistoryReader) -> None:
        self._sink, self._source = sink, source
        self._buffer = sink if isinstance(sink, Flushable) else None
        fields = source.cursor(sink.name)
        self._initial = None if fields is None else Cursor(*fields)
        self.index = self.touched = self._flushed_index = self._first_index()
        self._stored_cursor = self._initial or Cursor()
        self.is_exact = True
        self._unflushed_since = self._tried_at = 0.0

    def _first_index(self) -> int:
        if self._initial is None:
            return self._source.end if getattr(self._sink, "live_only", False) else 0
        # an index beyond the end means a damaged history: the sink's content stays, and all later items are new
        return min(self._initial.index, self._source.end)

    def begin(self) -> None:
        """Bring the open sink to the bookmark's position; the thread retries the call until it succeeds."""

    def rewind(self, first_superseded: int) -> None:
        """Prepare the sink for the branch after a rewind that superseded the items from an index on; retried too."""

    def follow(self) -> None:
        """Prepare the sink for items read after a rewind for which `rewind` was not yet called; retried too."""

    def announce(self, end: int) -> None:
        """Record that the thread is about to pass the items before `end` to the sink."""
        self.touched = max(self.touched, end)

    def advance(self, end: int | None) -> None:
        """Record that the sink has every item before `end`; None: the index advances with a later call."""
        if self.is_exact and self._flushed_index == self.index:
            self._unflushed_since = time.monotonic()
        self.is_exact = end is not None
        if end is not None:
            self.index = end
            self.announce(end)

    def time_to_flush_s(self) -> float | None:
        """Return the seconds until the next flush is due; None if there is nothing to flush."""
        if self._flushed_index == self.index or not self.is_exact:
            return None
        interval_s = 0.0 if self._buffer is None else self._buffer.flush_interval_s
        return max(0.0, self._unflushed_since + interval_s - time.monotonic())

    def flush(self) -> None:
        """Flush the sink and record its position."""
        if self._flushed_index == self.index or not self.is_exact:
            return
        if self._buffer is not None:
            self._buffer.flush()
        self._note_position()
        self._flushed_index = self.index

    def time_to_store_s(self) -> float | None:
        """Return the seconds until `store` is due; None if the stored cursor is current."""
        if self._cursor() == self._stored_cursor:
            return None
        return max(0.0, self._tried_at + STORE_EVERY_S - time.monotonic())

    def store(self) -> None:
        """Store the flushed cursor in the journal.

        Raises:
            JournalError: The journal rejects the write at the moment.
        """
        cursor = self._cursor()
        if cursor != self._stored_cursor:
            self._tried_at = time.monotonic()
            self._source.set_cursor(self._sink.name, cursor)
            self._stored_cursor = cursor

    def _cursor(self) -> Cursor:
        return Cursor(self._flushed_index, self._position())

    def _position(self) -> str | None:
        return None

    def _note_position(self) -> None:
        pass


class ResumableBookmark(Bookmark):
    """The bookmark of a sink that can return to a position and so shows each point exactly once.

    The cursor also stores the history's branch, so that the next attempt detects a rewind that a crash hid from the
    sink.
    """

    def __init__(self, sink: _ResumableSink, source: HistoryReader) -> None:
        self._resumable = sink
        self._sink_position: str | None = None
        self._branch = 0
        super().__init__(sink, source)

    def begin(self) -> None:
        """Return to the cursor's position, or clear the sink if that is impossible."""
        branch, position, is_usable = self._source.branch, None, True
        if self._initial is not None:
            stored_branch, space, position = (self._initial.position or "").partition(" ")
            is_usable = stored_branch + space == f"{branch} "
        elif not self._is_clearable:  # the sink's progress is unknown
            self.index, is_usable = self._source.end, False
        if is_usable and self._resumable.resume(position):
            self._sink_position = position
        elif self._is_clearable or (self._initial and self._initial.position == FROM_THE_BEGINNING):
            self._clear()
        else:
            self._append()
        self._branch = branch

    def rewind(self, first_superseded: int) -> None:
        """Clear the sink if it shows superseded items, or items from its index on; all items are delivered again."""
        branch = self._source.branch
        if self.touched > first_superseded or not self.is_exact:
            (self._clear if self._is_clearable else self._append)()
        self._branch = branch

    @property
    def _is_clearable(self) -> bool:
        """Whether the history can restore everything that the sink shows."""
        return self._source.is_whole or getattr(self._resumable, "is_empty", False)

    def _append(self) -> None:
        """Let the sink append to its content; the next flush determines its position."""
        self.touched = self._flushed_index = self.index
        self.is_exact = True
        self._sink_position = None

    def _clear(self) -> None:
        self._resumable.clear()
        self.index = self.touched = self._flushed_index = 0
        self.is_exact = True
        self._sink_position = self._resumable.position()

    def _position(self) -> str | None:
        return None if self._sink_position is None else f"{self._branch} {self._sink_position}"

    def _note_position(self) -> None:
        self._sink_position = self._resumable.position()


class RerunningBookmark(Bookmark):
    """The bookmark of a sink that cannot remove points and therefore skips points that it already shows.

    Such a sink also receives all superseded points. Its content therefore depends neither on a crash between a write
    and the storage of the cursor, nor on an outage of the sink during a branch.
    """

    def __init__(self, sink: _RerunningSink, source: HistoryReader, select: PointFilter) -> None:
        self._rerunning = sink
        self._noted_branch = 0
        super().__init__(sink, source)
        self._select = select

    def begin(self) -> None:
        """Report superseded points to the sink, and deliver those it has missed.

        A sink that is empty, because the output of earlier attempts was deleted, starts from scratch, with the
        superseded points: a later rewind may restore them.
        """
        if self._rerunning.is_empty:
            self.index = self.touched = self._flushed_index = 0
        self.follow()

    def rewind(self, first_superseded: int) -> None:  # noqa: ARG002 - all superseded points count
        """Report newly superseded points to the sink, and deliver those it has missed."""
        self.follow()

    def follow(self) -> None:
        """Report newly superseded points to the sink, and deliver those it has missed."""
        while self._source.branch != self._noted_branch:
            self._note_branch(self._source.branch)

    def _note_branch(self, branch: int) -> None:
        num_shown = sum(1 for _ in self._source.superseded(self.index))
        self._rerunning.note_superseded(self._selected(self._source.superseded(self.index)))
        missing_points = self._selected(islice(self._source.superseded(self._source.end), num_shown, None))
        for points in _distinct_batches(missing_points):
            if self._source.branch != branch:  # another rewind: the counted points have changed
                return
            with suppress(ProcessingError):  # the sink may have refused it before; a superseded point is no loss
                self._sink.write(points)
            self._rerunning.note_superseded(points)
        self._noted_branch = branch

    def _selected(self, points: Iterable[Point]) -> Iterator[Point]:
        return (point for point in points if self._select([point]))


def _distinct_batches(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Yield points in batches without duplicates: a sink would merge equal points of different branches."""
    batch: dict[tuple[str, int, float], Point] = {}
    for point in points:
        key = point.metric, point.step, point.value
        if key in batch or len(batch) == MAX_POINTS_PER_WRITE:
            yield list(batch.values())
            batch.clear()
        batch[key] = point
    if batch:
        yield list(batch.values())


def make_bookmark(sink: Sink, source: HistoryReader, select: PointFilter) -> Bookmark:
    """Return the bookmark of a sink at its stored cursor.

    Args:
        sink: The sink.
        source: The history of the run.
        select: Returns the subset of points that are routed to the sink.

    Raises:
        JournalError: The journal cannot be read.
    """
    if isinstance(sink, Resumable):
        return ResumableBookmark(sink, source)
    if isinstance(sink, Rerunning):
        return RerunningBookmark(sink, source, select)
    return Bookmark(sink, source)
