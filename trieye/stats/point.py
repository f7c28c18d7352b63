"""Point: one aggregated value of a metric, the unit that sinks receive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric.

    Attributes:
        metric: Name of the metric, as declared by the user.
        value: The aggregated value, always finite.
        step: Global step, or the coordinate on the metric's `x_axis`; within int64.
        wall_time: Unix time in seconds of the newest event in the window.
        log_to: Which of `mlflow`, `tensorboard` and `console` receive the point; other sinks receive every point.
        count: Number of events in the window.
    """

    metric: str
    value: float
    step: int
    wall_time: float
    log_to: tuple[str, ...] = ("mlflow", "tensorboard")
    count: int = 1

    def to_row(self) -> list[Any]:
        """Return plain data for `from_row`."""
        return [self.metric, self.value, self.step, self.wall_time, list(self.log_to), self.count]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Create a point from the result of `to_row`."""
        metric, value, step, wall_time, log_to, count = row
        return cls(metric, value, step, wall_time, tuple(log_to), count)
