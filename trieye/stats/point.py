"""Point: what a sink gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric.

    Attributes:
        metric: Name of the metric, as the user declared it.
        value: The aggregated value, always finite.
        step: Global step, or what the metric's `x_axis` says; within int64.
        wall_time: Unix time in seconds of the newest event that it summarises.
        log_to: Names of the sinks it is meant for.
        count: How many events it summarises.
    """

    metric: str
    value: float
    step: int
    wall_time: float
    log_to: tuple[str, ...] = ("mlflow", "tensorboard")
    count: int = 1

    def to_row(self) -> list[Any]:
        """Return plain data that `from_row` takes."""
        return [self.metric, self.value, self.step, self.wall_time, list(self.log_to), self.count]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """Return the point that `to_row` described."""
        metric, value, step, wall_time, log_to, count = row
        return cls(metric, value, step, wall_time, tuple(log_to), count)
