"""Windows of the aggregations `each`, `quantile`, `ema` and `rate`.

An exponential moving average visits the events in the order of reception. With s the sum and a the weight of a new
value x, s = (1 - a) s + a x, and the average is s / (1 - (1 - a)^n) after n events; the divisor removes the bias
towards 0 (Kingma and Ba, "Adam: a method for stochastic optimization", 2015).
"""

import math
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from trieye.config import MetricConfig
from trieye.stats.details import Sample, Smoothed
from trieye.stats.point import Point
from trieye.stats.windows import Accumulator, AttemptTimes, Floats, Ints, MetricWindows, merged


class EachWindows(MetricWindows):
    """No windows: each event becomes one point at its own step, in the order of arrival."""

    def add(self, values: Floats, steps: Ints, times: Floats, xs: Ints | None, *, at: float) -> None:
        """Add finite events in the order of arrival; see `MetricWindows.add`."""
        del at
        self.num_events += len(values)
        top = int(steps.max())
        self.highest = top if self.highest is None else max(self.highest, top)
        name, log_to = self.config.name, tuple(self.config.log_to)
        rows = zip(values.tolist(), (steps if xs is None else xs).tolist(), times.tolist(), strict=True)
        self._carried_points += [Point(name, value, step, time, log_to) for value, step, time in rows]


class QuantileWindows(MetricWindows):
    """Windows whose points are exact quantiles; they need 8 bytes per event."""

    def _grouped(
        self, keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None
    ) -> Iterator[tuple[int, Accumulator]]:
        order = np.argsort(keys, kind="stable")
        ordered = values[order]
        start = 0
        for key, events in super()._grouped(keys, values, steps, times, xs):
            events.detail = Sample(self.config.quantile, array("d", ordered[start : start + events.count].tobytes()))
            start += events.count
            yield key, events


class EmaWindows(MetricWindows):
    """Windows whose points are the running average after the most recently received event of the window."""

    def __init__(self, config: MetricConfig, times: AttemptTimes) -> None:
        super().__init__(config, times)
        self._sum = 0.0
        # logarithm of (1 - a)^n: exact for small a, and correct if a changes between attempts
        self._log_rest = 0.0

    def _grouped(
        self, keys: Ints, values: Floats, steps: Ints, times: Floats, xs: Ints | None
    ) -> Iterator[tuple[int, Accumulator]]:
        averages = self._averages(values)
        received_before = self.num_events - len(values)
        _, from_end = np.unique(keys[::-1], return_index=True)
        last_rows = (len(keys) - 1 - from_end).tolist()
        for (key, events), row in zip(super()._grouped(keys, values, steps, times, xs), last_rows, strict=True):
            events.detail = Smoothed(received_before + row + 1, float(averages[row]))
            yield key, events

    def _averages(self, values: Floats) -> Floats:
        alpha = self.config.ema_alpha
        log_rest = math.log1p(-alpha) if alpha < 1.0 else -math.inf
        sums = smoothed_sums(values, alpha, before=self._sum)
        log_rests = self._log_rest + log_rest * np.arange(1, len(values) + 1)
        self._sum, self._log_rest = float(sums[-1]), float(log_rests[-1])
        averages: Floats = sums / -np.expm1(log_rests)
        return averages

    def to_state(self) -> dict[str, Any]:
        """Return plain data for `restore`."""
        return {**super().to_state(), "ema": [self._sum, self._log_rest]}

    def restore(self, state: Mapping[str, Any], *, shift_s: float) -> None:
        """Restore a state of `to_state`; after a change of the aggregation the average restarts."""
        super().restore(state, shift_s=shift_s)
        self._sum, self._log_rest = state.get("ema", (0.0, 0.0))


def smoothed_sums(values: Floats, alpha: float, *, before: float) -> Floats:
    """Return s after each value.

    Args:
        values: `[n]`, n > 0, in the order of arrival.
        alpha: Weight of a new value, in (0, 1].
        before: s before the first value.
    """
    decay = 1.0 - alpha
    sums: Floats = alpha * values
    sums[0] += decay * before
    # prefix doubling: each iteration doubles the number of preceding values that a sum includes
    span, weight = 1, decay
    while span < len(values) and weight > 0.0:
        sums[span:] += weight * sums[:-span]
        span, weight = 2 * span, weight * weight
    return sums


class RateWindows(MetricWindows):
    """Sum of the values since the last logged point, divided by the seconds since then.

    The interval of the first point starts with the attempt. Without events there are no points: the step does not
    advance, and a 0 would replace the last rate.

    Events arrive with a delay, except at a flush, which comes after the last of them. Its interval therefore starts at
    the newest event of the last point; otherwise, it could last a few milliseconds and contain the events of 200.
    """

    def __init__(self, config: MetricConfig, times: AttemptTimes) -> None:
        super().__init__(config, times)
        self._logged_at: float | None = None
        self._delay_s = 0.0  # from the newest event of the last point to that point

    @property
    def _since(self) -> float:
        """Start of the interval in journal time."""
        start_of_attempt = self._times.attempt_started - self._times.started
        return start_of_attempt if self._logged_at is None else self._logged_at

    def _is_due(self, opened_at: float, at: float) -> bool:
        del opened_at
        return at - self._since >= self._seconds

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Return a point of all windows; see `MetricWindows.flush`."""
        if self._delay_s:
            self._logged_at = self._since - self._delay_s
        points = super().flush(at=at, step=step)
        self._delay_s = 0.0
        return points

    def _points(self, closed_windows: list[tuple[int, Accumulator]], at: float) -> list[Point]:
        if not closed_windows:
            return []
        if at <= self._since:  # no time has passed: the next point includes these events, as if they were late
            for _, window in closed_windows:
                self._late = merged(self._late, window)
            return []
        step, window = closed_windows[0]
        for last_step, events in closed_windows[1:]:
            step = max(step, last_step)
            window.merge(events)
        value = window.total / (at - self._since)
        newest_at = window.time - self._times.started
        # users can log any time, and clocks of other nodes differ
        self._delay_s = at - newest_at if self._since < newest_at < at else 0.0
        self._logged_at = at
        return [self._point(step, window, value)]

    def to_state(self) -> dict[str, Any]:
        """Return plain data for `restore`."""
        return {**super().to_state(), "logged_at": self._since, "delay_s": self._delay_s}

    def restore(self, state: Mapping[str, Any], *, shift_s: float) -> None:
        """Restore a state of `to_state`; after a change of the aggregation the interval starts with the attempt."""
        super().restore(state, shift_s=shift_s)
        if "logged_at" in state:
            self._logged_at, self._delay_s = state["logged_at"] + shift_s, state.get("delay_s", 0.0)
