"""Tail: the newest items of a history, in memory."""

import threading
from collections.abc import Sequence

from trieye.history.columns import BLANK, Columns, cut
from trieye.journal.event_payloads import to_bytes
from trieye.journal.ranges import Range, uncovered
from trieye.stats.operations import Item
from trieye.stats.point import Point

KEPT_ITEMS = 50_000
"""Items that stay in memory, for readers that keep up."""

KEPT_BYTES = 16 << 20
"""Bytes of the operations among them."""

CHUNK_ITEMS = 10_000
CHUNK_BYTES = 4 << 20


class Tail:
    """Items with consecutive indices, of which older ones are forgotten once they are stored elsewhere.

    Safe to use from several threads.

    Args:
        first: Index of the first item that will come.
    """

    def __init__(self, first: int) -> None:
        self._first = self._stored_end = first
        self._items: list[Item] = []  # a blank in the place of one that is lost
        self._sizes: list[tuple[int, int]] = []  # index and bytes of each operation
        self._lock = threading.Lock()  # guards all of these; nothing else is taken while a thread holds it

    @property
    def first(self) -> int:
        """Index of the first item that is in memory."""
        return self._first

    @property
    def end(self) -> int:
        """Index after the last item."""
        with self._lock:
            return self._first + len(self._items)

    @property
    def num_pending(self) -> int:
        """Items that are in memory only."""
        return self.end - self._stored_end

    def append(self, items: Sequence[Item]) -> None:
        """Add items; they are visible when this returns."""
        operations = [(offset, item) for offset, item in enumerate(items) if not isinstance(item, Point)]
        sizes = [(offset, len(to_bytes(item))) for offset, item in operations]
        with self._lock:
            end = self._first + len(self._items)
            self._items += items
            self._sizes += [(end + offset, size) for offset, size in sizes]

    def skip_to(self, index: int) -> None:
        """Give the next item a higher index; whoever reads knows that the items before it are lost."""
        with self._lock:
            end = self._first + len(self._items)
            if self._stored_end < end:
                self._items += [BLANK] * (index - end)
            else:
                self._items, self._sizes = [], []
                self._first = self._stored_end = index

    def read(self, start: int, limit: int) -> list[Item] | None:
        """Return at most `limit` items from an index on; None if the first is not in memory any more."""
        with self._lock:
            offset = start - self._first
            return None if offset < 0 else self._items[offset : offset + limit]

    def pending(self, lost: Sequence[Range]) -> list[Columns]:
        """Return what is in memory only, except what is lost, in pieces of which each makes one chunk."""
        with self._lock:
            first, end = self._stored_end, self._first + len(self._items)
            items = self._items[first - self._first :]
            sizes = [(index, size) for index, size in self._sizes if index >= first]
        pieces = []
        for low, high in uncovered(first, end, lost):
            start = low
            while start < high:
                stop = cut((start, min(high, start + CHUNK_ITEMS)), sizes, max_bytes=CHUNK_BYTES)
                pieces.append(Columns.from_items(start, items[start - first : stop - first]))
                start = stop
        return pieces

    def stored(self, end: int) -> None:
        """Take note that everything before an index is stored elsewhere, and forget the oldest of it."""
        with self._lock:
            self._stored_end = end
            first = max(self._first, self._first + len(self._items) - KEPT_ITEMS)
            if sum(size for _, size in self._sizes) > KEPT_BYTES:
                first = end
            first = min(first, end)  # what is not stored yet stays, however much it is
            del self._items[: first - self._first]
            self._sizes = [(index, size) for index, size in self._sizes if index >= first]
            self._first = first
