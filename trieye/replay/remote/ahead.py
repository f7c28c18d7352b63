"""Ahead: draws that are asked for before they are needed, so that a reader seldom waits for the server."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from trieye.replay.remote.calls import Deadline

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """A short queue of what one kind of call returns several of; one call is under way while half of it is left.

    Args:
        begin: Begins a call.
        unpack: Returns the items of its result, or why there is none yet.
        low: Number of items at which the next call begins.
    """

    def __init__(
        self, begin: Callable[[], "Future[Any]"], unpack: Callable[[Any], Sequence[Item] | str], low: int
    ) -> None:
        self._begin, self._unpack, self._low = begin, unpack, low
        self._items: deque[Item] = deque()
        self._call: Future[Any] | None = None

    def next(self, deadline: Deadline) -> Item:
        """Return the next item.

        Raises:
            ReplayTimeoutError: There was none in time.
            TrieyeError: What the server raised.
        """
        while not self._items:
            self._fetch(deadline)
        item = self._items.popleft()
        if self._call is None and len(self._items) <= self._low:
            self._call = self._begin()
        return item

    def clear(self) -> None:
        """Forget what was asked for."""
        self._items.clear()
        self._call = None

    def _fetch(self, deadline: Deadline) -> None:
        call = self._call or self._begin()
        self._call = call
        try:
            found = deadline.result(call)
        except ConnectionError as error:
            self._call = None
            deadline.pause(str(error))
            return
        except Exception:
            if call.done():
                self._call = None
            raise
        self._call = None
        items = self._unpack(found)
        if isinstance(items, str):
            deadline.check(items)
        else:
            self._items.extend(items)
