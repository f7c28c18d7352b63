"""MemorySource: a history of a run for tests."""

import threading
from collections.abc import Iterable, Iterator

from trieye.sinks.base import Cursor
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point


class MemorySource:
    """A history in memory: what a sink thread reads; give the same one to two threads, and the second is a restart.

    Safe to use from several threads. After `append` the thread wants `wake`, after `supersede` it wants `rewind`.

    Attributes:
        cursors: How far each sink is, by name; change it to make a process that died.
    """

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.cursors: dict[str, Cursor] = {}
        self._lock = threading.Lock()  # guards the two fields below; a thread that holds it takes no other lock
        self._items: list[Item] = list(items)
        self._superseded: set[int] = set()

    @property
    def end(self) -> int:
        """Index after the last item."""
        return len(self._items)

    def append(self, items: Iterable[Item]) -> None:
        """Add items."""
        with self._lock:
            self._items.extend(items)

    def supersede(self, first: int, end: int) -> None:
        """Leave out the points and media from one index to before another, as a rewind does."""
        with self._lock:
            self._superseded.update(range(first, end))

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items from an index on, and the index to go on with."""
        with self._lock:
            after = max(start, min(start + limit, len(self._items)))
            if not self._superseded:
                return self._items[start:after], after
            found = enumerate(self._items[start:after], start)
            return [item for index, item in found if not (index in self._superseded and _is_of_a_branch(item))], after

    def cursor(self, sink: str) -> Cursor | None:
        """Return how far a sink is; None if it was never there."""
        return self.cursors.get(sink)

    def set_cursor(self, sink: str, cursor: Cursor) -> None:
        """Remember how far a sink is."""
        self.cursors[sink] = cursor

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the superseded points before an index."""
        with self._lock:
            items = [self._items[index] for index in sorted(self._superseded) if index < before]
        yield from (item for item in items if isinstance(item, Point))

    @property
    def is_whole(self) -> bool:
        """Whether everything can be read."""
        return True

    @property
    def branch(self) -> int:
        """A number for what rewinds have superseded."""
        return len(self._superseded)


def _is_of_a_branch(item: Item) -> bool:
    return isinstance(item, Point | Medium)
