"""History: every point and operation of a run, each with an index.

What is new is in memory; with the next snapshot it goes into chunks of the journal, later into Parquet files. Whoever
reads finds it by its index, wherever it is.
"""

import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trieye.exceptions import SerializationError
from trieye.history.chunks import encode_chunk
from trieye.history.columns import Columns, cut
from trieye.history.files import Stored
from trieye.history.opening import open_store
from trieye.history.ranges import Range, is_in, merged, overlapping, uncovered
from trieye.history.rolling import Rolling
from trieye.history.table import iter_history as iter_history  # noqa: PLC0414 - for whoever reads a run
from trieye.history.table import read_history as read_history  # noqa: PLC0414 - the same
from trieye.history.tail import Tail
from trieye.journal.journal import Chunk, Journal
from trieye.stats.operations import Item, LogArtifact, LogParams, SetTags
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

READ_BYTES = 8 << 20
"""Bytes of the operations that one `read` returns, unless a single one has more."""

_OF_THE_RUN = (LogParams, SetTags, LogArtifact)
"""What a rewind does not take back: it belongs to the run, not to a branch of it."""


class Cursor(NamedTuple):
    """How far a reader is.

    Attributes:
        index: It has everything before this index.
        position: What it said of itself then.
    """

    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    position: str | None = None


class History:
    """The items of a run. One thread at a time appends and commits; any number of threads read.

    Args:
        journal: Where items go first, and what remembers the files.
        directory: Where the files belong; None: everything stays in the journal.

    Attributes:
        dead: Indices of items that belong to the branch of a checkpoint, and that the journal had lost.

    Raises:
        OSError: The directory cannot be read.
    """

    def __init__(self, journal: Journal, directory: Path | None) -> None:
        self._journal = journal
        self._store, end = open_store(journal, directory)
        self._shown_to = journal.shown_to
        self._gap = min(journal.num_lost, 1)
        self.dead: Sequence[Range] = ()
        self._superseded = journal.superseded()
        self._tail = Tail(end)
        self._chunks: list[Stored] = []
        self._unknown: set[int] = set()
        self._rolling = (
            None if directory is None else Rolling(journal, self._store, directory, lambda: self._superseded)
        )

    @property
    def end(self) -> int:
        """Index after the last item."""
        return self._tail.end

    @property
    def next_index(self) -> int:
        """What the index of the next item is to be: no sink has shown another item there, which the journal lost.

        Where the journal has just lost records, one index is left out at least: nobody knows which items they gave.
        """
        return max(self.end + self._gap, self._shown_to)

    @property
    def num_pending(self) -> int:
        """Items that are in memory only."""
        return self._tail.num_pending

    @property
    def num_lost(self) -> int:
        """Items that are missing, damaged or of a kind that only a later version knows, as far as they were met."""
        return self._store.num_lost + len(self._unknown)

    @property
    def is_whole(self) -> bool:
        """Whether everything that belongs to the surviving branch can be read, as far as known."""
        return not self.dead and not any(
            self._store.has_lost(span) for span in uncovered(0, self.end, self._superseded)
        )

    @property
    def branch(self) -> int:
        """A number for what rewinds have superseded: another one says that there was another rewind."""
        return zlib.crc32(repr(self._superseded).encode()) if self._superseded else 0

    # writing

    def append(self, items: Sequence[Item]) -> None:
        """Add items with the next indices; readers see them at once."""
        self._tail.append(items)

    def skip_to(self, index: int) -> None:
        """Make sure that the next item has this index or a higher one; what is left out counts as lost."""
        if index > self.end:
            self._store.note_lost((self.end, index), "journal", "a snapshot or a sink has seen more than is stored")
            self._tail.skip_to(index)

    def pending(self) -> list[Chunk]:
        """Return what is in memory only, for `Journal.commit`; it stays pending until `committed` is called."""
        chunks = [Chunk(columns.first, columns.end, encode_chunk(columns)) for columns in self._tail.pending()]
        self._chunks = [Stored(first, end, chunk=first, size_bytes=len(data)) for first, end, data in chunks]
        return chunks

    def committed(self, end: int) -> None:
        """Take note that the journal has everything before an index, in the chunks that `pending` returned."""
        self._store.add([chunk for chunk in self._chunks if chunk.end <= end])
        self._chunks = []
        self._gap = 0
        self._tail.stored(end)

    def supersede(self, first: int, end: int) -> None:
        """Leave out the points and media with the indices [first, end) from now on; the journal has to know it, too."""
        self.set_superseded([*self._superseded, (first, end)])

    def set_superseded(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Leave out the points and media with indices in these ranges, no others; the journal has to know it, too."""
        self._superseded = merged(ranges)

    @property
    def superseded_ranges(self) -> list[tuple[int, int]]:
        """Indices that are left out, ascending and apart from each other."""
        return list(self._superseded)

    def roll(self, *, force: bool = False) -> None:
        """Move items from the journal to Parquet files if there are enough, and make small files larger ones.

        Args:
            force: Move all that are committed.

        Raises:
            JournalFullError: There is no room now; everything stays where it is.
        """
        if self._rolling is not None:
            self._rolling.roll(force=force)

    # reading

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items in order, beginning at index `start`, and the index to go on with.

        What is superseded or lost is left out, so there may be fewer or none although the index grows.

        Raises:
            OSError: They cannot be read now.
        """
        first, items, end = self._read(max(start, 0), limit)
        spans = overlapping(first, end, self._superseded)
        if spans:
            items = [
                item
                for index, item in enumerate(items, first)
                if isinstance(item, _OF_THE_RUN) or not is_in(index, spans)
            ]
        return items, end

    def _read(self, start: int, limit: int) -> tuple[int, list[Item], int]:
        """Return the index of the first item, the items, and the index to go on with."""
        recent = self._tail.read(start, limit)
        if recent is not None:
            return start, *recent
        found = self._store.load(start)
        if found is None:
            return start, [], self._tail.first
        if not isinstance(found, Columns):
            return start, [], found[1]
        first = max(start, found.first)
        sizes = ((found.first + offset, len(data)) for offset, data in found.operations.items())
        end = cut((first, min(found.end, first + limit)), sizes, max_bytes=READ_BYTES)
        return self._decoded(found.part(first, end))

    def _decoded(self, columns: Columns) -> tuple[int, list[Item], int]:
        try:
            return columns.first, columns.items(), columns.end
        except SerializationError as error:  # an operation that a later version wrote
            if len(columns) > 1:
                return self._decoded(columns.part(columns.first, columns.first + len(columns) // 2))
            if columns.first not in self._unknown:
                logger.warning("item %d of the history is left out: %s", columns.first, error)
            self._unknown.add(columns.first)
            return columns.first, [], columns.end

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the points before an index that are superseded, in order."""
        for first, end in overlapping(0, before, self._superseded):
            index = first
            while index < end:
                start, items, index = self._read(index, min(end - index, 1000))
                yield from (item for item in items[: max(end - start, 0)] if isinstance(item, Point))

    def cursor(self, sink: str) -> Cursor | None:
        """Return how far a sink is, None if it was never there.

        One that is beyond the end, because the journal lost records, is taken for one that is there.
        """
        held = self._journal.cursor(sink)
        return None if held is None else Cursor(min(held[0], self.end), held[1])

    def set_cursor(self, sink: str, cursor: tuple[int, str | None]) -> None:
        """Remember how far a sink is.

        Raises:
            JournalFullError: There is no room for it now.
        """
        self._journal.set_cursor(sink, *cursor)
