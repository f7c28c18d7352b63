"""Tail: the newest items of a history, in memory."""

import threading
from collections.abc import Sequence

from trieye.history.columns import BLANK, Columns, cut
from trieye.history.ranges import Range, uncovered
from trieye.stats.operations import Item, to_bytes
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
        self._lost: list[Range] = []
        # index and bytes of each operation that is in memory
        self._sizes: list[tuple[int, int]] = []
        self._lock = threading.Lock()

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
        """Give the next item a higher index."""
        with self._lock:
            end = self._first + len(self._items)
            if self._stored_end < end:
                self._items += [BLANK] * (index - end)
                self._lost.append((end, index))
            else:
                self._items, self._sizes, self._lost = [], [], []
                self._first = self._stored_end = index

    def read(self, start: int, limit: int) -> tuple[list[Item], int] | None:
        """Return at most `limit` items from an index on, and the index to go on with.

        It stops where items are lost, and begins after them; None if the first is not in memory any more.
        """
        with self._lock:
            offset, stop = start - self._first, start + limit
            if offset < 0:
                return None
            for low, high in self._lost:
                if low <= start < high:
                    return [], high
                stop = min(stop, low) if start < low else stop
            items = self._items[offset : stop - self._first]
            return items, start + len(items)

    def pending(self) -> list[Columns]:
        """Return what is in memory only, in pieces of which each makes one chunk."""
        with self._lock:
            first, end = self._stored_end, self._first + len(self._items)
            items = self._items[first - self._first :]
            sizes = [(index, size) for index, size in self._sizes if index >= first]
            whole = uncovered(first, end, self._lost)
        pieces = []
        for low, high in whole:
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
            # what is not stored yet stays, however much it is
            first = max(self._first, self._first + len(self._items) - KEPT_ITEMS)
            total = 0
            for index, size in reversed(self._sizes):
                total += size
                if total > KEPT_BYTES:
                    first = max(first, index + 1)
                    break
            first = min(first, end)
            del self._items[: first - self._first]
            self._sizes = [(index, size) for index, size in self._sizes if index >= first]
            self._lost = [span for span in self._lost if span[1] > first]
            self._first = first
