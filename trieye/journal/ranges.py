"""Ranges of indices, as (first, end) without the end."""

from collections.abc import Iterable, Sequence

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
    """Return the parts of [first, end) that lie in none of the ascending, disjoint `ranges`."""
    result: list[Range] = []
    for low, high in overlapping(first, end, ranges):
        if first < low:
            result.append((first, low))
        first = high
    if first < end:
        result.append((first, end))
    return result


def overlapping(first: int, end: int, ranges: Sequence[Range]) -> list[Range]:
    """Return what [first, end) has in common with `ranges`, in their order."""
    return [(max(first, low), min(end, high)) for low, high in ranges if low < end and high > first]


def is_in(index: int, ranges: Iterable[Range]) -> bool:
    """Tell whether an index lies in one of the ranges."""
    return any(first <= index < end for first, end in ranges)


def first_difference(one: Sequence[Range], other: Sequence[Range]) -> int | None:
    """Return the lowest index in exactly one of two lists of ascending, disjoint ranges; None if there is none."""
    edges = {edge for span in one for edge in span} ^ {edge for span in other for edge in span}
    return min(edges, default=None)
