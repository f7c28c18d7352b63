"""Store: reads what has left the memory, from chunks of the journal and from Parquet files."""

import logging
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import BinaryIO

from trieye.exceptions import JournalError, SerializationError
from trieye.history.chunks import decode_chunk
from trieye.history.columns import Columns
from trieye.history.files import Stored
from trieye.history.ranges import Range, merged, overlapping
from trieye.history.segments import About, SegmentFile
from trieye.journal.journal import Journal, Segment

CACHE_BYTES = 32 << 20
"""Decoded pieces that are kept: some ten row groups, so that readers do not get in each other's way."""

Opener = Callable[[str], AbstractContextManager[BinaryIO]]

logger = logging.getLogger(__name__)


class Store:
    """What is in chunks and files; safe to use from several threads.

    Args:
        journal: Has the chunks.
        stored: What is where, ascending, without overlaps.
        open_file: Opens a file of the history by its name.
    """

    def __init__(self, journal: Journal, stored: Sequence[Stored], open_file: Opener) -> None:
        self._journal = journal
        self.open_file = open_file
        self._stored = list(stored)
        self._cache = _Cache()
        # opening a file of 5 M items takes 1 ms, most of it for what is in here
        self._abouts: dict[str, About] = {}
        self._lost: list[Range] = []
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    @property
    def stored(self) -> list[Stored]:
        """What is where, ascending."""
        with self._lock:
            return list(self._stored)

    @property
    def num_lost(self) -> int:
        """Items that are missing or damaged, as far as known."""
        with self._lock:
            return sum(end - first for first, end in self._lost)

    def add(self, chunks: Sequence[Stored]) -> None:
        """Take note of chunks that came into the journal."""
        with self._lock:
            self._stored += chunks

    def replace(self, segment: Segment) -> None:
        """Take note of a file that has what was in several places."""
        with self._lock:
            outside = [part for part in self._stored if part.end <= segment.first or part.first >= segment.end]
            for gone in set(self._stored) - set(outside):
                self._abouts.pop(gone.segment.name if gone.segment else "", None)
            joined = [*outside, Stored(segment.first, segment.end, segment=segment)]
            self._stored = sorted(joined, key=attrgetter("first"))

    def has_lost(self, span: Range) -> bool:
        """Tell whether some of the items [first, end) cannot be read, as far as known."""
        with self._lock:
            return bool(overlapping(*span, self._lost))

    def note_lost(self, lost: Range, where: str, reason: object) -> None:
        """Count items that cannot be read, and say so once for each place."""
        with self._lock:
            self._lost = merged([*self._lost, lost])
            is_news = where not in self._warned
            self._warned.add(where)
        if is_news:
            count, last = lost[1] - lost[0], lost[1] - 1
            logger.warning("%d items of the history (%d to %d) are lost: %s: %s", count, lost[0], last, where, reason)

    def load(self, index: int, *, keep: bool = True) -> Columns | Range | None:
        """Return the item at an index with its neighbors, or the next ones if there is a gap.

        Args:
            index: What is looked for.
            keep: Keep what was decoded for the next call.

        Returns:
            The columns, which may begin before the index; or the range of what is lost; None if nothing follows.

        Raises:
            OSError: It cannot be read now.
            JournalError: The journal cannot be read now.
        """
        while (part := self._find(index)) is not None:
            try:
                found = self._decode(part, max(index, part.first), keep=keep)
            except (FileNotFoundError, JournalError, SerializationError) as error:
                if self._find(index) != part:  # it went into another file meanwhile
                    continue
                if isinstance(error, JournalError):
                    self._journal.segments()  # raises again if it is not the chunk, but the journal: closed or busy
                found = (part.first, part.end)
                self.note_lost(found, _place_of(part), error)
            if isinstance(found, Columns):
                return found.part(max(found.first, part.first), min(found.end, part.end))
            return max(found[0], part.first), min(found[1], part.end)
        return None

    def _find(self, index: int) -> Stored | None:
        with self._lock:
            position = bisect_right(self._stored, index, key=attrgetter("end"))
            return self._stored[position] if position < len(self._stored) else None

    def _decode(self, part: Stored, index: int, *, keep: bool) -> Columns | Range:
        if part.segment is not None:
            return self._from_file(part.segment, index, keep=keep)
        key = ("", part.chunk)
        columns = self._cache.get(key)
        if columns is None:
            columns = decode_chunk(self._journal.read_chunk(part.first if part.chunk is None else part.chunk))
            if keep:
                self._cache.put(key, columns)
        return columns

    def _from_file(self, segment: Segment, index: int, *, keep: bool) -> Columns | Range:
        about = self._abouts.get(segment.name)
        key = (segment.name, about.group_of(index) if about is not None else -1)
        columns = self._cache.get(key)
        if columns is not None:
            return columns
        # opened for each row group: a file that stays open could be one that a merge has replaced long ago
        with self.open_file(segment.name) as file:
            opened = SegmentFile(file, segment[:2])
            about = self._abouts[segment.name] = opened.about
            number = about.group_of(index)
            try:
                columns = opened.read(number)
            except SerializationError as error:
                lost = about.groups[number][:2]
                self.note_lost(lost, segment.name, error)
                return lost
        if keep:
            self._cache.put((segment.name, number), columns)
        return columns


def _place_of(part: Stored) -> str:
    return f"chunk {part.chunk} of the journal" if part.segment is None else part.segment.name


class _Cache:
    """The pieces that were used last."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[Hashable, Columns] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Columns | None:
        with self._lock:
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
            return piece

    def put(self, key: Hashable, piece: Columns) -> None:
        with self._lock:
            if key in self._pieces:  # two threads read it at the same time
                return
            self._pieces[key] = piece
            self._size_bytes += _size_of(piece)
            while self._size_bytes > CACHE_BYTES and len(self._pieces) > 1:
                _, oldest = self._pieces.popitem(last=False)
                self._size_bytes -= _size_of(oldest)


def _size_of(piece: Columns) -> int:
    return 40 * len(piece) + piece.operation_bytes
