"""History: every point and operation of a run, each with an index.

A new item is in memory first. The next snapshot takes it into a chunk of the journal, and `roll` moves chunks into a
Parquet file. A reader asks for an index, and the history finds the item in whichever of the three places it is.
"""

import logging
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.history.columns import BLANK, Columns, cut
from trieye.history.store import Store
from trieye.history.table import iter_history as iter_history  # noqa: PLC0414 - for whoever reads a run
from trieye.history.table import read_history as read_history  # noqa: PLC0414 - the same
from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.journal.journal import Chunk, Journal
from trieye.journal.ranges import Range, mask, merged, overlapping, uncovered
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

KEPT_ITEMS = 50_000
"""Items that stay in memory, for readers that keep up."""

KEPT_BYTES = 16 << 20
"""Bytes of the operations among them."""

CHUNK_ITEMS = 10_000
CHUNK_BYTES = 4 << 20

_OF_THE_RUN = (LogParams, SetTags, LogArtifact)
"""What a rewind does not take back: it belongs to the run, not to a branch of it."""


class Series(NamedTuple):
    """The points, or the media, of one name.

    Attributes:
        steps: `[n]`.
        indices: `[n]`, ascending; those of one processing pass are ordered by step.
        times: `[n]`, Unix time in seconds.
    """

    steps: NDArray[np.int64]
    indices: NDArray[np.int64]
    times: NDArray[np.float64]

    def take(self, rows: NDArray[np.intp]) -> "Series":
        """Return some rows in their order."""
        return Series(self.steps[rows], self.indices[rows], self.times[rows])


