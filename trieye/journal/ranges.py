"""Functions on lists of index ranges; a range is (first, end), without `end`."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same indices as ascending ranges that neither overlap nor touch."""
    result: list[Range] = []
    for first, end in sorted(ranges):
        if result and first <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        elif first < end:
            result.append((first, end))
    return result


def uncovered(first: int, end: int, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of [first, end) outside the ascending, disjoint `ranges`."""
    result: list[Range] = []
    for low, high in overlapping(first, end, ranges):
        if first < low:
            result.append((first, low))
        first = high
    if first < end:
        result.append((first, end))
    return result


def overlapping(first: int, end: int, ranges: Sequence[Range]) -> list[Range]:
    """Return the parts of the ascending, disjoint `ranges` inside [first, end)."""
    low = bisect_right(ranges, first, key=itemgetter(1))
    high = bisect_left(ranges, end, low, key=itemgetter(0))
    return [(max(first, start), min(end, stop)) for start, stop in ranges[low:high]]


def mask(first: int, end: int, ranges: Sequence[Range]) -> NDArray[np.bool_]:
    """Return for each index of [first, end) whether the ascending, disjoint `ranges` contain it."""
    is_inside = np.zeros(end - first, np.bool_)
    for low, high in overlapping(first, end, ranges):
        is_inside[low - first : high - first] = True
    return is_inside


def of_indices(indices: NDArray[np.int64]) -> list[Range]:
    """Return indices in any order as ascending ranges that neither overlap nor touch."""
    ordered = np.unique(indices)
    if not ordered.size:
        return []
    gaps = np.flatnonzero(np.diff(ordered) > 1)
    firsts, lasts = ordered[np.append(0, gaps + 1)], ordered[np.append(gaps, ordered.size - 1)]
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def first_difference(one: Sequence[Range], other: Sequence[Range]) -> int | None:
    """Return the lowest index in exactly one of two lists of ascending, disjoint ranges; None if they are equal."""
    edges = {edge for span in one for edge in span} ^ {edge for span in other for edge in span}
    return min(edges, default=None)
