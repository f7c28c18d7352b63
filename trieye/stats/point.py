"""Point: what a sink gets."""

from dataclasses import dataclass


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
