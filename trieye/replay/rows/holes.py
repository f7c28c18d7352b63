"""Holes: the rows of a saved replay buffer that damaged parts took with them, and where the other rows go."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Range = tuple[int, int]

_NO_ROW = -(1 << 31)
"""In place of the first row of an episode that began in a hole or before it: no row is so far away."""


class Holes:
    """Ranges of rows `[low, total)` that are lost.

    The rows before a hole move up, so that ids have no gap, and the newest row keeps its id. What joined rows across a
    hole is cut: there an episode is interrupted, as by `ReplayBuffer.interrupt`.

    Args:
        ranges: First row, and the id after the last one, of what is lost.
        low: Id of the oldest row wanted.
        total: Id after the newest one.

    Attributes:
        ranges: The ranges, the first one first, none of which touch.
        num_rows: Rows that are lost.
        low: New id of the oldest row.
    """

    def __init__(self, ranges: Iterable[Range], low: int, total: int) -> None:
        self.ranges: list[Range] = []
        for first, end in sorted(ranges):
            if self.ranges and first <= self.ranges[-1][1]:
                self.ranges[-1] = self.ranges[-1][0], max(self.ranges[-1][1], min(end, total))
            else:
                self.ranges.append((max(first, low), min(end, total)))
        self._firsts, self._ends = np.array(self.ranges, np.int64).reshape(-1, 2).T
        sizes = self._ends - self._firsts
        self._above = np.append(np.cumsum(sizes[::-1])[::-1], 0)  # rows lost from each hole on
        self.num_rows, self._low, self._total = int(sizes.sum()), low, total
        self.low = low + self.num_rows

    def __str__(self) -> str:
        return ", ".join(f"{first}-{end - 1}" for first, end in self.ranges)

    def moved(self, ids: Ids) -> Ids:
        """Return the new ids of rows, -1 for those that are lost."""
        holes = self._before(ids)
        is_lost = (holes > 0) & (ids < self._ends[holes - 1])
        return np.where(is_lost, -1, ids + self._above[holes])

    def pieces(self, first: int, end: int) -> list[Range]:
        """Return the ranges of `[first, end)` that are left, by their old ids."""
        cuts = [max(first, self._low), *(edge for one in self.ranges for edge in one), min(end, self._total)]
        pairs = zip(cuts[::2], cuts[1::2], strict=True)
        found = [(max(start, first, self._low), min(stop, end)) for start, stop in pairs]
        return [(start, stop) for start, stop in found if start < stop]

    def run_of(self, row: int) -> int:
        """Return the new id of the first row that nothing parts from a row."""
        holes = int(self._before(np.array([row]))[0])
        return int((self._ends[holes - 1] if holes else self._low) + self._above[holes])

    def applied(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a `RowStore` and of its sampler as if the rows had never been there."""
        state = dict(held)
        size = held["total"] - held["low"]
        lost = np.concatenate([np.arange(first, end) for first, end in self.ranges]) - held["low"]
        state["sampler"] = _without(held["sampler"], lost, size)
        state["low"] = held["low"] + self.num_rows
        if held["links"] is not None:
            state["links"] = {"last": self._newest(np.asarray(held["links"]["last"]).reshape(-1, 4))}
        if (kept := held["next_rows"]) is not None:
            ids = self.moved(np.asarray(kept["ids"]))
            newest = np.asarray(kept["newest"]).reshape(-1, 2).copy()
            newest[:, 1] = self.moved(newest[:, 1])
            values = {name: np.asarray(array)[ids >= 0] for name, array in kept["values"].items()}
            state["next_rows"] = {"ids": ids[ids >= 0], "values": values, "newest": newest[newest[:, 1] >= 0]}
        return state

    def _newest(self, last: Ids) -> Ids:
        """Return environment, newest row, step and first row of the episodes that go on; -1 for a row that is lost."""
        rows = np.where(last[:, 1] < 0, -1, self.moved(last[:, 1]))
        starts = last[:, 3] + rows - last[:, 1]
        runs = np.array([self.run_of(row) for row in last[:, 1].tolist()], np.int64)
        starts = np.where((rows < 0) | ((starts < runs) & (runs > self.low)), _NO_ROW, starts)
        return np.stack([last[:, 0], rows, last[:, 2], starts], axis=1)

    def _before(self, ids: Ids) -> Ids:
        """Return the number of holes that begin at each row or before it."""
        return np.searchsorted(self._firsts, ids, side="right")


def _without(state: Any, lost: Ids, size: int) -> Any:
    """Return the state of a sampler without what it has of lost rows: its arrays have one entry for each row."""
    if isinstance(state, Mapping):
        found = {key: _without(value, lost, size) for key, value in state.items()}
        return {**found, "low": found["low"] + len(lost)} if "low" in found else found
    if isinstance(state, np.ndarray) and state.shape[:1] == (size,):
        return np.delete(state, lost, axis=0)
    return state
