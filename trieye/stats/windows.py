"""MetricWindows: the open windows of one metric, their closing rules and their accumulators.

A metric with `log_frequency_steps=N` has the windows (k-1)N < step <= kN. A window closes when the metric's watermark
reaches its end, and becomes one point at step kN. A metric with `log_frequency_seconds=S` closes a window S seconds
after its first event, at its highest step. No event is dropped: an event whose window has already closed joins the next
open window.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.config import MetricConfig
from trieye.stats.details import Detail, detail_from_state
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Accumulator:
    """Sufficient statistics of a set of events; `merge` yields the statistics of the union.

    Attributes:
        count: Number of events.
        total: Sum of the values.
        low: Smallest value.
        high: Largest value.
        m2: Sum of squared distances from the mean.
        last: Value of the event with the highest step; among several at that step, the last received.
        step: Highest global step.
        time: Unix time in seconds of the newest event.
        x: Highest coordinate on the metric's x axis, if that is not the global step.
        detail: Statistics for `quantile` and `ema`; nothing else grows with the number of events.
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
        """Add the events of `newer`, all received later than the present ones.

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

    def to_state(self) -> dict[str, Any]:
        """Return plain data for `from_state`."""
        # a loop over field names takes three times as long, and a snapshot calls this for every open window
        state: dict[str, Any] = {
            "count": self.count,
            "total": self.total,
            "low": self.low,
            "high": self.high,
            "m2": self.m2,
            "last": self.last,
            "step": self.step,
            "time": self.time,
        }
        if self.x is not None:
            state["x"] = self.x
        if self.detail is not None:
            state["detail"] = self.detail.to_state()
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Create an accumulator from the result of `to_state`."""
        arguments = {name: state[name] for name in _FIELDS if name in state}
        if "detail" in arguments:
            arguments["detail"] = detail_from_state(arguments["detail"])
        return cls(**arguments)


_FIELDS = tuple(field.name for field in fields(Accumulator))


REDUCERS: Mapping[str, Callable[[Accumulator], float]] = {
    "latest": lambda window: window.last,
    "mean": lambda window: window.total / window.count,
    "sum": lambda window: window.total,
    "min": lambda window: window.low,
    "max": lambda window: window.high,
    "std": lambda window: math.sqrt(max(window.m2, 0.0) / window.count),
    "count": lambda window: float(window.count),
}
"""Reducers of windows without a detail; `std` is the population's, and `rate` needs `RateWindows`."""


