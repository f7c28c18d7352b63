"""Bookmark: how far a sink is in the history of its run, and what a rewind of the run means for the sink."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Protocol

from trieye.exceptions import ProcessingError
from trieye.sinks.base import MAX_POINTS_PER_WRITE, Cursor, Flushable, Rerunning, Resumable, Sink, Source
from trieye.stats.point import Point

FROM_THE_BEGINNING = "from the beginning"
"""Position of a sink that is to begin anew, whatever it shows."""

STORE_EVERY_S = 1.0
"""A commit for each write would cost more than a second of points that come again after a kill."""

Meant = Callable[[Sequence[Point]], Sequence[Point]]


class _ResumableSink(Sink, Resumable, Protocol):
    """Both."""


class _RerunningSink(Sink, Rerunning, Protocol):
    """Both."""


class Bookmark:
    """How far a sink is: known in memory after each call, and in the journal after a flush, about once a second.

    So after a kill the journal's cursor lies behind what the sink has got, never ahead of it. Only the thread of the
    sink calls the methods; other threads may read the attributes.

    Attributes:
        index: The sink has every item of the history before this index.
        touched: The sink was never handed an item from this index on.
        is_exact: Whether the sink has no item from `index` on.
    """

    def __init__(self, sink: Sink, source: Source) -> None:
        self._sink, self._source = sink, source
        self._buffer = sink if isinstance(sink, Flushable) else None
        held = source.cursor(sink.name)
        self._held = None if held is None else Cursor(*held)
        self.index = self.touched = self._flushed = self._first()
        self._stored = self._held or Cursor()
        self.is_exact = True
        self._unflushed_since = self._tried_at = 0.0

    def _first(self) -> int:
        if self._held is None:
            return self._source.end if getattr(self._sink, "live_only", False) else 0
        # beyond the end it is only if the history was damaged: what it showed stays, and what comes now is new
        return min(self._held.index, self._source.end)

    def begin(self) -> None:
        """Bring the sink, which is open, to where the bookmark is; the thread repeats the call until it works."""

    def rewind(self, kept: int) -> None:
        """Prepare the sink for the branch after a rewind, which superseded the items from `kept`; repeated likewise."""

    def follow(self) -> None:
        """Prepare the sink for items that were read after a rewind which no `rewind` told of; repeated likewise."""

    def announce(self, end: int) -> None:
        """Note that the thread is about to hand the items before `end` to the sink."""
        self.touched = max(self.touched, end)

    def advance(self, end: int | None) -> None:
        """Note that the sink has every item before `end`; None: it has more than before, a later call says which."""
        if self.is_exact and self._flushed == self.index:
            self._unflushed_since = time.monotonic()
        self.is_exact = end is not None
        if end is not None:
            self.index = end
            self.announce(end)

    def time_to_flush_s(self) -> float | None:
        """Return after how many seconds the sink is to be flushed; None if there is nothing to flush."""
        if self._flushed == self.index or not self.is_exact:
            return None
        interval_s = 0.0 if self._buffer is None else self._buffer.flush_interval_s
        return max(0.0, self._unflushed_since + interval_s - time.monotonic())

    def flush(self) -> None:
        """Let the sink hand over what it holds back."""
        if self._flushed == self.index or not self.is_exact:
            return
        if self._buffer is not None:
            self._buffer.flush()
        self._note_position()
        self._flushed = self.index

    def time_to_store_s(self) -> float | None:
        """Return after how many seconds `store` is to be called; None if the journal knows everything."""
        if self._cursor() == self._stored:
            return None
        return max(0.0, self._tried_at + STORE_EVERY_S - time.monotonic())

    def store(self) -> None:
        """Write down in the journal what was flushed.

        Raises:
            JournalError: That is not possible now.
        """
        cursor = self._cursor()
        if cursor != self._stored:
            self._tried_at = time.monotonic()
            self._source.set_cursor(self._sink.name, cursor)
            self._stored = cursor

    def _cursor(self) -> Cursor:
        return Cursor(self._flushed, self._position())

    def _position(self) -> str | None:
        return None

    def _note_position(self) -> None:
        pass


class ResumableBookmark(Bookmark):
    """The bookmark of a sink that can go back to a position, so that the sink shows each point exactly once.

    The cursor holds the history's branch beside the position. So the next attempt sees a rewind of which the sink never
    heard because the process died.
    """

    def __init__(self, sink: _ResumableSink, source: Source) -> None:
        self._resumable = sink
        self._place: str | None = None
        self._branch = 0
        super().__init__(sink, source)

    def begin(self) -> None:
        """Go back to the position of the cursor, or begin anew if that cannot be done."""
        branch, place, is_usable = self._source.branch, None, True
        if self._held is not None:
            known, space, place = (self._held.position or "").partition(" ")
            is_usable = known + space == f"{branch} "
        elif not self._can_come_again:  # nobody knows how far it was
            self.index, is_usable = self._source.end, False
        if is_usable and self._resumable.resume(place):
            self._place = place
        elif self._can_come_again or (self._held and self._held.position == FROM_THE_BEGINNING):
            self._clear()
        else:
            self._keep()
        self._branch = branch

    def rewind(self, kept: int) -> None:
        """Clear the sink if it shows superseded items, or more items than its index says: all items come again."""
        branch = self._source.branch
        if self.touched > kept or not self.is_exact:
            (self._clear if self._can_come_again else self._keep)()
        self._branch = branch

    @property
    def _can_come_again(self) -> bool:
        """Whether the sink can be cleared: the history has every item that the sink shows."""
        return self._source.is_whole or getattr(self._resumable, "is_empty", False)

    def _keep(self) -> None:
        """Let the sink go on behind everything it shows; the next flush tells its position."""
        self.touched = self._flushed = self.index
        self.is_exact = True
        self._place = None

    def _clear(self) -> None:
        self._resumable.clear()
        self.index = self.touched = self._flushed = 0
        self.is_exact = True
        self._place = self._resumable.position()

    def _position(self) -> str | None:
        return None if self._place is None else f"{self._branch} {self._place}"

    def _note_position(self) -> None:
        self._place = self._resumable.position()


class RerunningBookmark(Bookmark):
    """The bookmark of a sink that cannot take points back, and therefore leaves out points that it has shown before.

    Such a sink gets superseded points, too. So what it has shown does not depend on whether the process died between a
    write and the storing of the cursor, or whether the sink was away during a branch: it has shown all of them.
    """

    def __init__(self, sink: _RerunningSink, source: Source, meant: Meant) -> None:
        self._rerunning = sink
        self._told_branch = 0
        super().__init__(sink, source)
        self._is_meant = meant

    def begin(self) -> None:
        """Tell the sink what was superseded, and give it what it has not shown of that.

        A sink that shows nothing, because what earlier attempts wrote was deleted, begins at the beginning.
        """
        if self._rerunning.is_empty:
            self.index = self.touched = self._flushed = 0
            self._told_branch = self._source.branch
        self.follow()

    def rewind(self, kept: int) -> None:  # noqa: ARG002 - all that was superseded counts
        """Tell the sink what was superseded since, and give it what it has not shown of that."""
        self.follow()

    def follow(self) -> None:
        """Tell the sink what was superseded since, and give it what it has not shown of that."""
        while self._source.branch != self._told_branch:
            self._tell(self._source.branch)

    def _tell(self, branch: int) -> None:
        num_shown = sum(1 for _ in self._source.superseded(self.index))
        self._rerunning.note_superseded(self._meant(self._source.superseded(self.index)))
        missing = self._meant(islice(self._source.superseded(self._source.end), num_shown, None))
        for points in _unequal(missing):
            if self._source.branch != branch:  # by another rewind: other points than those counted
                return
            with suppress(ProcessingError):  # it may have been refused before, and is of no use any more
                self._sink.write(points)
            self._rerunning.note_superseded(points)
        self._told_branch = branch

    def _meant(self, points: Iterable[Point]) -> Iterator[Point]:
        return (point for point in points if self._is_meant([point]))


def _unequal(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Yield points in parts, none of them with two that a sink takes for the same: they are of different branches."""
    part: dict[tuple[str, int, float], Point] = {}
    for point in points:
        key = point.metric, point.step, point.value
        if key in part or len(part) == MAX_POINTS_PER_WRITE:
            yield list(part.values())
            part.clear()
        part[key] = point
    if part:
        yield list(part.values())


def make_bookmark(sink: Sink, source: Source, meant: Meant) -> Bookmark:
    """Return the bookmark of a sink, as the journal remembers it.

    Args:
        sink: The sink.
        source: The history of the run.
        meant: Returns those of some points that the sink is to get.

    Raises:
        JournalError: The journal cannot be read.
    """
    if isinstance(sink, Resumable):
        return ResumableBookmark(sink, source)
    if isinstance(sink, Rerunning):
        return RerunningBookmark(sink, source, meant)
    return Bookmark(sink, source)
