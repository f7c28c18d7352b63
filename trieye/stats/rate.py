"""RateWindows: sums per second."""

from collections.abc import Mapping
from typing import Any

from trieye.config import MetricConfig
from trieye.stats.point import Point
from trieye.stats.reducers import Accumulator
from trieye.stats.windows import AttemptTimes, MetricWindows, merged


class RateWindows(MetricWindows):
    """Sum of the values since the last logged point, divided by the seconds since then.

    The first point counts from the beginning of the attempt. When nothing came for a whole interval one 0 is logged,
    and then nothing until there is something to say.
    """

    def __init__(self, config: MetricConfig, times: AttemptTimes) -> None:
        super().__init__(config, times)
        self._logged_at: float | None = None
        self._value = 0.0
        self._step = 0

    @property
    def _since(self) -> float:
        return self._began if self._logged_at is None else self._logged_at

    @property
    def waits_for_time(self) -> bool:
        """Whether time alone can lead to a point."""
        return super().waits_for_time or bool(self._seconds and self._value) or self._was_put_back

    @property
    def _was_put_back(self) -> bool:
        if not self._length or self.watermark is None:
            return False
        return any(key * self._length <= self.watermark for key in self._open)

    def _is_due(self, opened: float, at: float) -> bool:
        del opened
        return at - self._since >= self._seconds

    def _reduce(self, window: Accumulator) -> float:
        return window.total

    def _points(self, closed: list[tuple[int, Accumulator]], at: float) -> list[Point]:
        if not closed:
            return self._idle(at)
        if at <= self._since:  # no time has passed: these events count at the next point
            self._put_back(closed, at)
            return []
        step, window = closed[0]
        for later, events in closed[1:]:
            step = max(step, later)
            window.merge(events)
        self._value = window.total / (at - self._since)
        self._logged_at = at
        point = self._point(step, window, self._value)
        self._step = point.step
        return [point]

    def _put_back(self, closed: list[tuple[int, Accumulator]], at: float) -> None:
        for step, window in closed:
            key = -(-step // self._length) if self._length else 0
            self._open[key] = merged(self._open.get(key), window)
            self._opened_at[key] = at

    def _idle(self, at: float) -> list[Point]:
        if not self._seconds or self._value == 0.0 or self._open or at - self._since < self._seconds:
            return []
        self._value, self._logged_at = 0.0, at
        log_to = tuple(self.config.log_to)
        return [Point(self.config.name, 0.0, self._step, self._times.started + at, log_to, count=0)]

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `restore` takes."""
        return {**super().to_state(), "logged_at": self._since, "value": self._value, "step": self._step}

    def restore(self, state: Mapping[str, Any], *, shift_s: float) -> None:
        """Go on where `to_state` left off.

        What an older version counted without the time in which it did is left out: the rate would be too high.
        """
        logged_at = state.get("logged_at")
        if logged_at is None and state.get("aggregation") == "rate":
            state = {**state, "open": [], "opened_at": [], "late": None}
        super().restore(state, shift_s=shift_s)
        if logged_at is not None:
            self._logged_at = logged_at + shift_s
            self._value, self._step = state.get("value", 0.0), state.get("step", 0)
