"""SupersededPoints: what a sink that cannot take points back has shown of branches that a rewind has cut off."""

import itertools
import struct
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from trieye.stats.point import Point

MAX_REMEMBERED = 2_000_000
"""Points that are remembered; 16 bytes each, where tuples would take 200."""

_CHUNK = 500_000
_pack = struct.Struct("<qd").pack


class SupersededPoints:
    """Remembers points by (metric, step, value), the newest `limit` of them.

    Hashes of 64 bits stand for the points. That two different ones share theirs costs a point, once in 1e13 points that
    are asked for: a disk fails more often.
    """

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._in_order = np.empty(0, np.int64)
        self._sorted = self._in_order

    def add(self, points: Iterable[Point]) -> None:
        """Remember points that are not remembered yet; of too many the oldest are forgotten."""
        keys = (key for key in map(_key, points) if key is not None)
        while (chunk := np.fromiter(itertools.islice(keys, _CHUNK), np.int64)).size:
            self._in_order = np.concatenate((self._in_order, chunk[~self._contains(chunk)]))[-self._limit :]
            self._sorted = np.sort(self._in_order)

    def without(self, points: Sequence[Point]) -> Sequence[Point]:
        """Return the points that are equal to none of those remembered."""
        keys = [_key(point) for point in points]
        is_known = self._contains(np.array([key or 0 for key in keys], np.int64))
        return [point for point, key, known in zip(points, keys, is_known, strict=True) if key is None or not known]

    def _contains(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not self._sorted.size:
            return np.zeros(keys.size, np.bool_)
        places = np.searchsorted(self._sorted, keys)
        found: NDArray[np.bool_] = self._sorted[np.minimum(places, self._sorted.size - 1)] == keys
        return found


def _key(point: Point) -> int | None:
    """Return what stands for a point; None if no backend takes it."""
    try:
        # adding 0.0 makes -0.0 and 0.0 equal, as they are elsewhere. The bytes are hashed, not the numbers: Python's
        # hash of -1 and that of -2 are the same.
        return hash(_pack(point.step, point.value + 0.0) + point.metric.encode("utf-8", "surrogatepass"))
    except (struct.error, TypeError):  # a step beyond 64 bits, a value that is no number
        return None
