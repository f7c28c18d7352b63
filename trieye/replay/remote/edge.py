"""Edge: which of the oldest rows will soon be overwritten, and better not be handed out."""

from collections import deque

NUM_CALLS = 4
"""So many calls later, what one of them decided has been copied: two readers with two calls each."""

MAX_SHARE = 10
"""At most one in so many rows is held back."""


class Edge:
    """Guesses from the rows that came during the last calls how many come before these rows are copied.

    It knows no clock, so that a restored table decides the same.

    Args:
        capacity: Rows of the ring.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ends: deque[int] = deque(maxlen=NUM_CALLS)

    def rows(self, end: int, size: int) -> int:
        """Return how many of the oldest rows to hold back.

        Args:
            end: Id of the next row.
            size: Number of rows that there are.
        """
        if not self._ends:
            return 0
        overwritten = end - self._ends[0] - (self._capacity - size)
        return min(max(overwritten, 0), size // MAX_SHARE)

    def called(self, end: int) -> None:
        """Take note of a call that decides about rows; `end` as in `rows`."""
        self._ends.append(end)

    def state_dict(self) -> list[int]:
        """Return what is needed to go on exactly here."""
        return list(self._ends)

    def load_state_dict(self, state: list[int]) -> None:
        """Take over what `state_dict` returned."""
        self._ends = deque(state, maxlen=NUM_CALLS)
