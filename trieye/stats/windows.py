"""MetricWindows: the open windows of one metric, and when they close.

A metric with `log_frequency_steps=N` has the windows (k-1)N < step <= kN. One closes when the metric's watermark
reaches its end, and becomes one point at step kN. A metric with `log_frequency_seconds=S` closes a window S seconds
after its first event, at the highest step that it holds. No event is ever left out: one whose window is closed already
joins the next open window.
"""

import logging
import math
import sys
from typing import Any

import numpy as np

from trieye.config import MetricConfig
from trieye.stats.point import Point
from trieye.stats.reducers import REDUCERS, Accumulator, Floats, Ints, accumulate

logger = logging.getLogger(__name__)


class MetricWindows:
    """The open windows of one metric.

    Args:
        config: The metric.
        started: Unix time in seconds at which journal time is zero.

    Attributes:
        watermark: Highest step up to which windows are closed; None before the first closing.
        highest: Highest step seen; None before the first event.
        num_late: Events that came after their window was closed.
        num_events: Events read so far.
    """

    def __init__(self, config: MetricConfig, *, started: float = 0.0) -> None:
        self.config = config
        self.started = started
        self.watermark: int | None = None
        self.highest: int | None = None
        self.num_late = 0
        self.num_events = 0
        self._open: dict[int, Accumulator] = {}
        self._opened_at: dict[int, float] = {}
        self._late: Accumulator | None = None
        self._carried: list[Point] = []
        self._length = config.log_frequency_steps
        self._seconds = config.log_frequency_seconds

    def add(self, values: Floats, steps: Ints, times: Floats, xs: Ints | None, *, at: float) -> None:
        """Take finite events in the order of their arrival.

        Args:
            values: `[n]`, n > 0.
            steps: `[n]`, absolute values at most 2**62.
            times: `[n]` Unix times in seconds.
            xs: `[n]` coordinates on the metric's x axis, None for the global step.
            at: Journal time in seconds.
        """
        self.num_events += len(values)
        top = int(steps.max())
        self.highest = top if self.highest is None else max(self.highest, top)
        keys = (steps + (self._length - 1)) // self._length if self._length else np.zeros_like(steps)
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum is dealt with when its point is made
            for key, events in accumulate(keys, values, steps, times, xs, aggregation=self.config.aggregation):
                self._take(key, events, at)
        self._seat_late_events()

    def _take(self, key: int, events: Accumulator, at: float) -> None:
        if self._length and self.watermark is not None and key * self._length <= self.watermark:
            self.num_late += events.count
            self._late = _merged(self._late, events)
        elif key in self._open:
            self._open[key].merge(events)
        else:
            self._open[key] = events
            self._opened_at[key] = at

    def _seat_late_events(self) -> None:
        if self._late is not None and self._open:
            first = min(self._open)
            self._open[first] = _merged(self._late, self._open[first])
            self._late = None

    def advance(self, *, at: float, step: int | None = None) -> list[Point]:
        """Raise the watermark, and return the points of the windows that close.

        Args:
            at: Journal time in seconds.
            step: Raise the watermark to this step, at most to the highest seen; None: to the one before the highest.
        """
        if self.highest is not None:
            target = self.highest - 1 if step is None else min(step, self.highest)
            self.watermark = target if self.watermark is None else max(self.watermark, target)
        closed = self._reached() + self._expired(at)
        carried, self._carried = self._carried, []
        return carried + self._points(closed, at)

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Return points of all windows, open ones at the highest step that they hold.

        Args:
            at: Journal time in seconds.
            step: Leave windows alone that hold events beyond this step; None: take all.
        """
        points = self.advance(at=at, step=self.highest if step is None else step)
        if not (self._length or self._seconds):
            return points
        held = sorted(key for key, events in self._open.items() if step is None or events.step <= step)
        closed = [(self._open[key].step, self._pop(key)) for key in held]
        if self._late is not None and not self._open and self.highest is not None:
            closed.append((self.highest, self._late))
            self._late = None
        return points + self._points(closed, at)

    def latest(self) -> tuple[int, float] | None:
        """Return (step, value) of the newest open window, for metrics that are aggregated and never logged."""
        if not self._open:
            return None
        window = self._open[max(self._open)]
        return window.step, self._reduce(window)

    def _reached(self) -> list[tuple[int, Accumulator]]:
        if not self._length or self.watermark is None:
            return []
        ends = sorted(key for key in self._open if key * self._length <= self.watermark)
        return [(key * self._length, self._pop(key)) for key in ends]

    def _expired(self, at: float) -> list[tuple[int, Accumulator]]:
        if not self._seconds:
            return []
        due = sorted(key for key, opened in self._opened_at.items() if self._is_due(opened, at))
        return [(self._open[key].step, self._pop(key)) for key in due]

    def _is_due(self, opened: float, at: float) -> bool:
        return at - opened >= self._seconds

    def _pop(self, key: int) -> Accumulator:
        del self._opened_at[key]
        return self._open.pop(key)

    def _points(self, closed: list[tuple[int, Accumulator]], at: float) -> list[Point]:
        del at
        return [self._point(step, window, self._reduce(window)) for step, window in closed]

    def _reduce(self, window: Accumulator) -> float:
        return REDUCERS[self.config.aggregation](window)

    def _point(self, step: int, window: Accumulator, value: float) -> Point:
        if not math.isfinite(value):  # finite values can have an infinite sum
            logger.warning("metric %r: its %s at step %d overflows", self.config.name, self.config.aggregation, step)
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
        """Return plain data that `restore` takes; journal times are left out, they mean nothing to another attempt."""
        return {
            "aggregation": self.config.aggregation,
            "watermark": self.watermark,
            "highest": self.highest,
            "num_late": self.num_late,
            "num_events": self.num_events,
            "open": [[key, window.to_state()] for key, window in self._open.items()],
            "late": self._late and self._late.to_state(),
        }

    def restore(self, state: dict[str, Any], *, at: float, replaces: bool = False) -> None:
        """Go on where `to_state` left off, with the events that came since; open windows count as opened at `at`.

        The metric may be configured differently now: windows of another length are put into the present ones, and those
        of another aggregation become points as they are.
        """
        since = [] if replaces else [*self._open.values(), *([self._late] if self._late else [])]
        self._open, self._opened_at, self._late = {}, {}, None
        self.watermark, self.highest = state["watermark"], _highest(self.highest, state["highest"])
        self.num_late = state["num_late"] + (0 if replaces else self.num_late)
        self.num_events = state["num_events"] + (0 if replaces else self.num_events)
        before = [Accumulator(**window) for _, window in state["open"]]
        if state["aggregation"] != self.config.aggregation and (self._length or self._seconds):
            reduce = REDUCERS.get(state["aggregation"], REDUCERS["mean"])
            self._carried = [self._point(window.step, window, reduce(window)) for window in before]
            before = []
        self._late = Accumulator(**state["late"]) if state["late"] else None
        for events in before + since:
            self._take(-(-events.step // self._length) if self._length else 0, events, at)
        self._seat_late_events()


class RateWindows(MetricWindows):
    """Sum of the values since the last logged point, divided by the seconds since then.

    When nothing came for a whole interval one 0 is logged, and then nothing until there is something to say.
    """

    def __init__(self, config: MetricConfig, *, started: float = 0.0) -> None:
        super().__init__(config, started=started)
        self._logged_at = 0.0
        self._value = 0.0
        self._step = 0

    def _is_due(self, opened: float, at: float) -> bool:
        del opened
        return at - self._logged_at >= self._seconds

    def _reduce(self, window: Accumulator) -> float:
        return window.total

    def _points(self, closed: list[tuple[int, Accumulator]], at: float) -> list[Point]:
        if not closed:
            return self._idle(at)
        if at <= self._logged_at:  # no time has passed: these events count at the next point
            self._put_back(closed, at)
            return []
        step, window = closed[0]
        for later, events in closed[1:]:
            step = max(step, later)
            window.merge(events)
        self._value = window.total / (at - self._logged_at)
        self._logged_at = at
        point = self._point(step, window, self._value)
        self._step = point.step
        return [point]

    def _put_back(self, closed: list[tuple[int, Accumulator]], at: float) -> None:
        for step, window in closed:
            key = -(-step // self._length) if self._length else 0
            self._open[key] = _merged(self._open.get(key), window)
            self._opened_at[key] = at

    def _idle(self, at: float) -> list[Point]:
        if not self._seconds or self._value == 0.0 or self._open or at - self._logged_at < self._seconds:
            return []
        self._value, self._logged_at = 0.0, at
        log_to = tuple(self.config.log_to)
        return [Point(self.config.name, 0.0, self._step, self.started + at, log_to, count=0)]

    def restore(self, state: dict[str, Any], *, at: float, replaces: bool = False) -> None:
        """Go on where `to_state` left off; the rate is measured anew from `at`.

        What an earlier attempt counted is left out: without the time in which it did, the rate would be too high.
        """
        super().restore({**state, "open": [], "late": None}, at=at, replaces=replaces)
        self._logged_at, self._value = at, 0.0


def windows_for(config: MetricConfig, *, started: float) -> MetricWindows:
    """Return the windows that a metric needs."""
    made = RateWindows if config.aggregation == "rate" else MetricWindows
    return made(config, started=started)


def _highest(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def _merged(older: Accumulator | None, newer: Accumulator) -> Accumulator:
    if older is None:
        return newer
    merged = older.copy()
    merged.merge(newer)
    return merged
