"""Choice: which of the chunks a reader gets, uniformly or by priority."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Choice(Protocol):
    """Chooses distinct places; the chunks of the buffer have the places 0 to n - 1, in no order."""

    def append(self, priority: float) -> None:
        """Add a place at the end."""

    def remove(self, place: int) -> None:
        """Move the last place to this one, and forget the last."""

    def update(self, place: int, priority: float) -> None:
        """Set the priority, above 0, of a place."""

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct places and their importance weights, float32 `[n]`."""


class UniformChoice:
    """Every set of `n` places is equally likely; takes O(n)."""

    def __init__(self) -> None:
        self._size = 0

    def append(self, priority: float) -> None:
        """Add a place at the end."""
        del priority
        self._size += 1

    def remove(self, place: int) -> None:
        """Forget the last place."""
        del place
        self._size -= 1

    def update(self, place: int, priority: float) -> None:
        """Do nothing."""

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct places, and ones."""
        # the first n steps of a Fisher-Yates shuffle, which keep only what they moved
        moved: dict[int, int] = {}
        places = []
        for step, drawn in enumerate(rng.integers(np.arange(n), self._size).tolist()):
            places.append(moved.get(drawn, drawn))
            moved[drawn] = moved.get(step, step)
        return places, np.ones(n, np.float32)


class PrioritizedChoice:
    """Places are drawn one after the other, each with P(i) = p_i^alpha / sum over those that are left; O(n log N).

    The weights are (N P(i))^-beta, divided by the largest of the draw, with P(i) as it was for the first of the draw
    (Schaul et al. 2016, proportional variant; there rows are drawn with replacement, for which this is exact).
    """

    def __init__(self, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._size = 0
        self._leaves = 1  # a power of two
        self._sums = [0.0, 0.0]  # node i has the children 2i and 2i + 1; leaves are the second half

    def append(self, priority: float) -> None:
        """Add a place at the end."""
        if self._size == self._leaves:
            self._grow()
        self._size += 1
        self.update(self._size - 1, priority)

    def remove(self, place: int) -> None:
        """Move the last place to this one, and forget the last."""
        self._size -= 1
        last = self._sums[self._leaves + self._size]
        self._set(place, last)
        self._set(self._size, 0.0)

    def update(self, place: int, priority: float) -> None:
        """Set the priority of a place."""
        self._set(place, priority**self._alpha)

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct places and their importance weights."""
        total, places, masses = self._sums[1], [], []
        for share in rng.random(n).tolist():
            place = self._find(share * self._sums[1])
            places.append(place)
            masses.append(self._sums[self._leaves + place])
            self._set(place, 0.0)
        for place, mass in zip(places, masses, strict=True):
            self._set(place, mass)
        weights = (self._size * np.array(masses) / total) ** -self._beta
        return places, (weights / weights.max()).astype(np.float32)

    def _set(self, place: int, mass: float) -> None:
        node = self._leaves + place
        self._sums[node] = mass
        while node > 1:  # sums are computed anew, never adjusted, so that they depend on the leaves alone
            node //= 2
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]

    def _find(self, rest: float) -> int:
        node = 1
        while node < self._leaves:
            node *= 2
            left = self._sums[node]
            if not left or (rest >= left and self._sums[node + 1] > 0):
                rest -= left
                node += 1
        return node - self._leaves

    def _grow(self) -> None:
        masses = self._sums[self._leaves :]
        self._leaves *= 2
        self._sums = [0.0] * self._leaves + masses + [0.0] * len(masses)
        for node in range(self._leaves - 1, 0, -1):
            self._sums[node] = self._sums[2 * node] + self._sums[2 * node + 1]
