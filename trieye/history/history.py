"""History: every point and operation of a run, each with an index.

A new item is first in memory. The next snapshot writes it to a chunk of the journal, and `roll` moves chunks to a
Parquet file. Readers address items by index, independently of their location.
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
from trieye.files.run_record import MetricSummary
from trieye.history.columns import BLANK, Columns, cut
from trieye.history.store import Store
from trieye.history.table import iter_history as iter_history  # noqa: PLC0414 - for readers of a run
from trieye.history.table import read_history as read_history  # noqa: PLC0414 - the same
from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.journal.journal import Journal, JournalChunk
from trieye.journal.ranges import Range, mask, merged, overlapping, uncovered
from trieye.stats.operations import Item, LogArtifact, LogParams, Medium, SetTags
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

KEPT_ITEMS = 50_000
"""Number of newest items that stay in memory for readers."""

KEPT_BYTES = 16 << 20
"""Maximum size of the operations among them."""

CHUNK_ITEMS = 10_000
CHUNK_BYTES = 4 << 20

_RUN_OPERATIONS = (LogParams, SetTags, LogArtifact)
"""Operations that a rewind does not supersede: they belong to the run, not to a branch."""


class NamedItems(NamedTuple):
    """The points, or the media, of one name.

    Attributes:
        steps: `[n]`.
        indices: `[n]`, ascending; within one flush marker, ordered by step.
        times: `[n]`, Unix time in seconds.
    """

    steps: NDArray[np.int64]
    indices: NDArray[np.int64]
    times: NDArray[np.float64]

    def take(self, rows: NDArray[np.intp]) -> "NamedItems":
        """Return some rows, in the order of `rows`."""
        return NamedItems(self.steps[rows], self.indices[rows], self.times[rows])


class History:
    """The items of a run. One thread at a time appends and commits; any number of threads read.

    Args:
        journal: Stores the chunks and the list of files.
        directory: Directory of the files; None: everything stays in the journal.

    Attributes:
        branch: Id of the current branch: it changes with every rewind; 0 before the first one.
        dead: Indices that no checkpoint can restore: the journal lost them before the run resumed from a checkpoint.

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
        self._superseded_ranges = journal.superseded()
        self.branch = _branch_of(self._superseded_ranges)
        self._is_superseded_saved = True
        self._chunks: list[JournalChunk] = []
        self._undecodable: set[int] = set()
        self._first_index = self._stored_end = self._store.end
        self._items: list[Item] = []  # items in memory, from `_first_index` on; BLANK for a lost item
        self._sizes: list[tuple[int, int]] = []  # index and size in bytes of each operation among them
        self._lock = threading.Lock()  # guards `_first_index` to `_sizes`; its holder acquires no other lock

    @property
    def end(self) -> int:
        """Index after the last item."""
        with self._lock:
            return self._first_index + len(self._items)

    @property
    def next_index(self) -> int:
        """Index for the next item, greater than the index of every item shown by a sink, including lost items.

        After a loss of journal entries at least one index stays unused, because their number of items is unknown.
        """
        return max(self.end + self._gap, self._shown_to)

    @property
    def num_pending(self) -> int:
        """Number of items that are only in memory."""
        return self.end - self._stored_end

    @property
    def num_lost(self) -> int:
        """Number of items that readers found missing, damaged, or written by a later version of trieye."""
        return sum(end - first for first, end in self._store.lost) + len(self._undecodable)

    @property
    def is_whole(self) -> bool:
        """Whether every item that no rewind has superseded is readable, according to current knowledge."""
        surviving = uncovered(0, self.end, self._superseded_ranges)
        return not self.dead and not any(overlapping(*span, self._store.lost) for span in surviving)

    # writing

    def append(self, items: Sequence[Item]) -> None:
        """Add items with the next indices; readers see them immediately."""
        sizes = [(offset, len(to_bytes(item))) for offset, item in enumerate(items) if not isinstance(item, Point)]
        with self._lock:
            end = self._first_index + len(self._items)
            self._items += items
            self._sizes += [(end + offset, size) for offset, size in sizes]

    def skip_to(self, index: int) -> None:
        """Ensure that the next item has at least this index; skipped indices count as lost."""
        if index <= self.end:
            return
        self._store.note_lost((self.end, index), "journal", "a snapshot or a sink refers to items that are not stored")
        with self._lock:
            end = self._first_index + len(self._items)
            if self._stored_end < end:
                self._items += [BLANK] * (index - end)
            else:
                self._items, self._sizes = [], []
                self._first_index = self._stored_end = index

    def pending(self) -> list[JournalChunk]:
        """Return the items that are only in memory as chunks for `Journal.commit`; call `committed` after it."""
        with self._lock:
            first, end = self._stored_end, self._first_index + len(self._items)
            items = self._items[first - self._first_index :]
            sizes = [(index, size) for index, size in self._sizes if index >= first]
        self._chunks = []
        for low, high in uncovered(first, end, self._store.lost):
            start = low
            while start < high:
                stop = cut((start, min(high, start + CHUNK_ITEMS)), sizes, max_bytes=CHUNK_BYTES)
                columns = Columns.from_items(start, items[start - first : stop - first])
                self._chunks.append(JournalChunk(start, stop, columns.to_chunk()))
                start = stop
        return self._chunks

    def committed(self, end: int) -> None:
        """Record that the journal has all items before an index, and release old items from memory."""
        self._is_superseded_saved = True
        self._store.add([chunk for chunk in self._chunks if chunk.end <= end])
        self._chunks = []
        self._gap = 0
        with self._lock:
            self._stored_end = end
            first = max(self._first_index, self._first_index + len(self._items) - KEPT_ITEMS)
            if sum(size for _, size in self._sizes) > KEPT_BYTES:
                first = end
            first = min(first, end)  # items that are not yet stored stay in memory without limit
            del self._items[: first - self._first_index]
            self._sizes = [(index, size) for index, size in self._sizes if index >= first]
            self._first_index = first

    def set_superseded(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Replace the superseded ranges, whose points and media are hidden; the next commit stores them."""
        self._superseded_ranges = merged(ranges)
        self.branch = _branch_of(self._superseded_ranges)
        self._is_superseded_saved = False

    @property
    def superseded_ranges(self) -> list[tuple[int, int]]:
        """The superseded index ranges, ascending and disjoint."""
        return list(self._superseded_ranges)

    @property
    def pending_superseded(self) -> list[tuple[int, int]] | None:
        """The superseded ranges for `Journal.commit`; None if the journal has stored them."""
        return None if self._is_superseded_saved else list(self._superseded_ranges)

    def roll(self, *, force: bool = False) -> None:
        """Move items from the journal to a Parquet file if there are enough.

        Args:
            force: Move all committed items.

        Raises:
            JournalFullError: The disk is full; nothing is moved.
        """
        self._store.roll(self._superseded_ranges, force=force)

    # reading

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items from index `start` on, in order, and the index of the next read.

        Superseded and lost items are omitted, so the list may be empty although the index advances.

        Raises:
            OSError: The items are temporarily unreadable.
        """
        start = max(start, 0)
        items, end = self._read(start, limit)
        if items and self._superseded_ranges and overlapping(start, end, self._superseded_ranges):
            hidden_flags = mask(start, end, self._superseded_ranges).tolist()
            flagged_items = zip(items, hidden_flags, strict=True)
            items = [item for item, is_hidden in flagged_items if not is_hidden or isinstance(item, _RUN_OPERATIONS)]
        return items, end

    def _read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return the items from an index on, including superseded ones, and the index of the next read."""
        first, end = start, start + limit
        if self._store.lost:
            (first, end), *_ = uncovered(start, end, self._store.lost) or [(end, end)]
        if first > start:
            return [], first
        with self._lock:
            if start >= self._first_index:
                recent_items = self._items[start - self._first_index : end - self._first_index]
                return recent_items, start + len(recent_items)
        loaded_part = self._store.load(start)
        if not isinstance(loaded_part, Columns):
            return [], self._first_index if loaded_part is None else loaded_part[1]
        end = min(loaded_part.end, end)
        try:
            return loaded_part.part(start, end).items(), end
        except SerializationError as error:  # an operation of a later version
            if end - start > 1:
                return self._read(start, (end - start) // 2)
            if start not in self._undecodable:
                logger.warning("skipping item %d of the history: %s", start, error)
            self._undecodable.add(start)
            return [], end

    def items(self, span: Range) -> Iterator[Item]:
        """Yield the visible items of an index range."""
        index, end = span
        while index < end:
            items, index = self.read(index, end - index)
            yield from items

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the superseded points before an index, in order."""
        index, ranges = 0, self._superseded_ranges
        while index < before and (spans := overlapping(index, before, ranges)):
            first = spans[0][0]
            items, index = self._read(first, min(before - first, 1000))
            flags = mask(first, index, ranges).tolist()
            yield from (item for item, out in zip(items, flags, strict=False) if out and isinstance(item, Point))

    def summary(self, superseded: Sequence[Range] = ()) -> dict[str, MetricSummary]:
        """Return last value, extremes and last step of the visible points of each metric.

        Args:
            superseded: Indices of further points to omit.
        """
        summary: dict[str, MetricSummary] = {}
        hidden_ranges = merged([*self._superseded_ranges, *superseded])
        for columns in self._columns():
            row_mask = ~mask(columns.first, columns.end, hidden_ranges)
            row_mask[list(columns.operations)] = False
            for code in np.unique(columns.name_codes[row_mask]).tolist():
                rows = np.flatnonzero(row_mask & (columns.name_codes == code))
                name, values = columns.names[code], columns.values[rows]
                low, high = float(values.min()), float(values.max())
                last_summary = summary.get(name, MetricSummary(last=0.0, min=low, max=high, step=0))
                low, high = min(low, last_summary["min"]), max(high, last_summary["max"])
                last_value, step = float(values[-1]), int(columns.steps[rows[-1]])
                summary[name] = MetricSummary(last=last_value, min=low, max=high, step=step)
        return summary

    def series(self, start: int = 0, *, with_media: bool = False, superseded: bool = False) -> dict[str, NamedItems]:
        """Return steps and indices of the points of each metric.

        Args:
            start: Omit items with a lower index.
            with_media: Media count as points of their name.
            superseded: Return superseded points instead of visible ones.
        """
        parts: defaultdict[str, list[NamedItems]] = defaultdict(list)
        for columns in self._columns(start):
            row_mask = mask(columns.first, columns.end, self._superseded_ranges) == superseded
            for offset, data in columns.operations.items() if with_media else ():
                if row_mask[offset] and isinstance(medium := from_bytes(data), Medium):
                    index = np.array([columns.first + offset])
                    parts[medium.name].append(NamedItems(np.array([medium.step]), index, np.array([medium.wall_time])))
            row_mask[list(columns.operations)] = False
            rows = np.flatnonzero(row_mask)
            rows = rows[np.argsort(columns.name_codes[rows], kind="stable")]
            for part in np.split(rows, np.flatnonzero(np.diff(columns.name_codes[rows])) + 1) if len(rows) else ():
                name = columns.names[columns.name_codes[part[0]]]
                parts[name].append(NamedItems(columns.steps[part], columns.first + part, columns.times[part]))
        parts.pop(BLANK.metric, None)
        series: dict[str, NamedItems] = {}
        for name, rows_of_name in parts.items():
            steps, indices, times = zip(*rows_of_name, strict=True)
            joined_items = NamedItems(np.concatenate(steps), np.concatenate(indices), np.concatenate(times))
            series[name] = joined_items.take(np.argsort(joined_items.indices, kind="stable"))
        return series

    def _columns(self, start: int = 0) -> Iterator[Columns]:
        """Yield all items from an index on, including superseded ones, in order."""
        index = start
        while index < self._stored_end:
            loaded = self._store.load(index)
            if isinstance(loaded, Columns):
                yield loaded.part(max(loaded.first, index), loaded.end)
            index = self._stored_end if loaded is None else loaded.end if isinstance(loaded, Columns) else loaded[1]
        with self._lock:
            first = max(self._stored_end, start)
            recent_items = self._items[first - self._first_index :]
        if recent_items:
            yield Columns.from_items(first, recent_items)

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return the stored index and position of a sink, which has every item before the index; None for a new sink.

        A cursor beyond the end, the consequence of lost journal entries, is clipped to the end.
        """
        cursor = self._journal.cursor(sink)
        return None if cursor is None else (min(cursor[0], self.end), cursor[1])

    def set_cursor(self, sink: str, cursor: tuple[int, str | None]) -> None:
        """Store index and position of a sink.

        Raises:
            JournalFullError: The disk is full.
        """
        self._journal.set_cursor(sink, *cursor)


def _branch_of(superseded_ranges: Sequence[Range]) -> int:
    return zlib.crc32(repr(superseded_ranges).encode()) if superseded_ranges else 0
