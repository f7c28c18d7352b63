"""Accumulator: everything that a reducer may want to know of the events in a window."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.stats.details import Detail, detail_from_state

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Accumulator:
    """Sufficient statistics of a set of events; merging two gives those of the union.

    Attributes:
        count: Number of events.
        total: Sum of the values.
        low: Smallest value.
        high: Largest value.
        m2: Sum of squared distances from the mean.
        last: Value of the event with the highest step; of several at that step, the one received last.
        step: Highest global step.
        time: Unix time in seconds of the newest event.
        x: Highest coordinate on the metric's x axis, if that is not the global step.
        detail: What `quantile` and `ema` need besides; nothing else grows with the number of events.
    """

    count: int
    total: float
    low: float
    high: float
    m2: float
    last: float
    step: int
    time: float
    x: int | None = None
    detail: Detail | None = None

    def merge(self, newer: Self) -> None:
        """Add the events of `newer`, which were received after those of this one.

        Moments are combined as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
        sample variances" (1979).
        """
        count = self.count + newer.count
        distance = newer.total / newer.count - self.total / self.count
        self.m2 += newer.m2 + distance * distance * self.count * newer.count / count
        self.count = count
        self.total += newer.total
        self.low = min(self.low, newer.low)
        self.high = max(self.high, newer.high)
        if newer.step >= self.step:
            self.last, self.step = newer.last, newer.step
        self.time = max(self.time, newer.time)
        if newer.x is not None:
            self.x = newer.x if self.x is None else max(self.x, newer.x)
        if self.detail is not None and newer.detail is not None:
            self.detail.merge(newer.detail)

    def copy(self) -> Self:
        """Return an independent copy."""
        return replace(self, detail=None if self.detail is None else self.detail.copy())

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `from_state` takes."""
        state = {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}
        return state if self.detail is None else {**state, "detail": self.detail.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the accumulator that `to_state` described."""
        known = {name: state[name] for name in _FIELDS if name in state}
        if "detail" in known:
            known["detail"] = detail_from_state(known["detail"])
        return cls(**known)


_FIELDS = tuple(field.name for field in fields(Accumulator))


def _std(window: Accumulator) -> float:
    return math.sqrt(max(window.m2, 0.0) / window.count)


REDUCERS: Mapping[str, Callable[[Accumulator], float]] = {
    "latest": lambda window: window.last,
    "mean": lambda window: window.total / window.count,
    "sum": lambda window: window.total,
    "min": lambda window: window.low,
    "max": lambda window: window.high,
    "std": _std,
    "count": lambda window: float(window.count),
}
"""What becomes of a window without a detail; `std` is that of the population. `rate` needs a clock: see `rate`."""


def reduce(window: Accumulator, aggregation: str) -> float:
    """Return what becomes of a window."""
    return REDUCERS[aggregation](window) if window.detail is None else window.detail.value()


def accumulate(
    keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None = None, *, aggregation: str
) -> Iterator[tuple[int, Accumulator]]:
    """Group events by key and yield (key, accumulator) in ascending order of the keys.

    Args:
        keys: `[n]` window of each event, n > 0.
        values: `[n]` finite values, in the order of arrival.
        steps: `[n]` global steps.
        times: `[n]` Unix times in seconds.
        xs: `[n]` coordinates on another x axis, or None.
        aggregation: What the accumulators are for: `m2` is 0 unless that is `std`, and `last` unless it is `latest`,
            because both cost as much as all the rest.
    """
    if keys[0] == keys[-1] and not (keys != keys[0]).any():
        yield int(keys[0]), _whole(values, steps, times, xs)
        return
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, values, steps, times = keys[order], values[order], steps[order], times[order]
        xs = xs if xs is None else xs[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    yield from _groups(keys, values, steps, times, xs, starts, aggregation)


def _whole(values: Floats, steps: Ints, times: Floats, xs: Ints | None) -> Accumulator:
    count, total, top = len(values), float(values.sum()), int(steps.max())
    # the last one received among those at the highest step
    last = count - 1 if steps[-1] == top else count - 1 - int(np.argmax(steps[::-1]))
    return Accumulator(
        count=count,
        total=total,
        low=float(values.min()),
        high=float(values.max()),
        m2=float(np.square(values - total / count).sum()) if count > 1 else 0.0,
        last=float(values[last]),
        step=top,
        time=float(times.max()),
        x=None if xs is None else int(xs.max()),
    )


def _groups(
    keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None, starts: Ints, aggregation: str
) -> Iterator[tuple[int, Accumulator]]:
    counts = np.diff(np.append(starts, len(keys)))
    totals = np.add.reduceat(values, starts)
    m2 = last = np.zeros(len(starts))
    if aggregation == "std":
        m2 = np.add.reduceat(np.square(values - np.repeat(totals / counts, counts)), starts)
    if aggregation == "latest":
        last = values[_last_at_the_highest_step(steps, starts, counts)]
    columns = (
        counts.tolist(),
        totals.tolist(),
        np.minimum.reduceat(values, starts).tolist(),
        np.maximum.reduceat(values, starts).tolist(),
        m2.tolist(),
        last.tolist(),
        np.maximum.reduceat(steps, starts).tolist(),
        np.maximum.reduceat(times, starts).tolist(),
        [None] * len(starts) if xs is None else np.maximum.reduceat(xs, starts).tolist(),
    )
    yield from zip(keys[starts].tolist(), map(Accumulator, *columns), strict=True)


def _last_at_the_highest_step(steps: Ints, starts: Ints, counts: Ints) -> Ints:
    """Return the index in each group of its event with the highest step, the last one among equals."""
    if (counts == 1).all():
        return starts
    highest = np.repeat(np.maximum.reduceat(steps, starts), counts)
    candidates = np.where(steps == highest, np.arange(len(steps)), -1)
    return np.maximum.reduceat(candidates, starts)