class History:
    """The items of a run. One thread at a time appends and commits; any number of threads read.

    Args:
        journal: Keeps the chunks, and remembers which files there are.
        directory: Where the files belong; None: everything stays in the journal.

    Attributes:
        dead: Indices that no checkpoint brings back: the journal had lost them when the run went on from a checkpoint.

    Raises:
        OSError: The directory cannot be read.
    """

    def __init__(self, journal: Journal, directory: Path | None) -> None:
        self._journal = journal
        self._store = Store(journal, directory)
        self._store.settle()
        self._shown_to = journal.shown_to
        self._gap = min(journal.num_lost, 1)
        self.dead: Sequence[Range] = ()
        self._superseded = journal.superseded()
        self._branch = _branch_of(self._superseded)
        self._is_superseded_saved = True
        self._chunks: list[Chunk] = []
        self._unknown: set[int] = set()
        self._first = self._stored_end = self._store.end
        self._items: list[Item] = []  # those in memory, from `_first` on; a blank in the place of one that is lost
        self._sizes: list[tuple[int, int]] = []  # index and bytes of each operation among them
        self._lock = threading.Lock()  # guards these four; a thread that holds it takes no other lock

    @property
    def end(self) -> int:
        """Index after the last item."""
        with self._lock:
            return self._first + len(self._items)

    @property
    def next_index(self) -> int:
        """Index for the next item, behind every item that a sink has shown, also those that the journal then lost.

        Where the journal has just lost records, at least one index stays unused: nobody knows which items they gave.
        """
        return max(self.end + self._gap, self._shown_to)

    @property
    def num_pending(self) -> int:
        """Items that are in memory only."""
        return self.end - self._stored_end

    @property
    def num_lost(self) -> int:
        """Items that a reader has found missing, damaged, or of a kind that only a later version knows."""
        return sum(end - first for first, end in self._store.lost) + len(self._unknown)

    @property
    def is_whole(self) -> bool:
        """Whether a reader gets every item that no rewind has superseded, as far as known."""
        surviving = uncovered(0, self.end, self._superseded)
        return not self.dead and not any(overlapping(*span, self._store.lost) for span in surviving)

    @property
    def branch(self) -> int:
        """Number of the present branch: it changes with every rewind; 0 before the first one."""
        return self._branch

    # writing

    def append(self, items: Sequence[Item]) -> None:
        """Add items with the next indices; readers see them at once."""
        operations = [(offset, item) for offset, item in enumerate(items) if not isinstance(item, Point)]
        sizes = [(offset, len(to_bytes(item))) for offset, item in operations]
        with self._lock:
            end = self._first + len(self._items)
            self._items += items
            self._sizes += [(end + offset, size) for offset, size in sizes]

    def skip_to(self, index: int) -> None:
        """Make sure that the next item has this index or a higher one; the indices between count as lost."""
        if index <= self.end:
            return
        self._store.note_lost((self.end, index), "journal", "a snapshot or a sink has seen more than is stored")
        with self._lock:
            end = self._first + len(self._items)
            if self._stored_end < end:
                self._items += [BLANK] * (index - end)
            else:
                self._items, self._sizes = [], []
                self._first = self._stored_end = index

    def pending(self) -> list[Chunk]:
        """Return chunks of the items that only the memory has, for `Journal.commit`; call `committed` after it."""
        with self._lock:
            first, end = self._stored_end, self._first + len(self._items)
            items = self._items[first - self._first :]
            sizes = [(index, size) for index, size in self._sizes if index >= first]
        self._chunks = []
        for low, high in uncovered(first, end, self._store.lost):
            start = low
            while start < high:
                stop = cut((start, min(high, start + CHUNK_ITEMS)), sizes, max_bytes=CHUNK_BYTES)
                columns = Columns.from_items(start, items[start - first : stop - first])
                self._chunks.append(Chunk(start, stop, columns.to_chunk()))
                start = stop
        return self._chunks

    def committed(self, end: int) -> None:
        """Take note that the journal has all items before an index, and forget the oldest of those in memory."""
        self._is_superseded_saved = True
        self._store.add([chunk for chunk in self._chunks if chunk.end <= end])
        self._chunks = []
        self._gap = 0
        with self._lock:
            self._stored_end = end
            first = max(self._first, self._first + len(self._items) - KEPT_ITEMS)
            if sum(size for _, size in self._sizes) > KEPT_BYTES:
                first = end
            first = min(first, end)  # what is not stored yet stays, however much it is
            del self._items[: first - self._first]
            self._sizes = [(index, size) for index, size in self._sizes if index >= first]
            self._first = first

    def set_superseded(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Leave out the points and media with indices in these ranges, no others; the next commit stores them."""
        self._superseded = merged(ranges)
        self._branch = _branch_of(self._superseded)
        self._is_superseded_saved = False

    @property
    def superseded_ranges(self) -> list[tuple[int, int]]:
        """Indices that are left out, ascending and apart from each other."""
        return list(self._superseded)

    @property
    def pending_superseded(self) -> list[tuple[int, int]] | None:
        """The same ranges for `Journal.commit`; None if the journal has them."""
        return None if self._is_superseded_saved else list(self._superseded)

    def roll(self, *, force: bool = False) -> None:
        """Move items from the journal to a Parquet file if there are enough.

        Args:
            force: Move all that are committed.

        Raises:
            JournalFullError: There is no room now; everything stays where it is.
        """
        self._store.roll(self._superseded, force=force)

    # reading

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items in order, beginning at index `start`, and the index to go on with.

        Superseded and lost items are left out, so there may be fewer items, or none, although the index grows.

        Raises:
            OSError: The items cannot be read now.
        """
        start = max(start, 0)
        items, end = self._read(start, limit)
        if items and overlapping(start, end, self._superseded):
            hidden = mask(start, end, self._superseded).tolist()
            items = [item for item, out in zip(items, hidden, strict=True) if not out or isinstance(item, _OF_THE_RUN)]
        return items, end

    def _read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return the items from an index on, also superseded ones, and the index to go on with."""
        (first, end), *_ = uncovered(start, start + limit, self._store.lost) or [(start + limit, start + limit)]
        if first > start:
            return [], first
        with self._lock:
            if start >= self._first:
                recent = self._items[start - self._first : end - self._first]
                return recent, start + len(recent)
        found = self._store.load(start)
        if not isinstance(found, Columns):
            return [], self._first if found is None else found[1]
        end = min(found.end, end)
        try:
            return found.part(start, end).items(), end
        except SerializationError as error:  # an operation that a later version wrote
            if end - start > 1:
                return self._read(start, (end - start) // 2)
            if start not in self._unknown:
                logger.warning("item %d of the history is left out: %s", start, error)
            self._unknown.add(start)
            return [], end

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the points before an index that are superseded, in order."""
        index, superseded = 0, self._superseded
        while index < before and (spans := overlapping(index, before, superseded)):
            first = spans[0][0]
            items, index = self._read(first, min(before - first, 1000))
            hidden = mask(first, index, superseded).tolist()
            yield from (item for item, out in zip(items, hidden, strict=False) if out and isinstance(item, Point))

    def series(self, *, with_media: bool = False, superseded: bool = False) -> dict[str, Series]:
        """Return steps and indices of the points of each metric.

        Args:
            with_media: Media count as points of their name.
            superseded: Return superseded points instead of shown ones.
        """
        parts: defaultdict[str, list[Series]] = defaultdict(list)
        for columns in self._columns():
            keep = mask(columns.first, columns.end, self._superseded) == superseded
            for offset, data in columns.operations.items() if with_media else ():
                if keep[offset] and isinstance(medium := from_bytes(data), Medium):
                    place = np.array([columns.first + offset])
                    parts[medium.name].append(Series(np.array([medium.step]), place, np.array([medium.wall_time])))
            keep[list(columns.operations)] = False
            rows = np.flatnonzero(keep)
            rows = rows[np.argsort(columns.name_codes[rows], kind="stable")]
            for part in np.split(rows, np.flatnonzero(np.diff(columns.name_codes[rows])) + 1) if len(rows) else ():
                name = columns.names[columns.name_codes[part[0]]]
                parts[name].append(Series(columns.steps[part], columns.first + part, columns.times[part]))
        parts.pop(BLANK.metric, None)
        found: dict[str, Series] = {}
        for name, pieces in parts.items():
            steps, indices, times = zip(*pieces, strict=True)
            whole = Series(np.concatenate(steps), np.concatenate(indices), np.concatenate(times))
            found[name] = whole.take(np.argsort(whole.indices, kind="stable"))
        return found

    def _columns(self) -> Iterator[Columns]:
        """Yield all items, also superseded ones, in order."""
        index = 0
        while index < self._stored_end:
            found = self._store.load(index)
            if isinstance(found, Columns):
                yield found.part(max(found.first, index), found.end)
            index = self._stored_end if found is None else found.end if isinstance(found, Columns) else found[1]
        with self._lock:
            recent = self._items[self._stored_end - self._first :]
        if recent:
            yield Columns.from_items(self._stored_end, recent)

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return the index before which a sink has every item, and the position it gave then; None for a new sink.

        A cursor beyond the end, which the loss of records leaves, counts as one at the end.
        """
        held = self._journal.cursor(sink)
        return None if held is None else (min(held[0], self.end), held[1])

    def set_cursor(self, sink: str, cursor: tuple[int, str | None]) -> None:
        """Remember index and position of a sink.

        Raises:
            JournalFullError: There is no room for it now.
        """
        self._journal.set_cursor(sink, *cursor)


def _branch_of(superseded: Sequence[Range]) -> int:
    return zlib.crc32(repr(superseded).encode()) if superseded else 0