def reduce(window: Accumulator, aggregation: str) -> float:
    """Return the aggregated value of a window."""
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
        aggregation: Aggregation of the metric: `m2` is computed for `std` only and `last` for `latest` only, because
            both cost as much as all other fields.
    """
    if len(keys) == 1:  # thousands of metrics with one event each: arrays would take ten times as long
        value = values.item()
        x = None if xs is None else xs.item()
        yield keys.item(), Accumulator(1, value + 0.0, value, value, 0.0, value, steps.item(), times.item(), x)
        return
    if keys[0] == keys[-1] and not (keys != keys[0]).any():
        yield int(keys[0]), _single_group(values, steps, times, xs)
        return
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, values, steps, times = keys[order], values[order], steps[order], times[order]
        xs = xs if xs is None else xs[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    yield from _groups(keys, values, steps, times, xs, starts, aggregation)


def _single_group(values: Floats, steps: Ints, times: Floats, xs: Ints | None) -> Accumulator:
    count, total, top = len(values), float(values.sum()), int(steps.max())
    # the last received event at the highest step
    last_index = count - 1 if steps[-1] == top else count - 1 - int(np.argmax(steps[::-1]))
    return Accumulator(
        count=count,
        total=total,
        low=float(values.min()),
        high=float(values.max()),
        m2=float(np.square(values - total / count).sum()) if count > 1 else 0.0,
        last=float(values[last_index]),
        step=top,
        time=float(times.max()),
        x=None if xs is None else int(xs.max()),
    )


def _groups(
    keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None, starts: Ints, aggregation: str
) -> Iterator[tuple[int, Accumulator]]:
    counts = np.diff(np.append(starts, len(keys)))
    totals = np.add.reduceat(values, starts)
    m2 = last_values = np.zeros(len(starts))
    if aggregation == "std":
        m2 = np.add.reduceat(np.square(values - np.repeat(totals / counts, counts)), starts)
    if aggregation == "latest":
        last_values = values[_last_at_the_highest_step(steps, starts, counts)]
    columns = (
        counts.tolist(),
        totals.tolist(),
        np.minimum.reduceat(values, starts).tolist(),
        np.maximum.reduceat(values, starts).tolist(),
        m2.tolist(),
        last_values.tolist(),
        np.maximum.reduceat(steps, starts).tolist(),
        np.maximum.reduceat(times, starts).tolist(),
        [None] * len(starts) if xs is None else np.maximum.reduceat(xs, starts).tolist(),
    )
    yield from zip(keys[starts].tolist(), map(Accumulator, *columns), strict=True)


def _last_at_the_highest_step(steps: Ints, starts: Ints, counts: Ints) -> Ints:
    """Return for each group the index of the event with the highest step, the last among equals."""
    if (counts == 1).all():
        return starts
    highest = np.repeat(np.maximum.reduceat(steps, starts), counts)
    candidates = np.where(steps == highest, np.arange(len(steps)), -1)
    return np.maximum.reduceat(candidates, starts)


@dataclass
class AttemptTimes:
    """The relation between journal time and Unix time in the current attempt.

    Attributes:
        started: Start of journal time, Unix seconds.
        attempt_started: Start of the attempt, Unix seconds.
        elapsed_before: Seconds that the run ran before the attempt.
    """

    started: float = 0.0
    attempt_started: float = 0.0
    elapsed_before: float = 0.0


class MetricWindows:
    """The open windows of one metric.

    Args:
        config: The metric.
        times: The times of the attempt.

    Attributes:
        watermark: Windows up to this step are closed; None before the first closing.
        highest: Highest step of any event; None before the first event.
        num_late: Number of events that arrived after their window closed.
        num_events: Number of events added so far.
    """

    def __init__(self, config: MetricConfig, times: AttemptTimes) -> None:
        self.config = config
        self.watermark: int | None = None
        self.highest: int | None = None
        self.num_late = 0
        self.num_events = 0
        self._open_windows: dict[int, Accumulator] = {}
        self._opened_at: dict[int, float] = {}
        self._late: Accumulator | None = None
        self._carried_points: list[Point] = []
        self._times = times
        self._length = config.log_frequency_steps
        self._seconds = config.log_frequency_seconds

    def add(self, values: Floats, steps: Ints, times: Floats, xs: Ints | None, *, at: float) -> None:
        """Add finite events in the order of arrival.

        Args:
            values: `[n]`, n > 0.
            steps: `[n]`, absolute values at most 2**62.
            times: `[n]` Unix times in seconds.
            xs: `[n]` coordinates on the metric's x axis, None for the global step.
            at: Journal time in seconds.
        """
        self.num_events += len(values)
        top = steps.item() if len(steps) == 1 else int(steps.max())
        self.highest = top if self.highest is None else max(self.highest, top)
        for key, events in self._grouped(self._keys(steps), values, steps, times, xs):
            self._add_group(key, events, at)
        self._merge_late_events()

    def _keys(self, steps: Ints) -> Ints:
        """Return the window of each event."""
        if self._length == 1:
            return steps
        return (steps + (self._length - 1)) // self._length if self._length else np.zeros_like(steps)

    def _grouped(
        self, keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None
    ) -> Iterator[tuple[int, Accumulator]]:
        return accumulate(keys, values, steps, times, xs, aggregation=self.config.aggregation)

    def _add_group(self, key: int, events: Accumulator, at: float) -> None:
        if self._length and self.watermark is not None and key * self._length <= self.watermark:
            self.num_late += events.count
            self._late = merged(self._late, events)
        elif key in self._open_windows:
            self._open_windows[key].merge(events)
        else:
            self._open_windows[key] = events
            self._opened_at[key] = at

    def _merge_late_events(self) -> None:
        if self._late is not None and self._open_windows:
            first_key = min(self._open_windows)
            self._open_windows[first_key] = merged(self._late, self._open_windows[first_key])
            self._late = None

    def go_back(self, step: int) -> None:
        """Accept events from a step on as new instead of late; no window may be open."""
        self.watermark = None if self.watermark is None else min(self.watermark, step - 1)
        self.highest = None if self.highest is None else min(self.highest, step - 1)

    def advance(self, *, at: float, step: int | None = None) -> list[Point]:
        """Raise the watermark, and return the points of the windows that close.

        Args:
            at: Journal time in seconds.
            step: Raise the watermark to this step, at most to the highest one; None: to the highest step minus 1.
        """
        return self._take_carried() + self._points(self._completed(at, step), at)

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Return points of all windows; a point of an open window is at its highest step.

        Args:
            at: Journal time in seconds.
            step: Skip open windows that contain events beyond this step; None: include all.
        """
        closed_windows = self._completed(at, self.highest if step is None else step)
        if self._length or self._seconds:
            closed_windows += self._close_open(step)
        return self._take_carried() + self._points(closed_windows, at)

    def _take_carried(self) -> list[Point]:
        points, self._carried_points = self._carried_points, []
        return points

    def _completed(self, at: float, step: int | None) -> list[tuple[int, Accumulator]]:
        if self.highest is not None:
            target = self.highest - 1 if step is None else min(step, self.highest)
            self.watermark = target if self.watermark is None else max(self.watermark, target)
        return self._reached() + self._expired(at)

    def _close_open(self, step: int | None) -> list[tuple[int, Accumulator]]:
        keys = sorted(key for key, events in self._open_windows.items() if step is None or events.step <= step)
        closed_windows = [(self._open_windows[key].step, self._pop(key)) for key in keys]
        if self._late is not None and not self._open_windows and self.highest is not None:
            closed_windows.append((self.highest, self._late))
            self._late = None
        return closed_windows

    def _points(self, closed_windows: list[tuple[int, Accumulator]], at: float) -> list[Point]:
        del at
        aggregation = self.config.aggregation
        return [self._point(step, window, reduce(window, aggregation)) for step, window in closed_windows]

    @property
    def waits_for_time(self) -> bool:
        """Whether a point can become due without new events."""
        return bool(self._carried_points or (self._seconds and self._open_windows))

    def _reached(self) -> list[tuple[int, Accumulator]]:
        if not self._length or self.watermark is None:
            return []
        ends = sorted(key for key in self._open_windows if key * self._length <= self.watermark)
        return [(key * self._length, self._pop(key)) for key in ends]

    def _expired(self, at: float) -> list[tuple[int, Accumulator]]:
        if not self._seconds:
            return []
        due_keys = sorted(key for key, opened_at in self._opened_at.items() if self._is_due(opened_at, at))
        return [(self._open_windows[key].step, self._pop(key)) for key in due_keys]

    def _is_due(self, opened_at: float, at: float) -> bool:
        return at - opened_at >= self._seconds

    def _pop(self, key: int) -> Accumulator:
        del self._opened_at[key]
        return self._open_windows.pop(key)

    def _point(self, step: int, window: Accumulator, value: float) -> Point:
        if not math.isfinite(value):  # the sum of finite values can be infinite
            logger.warning("metric %r: the %s at step %d overflows", self.config.name, self.config.aggregation, step)
            value = math.copysign(sys.float_info.max, value)
        return Point(
            metric=self.config.name,
            value=value,
            step=step if window.x is None else window.x,
            wall_time=window.time,
            log_to=tuple(self.config.log_to),
            count=window.count,
        )

    def to_state(self) -> dict[str, Any]:
        """Return plain data for `restore`."""
        return {
            "aggregation": self.config.aggregation,
            "length": self._length,
            "watermark": self.watermark,
            "highest": self.highest,
            "num_late": self.num_late,
            "num_events": self.num_events,
            "open": [[key, window.to_state()] for key, window in self._open_windows.items()],
            "opened_at": [self._opened_at[key] for key in self._open_windows],
            "late": self._late and self._late.to_state(),
            "carried": [point.to_row() for point in self._carried_points],
        }

    def restore(self, state: Mapping[str, Any], *, shift_s: float) -> None:
        """Restore a state of `to_state`; no event may have been added yet.

        The metric's configuration may have changed: windows of another length merge into the present windows, and
        windows of another aggregation become points immediately.

        Args:
            state: The state.
            shift_s: Seconds to add to the journal times in the state.
        """
        self.watermark, self.highest = state.get("watermark"), state.get("highest")
        self.num_late, self.num_events = state.get("num_late", 0), state.get("num_events", 0)
        self._carried_points = [Point.from_row(row) for row in state.get("carried", [])]
        windows = [(key, Accumulator.from_state(window)) for key, window in state.get("open", [])]
        late = Accumulator.from_state(state["late"]) if state.get("late") else None
        times = [opened + shift_s for opened in state.get("opened_at", [])]
        if state.get("aggregation", self.config.aggregation) != self.config.aggregation:
            self._carry(windows, late, state["aggregation"])
        elif state.get("length") == self._length:
            self._open_windows, self._late = dict(windows), late
            self._opened_at = dict(zip(self._open_windows, times, strict=True))
        else:
            self._late = late
            for (_, window), opened in zip(windows, times, strict=True):
                self._add_group(-(-window.step // self._length) if self._length else 0, window, opened)
            self._merge_late_events()

    def _carry(self, windows: list[tuple[int, Accumulator]], late: Accumulator | None, aggregation: str) -> None:
        if aggregation == "rate" or not (self._length or self._seconds):
            return  # an unfinished interval has no rate, and a metric that is never logged has no points
        closed_windows = [(window.step, window) for _, window in sorted(windows, key=lambda item: item[0])]
        if late is not None and self.highest is not None:
            closed_windows.append((self.highest, late))
        reducer = aggregation if aggregation in REDUCERS else "mean"
        self._carried_points += [self._point(step, window, reduce(window, reducer)) for step, window in closed_windows]


def merged(older: Accumulator | None, newer: Accumulator) -> Accumulator:
    """Merge a window into an older one, which may be None, and return it."""
    if older is None:
        return newer
    older.merge(newer)
    return older
