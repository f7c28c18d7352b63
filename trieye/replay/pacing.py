"""Pacing: what adding and drawing rows have to wait for, batches that are copied ahead and a limiter."""

from typing import Any
from weakref import WeakSet

from trieye.exceptions import ReplayTimeoutError
from trieye.replay.limiter import Limiter
from trieye.replay.prefetch import Prefetcher


class Pacing:
    """What adding and drawing rows have to wait for.

    Args:
        limiter: Keeps draws and inserts in a ratio; none if None.

    Attributes:
        is_needed: Whether anything has to be waited for or counted.
    """

    def __init__(self, limiter: Limiter | None) -> None:
        self.is_needed = limiter is not None
        self._limiter = limiter
        self._prefetchers: WeakSet[Prefetcher] = WeakSet()

    def watch(self, prefetcher: Prefetcher) -> Prefetcher:
        """Take note of a thread that copies rows, and return it."""
        self._prefetchers.add(prefetcher)
        self.is_needed = True
        return prefetcher

    def settle(self) -> None:
        """Wait until no row is being copied ahead."""
        for prefetcher in list(self._prefetchers):
            prefetcher.settle()

    def before_rows(self, count: int) -> None:
        """Wait until rows may be added.

        Raises:
            ReplayTimeoutError: The limiter wants rows to be drawn first.
        """
        self.settle()
        if self._limiter is not None and not self._limiter.can_insert(count):
            raise ReplayTimeoutError(f"{count} more rows may be added when some were drawn: the limiter says so")

    def after_rows(self, count: int) -> None:
        """Count rows that were added."""
        if self._limiter is not None:
            self._limiter.insert(count, timeout_s=0)

    def before_draw(self, count: int) -> None:
        """Ask whether rows may be drawn.

        Raises:
            ReplayTimeoutError: The limiter wants rows to be added first.
        """
        if self._limiter is not None and not self._limiter.can_sample(count):
            raise ReplayTimeoutError(f"{count} rows may be drawn when more were added: the limiter says so")

    def after_draw(self, count: int) -> None:
        """Count rows that were drawn."""
        if self._limiter is not None:
            self._limiter.sample(count, timeout_s=0)

    def removed(self, count: int) -> None:
        """Count rows that were removed."""
        if self._limiter is not None:
            self._limiter.removed(count)

    def close(self) -> None:
        """End the threads."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the counts of the limiter."""
        return None if self._limiter is None else self._limiter.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take over counts that were saved."""
        if self._limiter is not None and state is not None:
            self._limiter.load_state_dict(state)
