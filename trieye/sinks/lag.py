"""Lag: for how long a sink has been behind the history."""

import time
from collections import deque

_MAX_MARKS = 1000


class Lag:
    """Remembers when the history was how long.

    Not safe to use from several threads at once.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()

    def note(self, end: int) -> None:
        """Say that the history ends at this index now."""
        marks = self._marks
        if marks and marks[-1][0] >= end:
            return
        if len(marks) < _MAX_MARKS:
            marks.append((end, time.monotonic()))
        else:  # of a sink that is away for long the beginning counts
            marks[-1] = (end, marks[-1][1])

    def seconds(self, index: int) -> float:
        """Return for how long the oldest item from an index on has been there; 0.0 if there is none."""
        marks = self._marks
        while marks and marks[0][0] <= index:
            marks.popleft()
        return time.monotonic() - marks[0][1] if marks else 0.0
