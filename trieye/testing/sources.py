"""MemoryHistory: an in-memory history of a run for tests."""

import threading
from collections.abc import Iterable, Iterator

from trieye.sinks.base import Cursor
from trieye.stats.operations import Item, Medium
from trieye.stats.point import Point


class MemoryHistory:
    """An in-memory history for a sink thread; a second thread with the same source simulates a restart.

    Thread-safe. Call `wake` of the sink thread after `append`, and `rewind` after `supersede`.

    Attributes:
        cursors: Cursor of each sink, by name; assign an older cursor to simulate a crash.
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
        """Supersede the points and media with indices in `[first, end)`, like a rewind."""
        with self._lock:
            self._superseded.update(range(first, end))

    def read(self, start: int, limit: int) -> tuple[list[Item], int]:
        """Return at most `limit` items from an index on, and the index after them."""
        with self._lock:
            after = max(start, min(start + limit, len(self._items)))
            if not self._superseded:
                return self._items[start:after], after
            items = enumerate(self._items[start:after], start)
            return [item for index, item in items if not (index in self._superseded and _is_of_a_branch(item))], after

    def cursor(self, sink: str) -> Cursor | None:
        """Return the cursor of a sink; None if it has none."""
        return self.cursors.get(sink)

    def set_cursor(self, sink: str, cursor: Cursor) -> None:
        """Set the cursor of a sink."""
        self.cursors[sink] = cursor

    def superseded(self, before: int) -> Iterator[Point]:
        """Yield the superseded points before an index."""
        with self._lock:
            items = [self._items[index] for index in sorted(self._superseded) if index < before]
        yield from (item for item in items if isinstance(item, Point))

    @property
    def is_whole(self) -> bool:
        """Whether the history is complete."""
        return True

    @property
    def branch(self) -> int:
        """A number that changes with each rewind."""
        return len(self._superseded)


def _is_of_a_branch(item: Item) -> bool:
    return isinstance(item, Point | Medium)
