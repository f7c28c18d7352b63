"""MetricConfig: how a metric aggregates events to points; the default metrics of trieye 0.1.5."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.spellings import ModelOf015

AggregationMethod = Literal["latest", "mean", "sum", "rate", "min", "max", "std", "count", "quantile", "ema", "each"]
LogTarget = Literal["mlflow", "tensorboard", "console"]
DataSource = Literal["trainer", "worker", "loop", "buffer", "system", "custom"]
XAxis = Literal["global_step", "wall_time", "episode"]


class MetricConfig(ModelOf015):
    """How the events of one name are aggregated to the points of one metric.

    With `log_frequency_steps=N`, a window covers N steps; with `log_frequency_seconds=S`, S seconds; with both, it ends
    with the first of the two; with neither, the metric is never logged. Each window with events becomes a point. With
    `aggregation=each` there are no windows: each event becomes a point.
    """

    spellings = (
        "name", "source", "raw_event_name", "aggregation", "log_frequency_steps", "log_frequency_seconds", "log_to",
        "x_axis", "rate_numerator_event", "context_key",
    )  # fmt: skip

    name: Annotated[str, Field(min_length=1, description="Name of the metric in every sink; unique.")]
    source: DataSource = Field(default="custom", description="Component that logs the events; informational only.")
    raw_event_name: str | None = Field(default=None, description="Name of the events to aggregate; null = `name`.")
    aggregation: AggregationMethod = Field(
        default="latest", description="How the values of a window are reduced to one point; each = one point per event."
    )
    log_frequency_steps: int = Field(
        default=1,
        ge=0,
        le=2**62,
        description="Window length in steps; 0 = windows by seconds only, and never logged if both are 0.",
    )
    log_frequency_seconds: float = Field(
        default=0.0,
        ge=0,
        description="Window length in seconds; 0 = windows by steps only. If both lengths are set, the window ends "
        "with the first of the two.",
    )
    log_to: list[LogTarget] = Field(
        default=["mlflow", "tensorboard"],
        description="Which of mlflow, tensorboard and console receive the points; other sinks receive all points.",
    )
    x_axis: XAxis = Field(
        default="global_step",
        description="x coordinate of a point: global_step = its step; wall_time = elapsed seconds of the run; "
        "episode = episode number.",
    )
    rate_numerator_event: str | None = Field(
        default=None, description="Events whose summed values per second are the rate; for aggregation=rate only."
    )
    context_key: str | None = Field(
        default=None, description="Key of the value in the context of an event; null = the event's own value."
    )
    quantile: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Quantile of the values in a window, linearly interpolated; 0.5 = median. Only for "
        "aggregation=quantile, which stores all values of a window, 8 bytes per event.",
    )
    ema_alpha: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Weight of a new value in the exponential moving average over all events, across windows; "
        "only for aggregation=ema.",
    )

    @property
    def event_key(self) -> str:
        """Name of the events that the metric aggregates."""
        return self.raw_event_name or self.name

    @model_validator(mode="after")
    def _rate_has_a_numerator(self) -> Self:
        if self.aggregation == "rate" and not self.rate_numerator_event:
            raise ValueError(
                f"Metric '{self.name}' has aggregation 'rate' but 'rate_numerator_event' is not set. "
                "Set it to the name of the events whose values are summed."
            )
        return self


def _metric(
    name: str, source: DataSource, aggregation: AggregationMethod, *, seconds: float = 0.0, **more_fields: Any
) -> MetricConfig:
    frequency = {"log_frequency_steps": 0 if seconds else 10, "log_frequency_seconds": seconds}
    return MetricConfig(
        name=name, source=source, aggregation=aggregation, **{"raw_event_name": name, **frequency, **more_fields}
    )


_EPISODE: Any = {"seconds": 5.0, "raw_event_name": "episode_end"}
_RATE: Any = {"seconds": 5.0, "raw_event_name": None, "log_to": ["mlflow", "tensorboard", "console"]}

DEFAULT_METRICS: list[MetricConfig]
"""The 22 metrics of trieye 0.1.5, for programs that extend them: `DEFAULT_METRICS + [...]`."""


def __getattr__(name: str) -> list[MetricConfig]:
    if name != "DEFAULT_METRICS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = metrics = _default_metrics()  # on demand: creating them and the model's schema takes 15 ms
    return metrics


def _default_metrics() -> list[MetricConfig]:
    losses = ("Total", "Policy", "Value", "Entropy", "Mean_Abs_TD_Error")
    episode = ("Score", "Length", "Triangles_Cleared")
    loop = {
        "Buffer/Size": 5.0, "Progress/Total_Simulations": 5.0, "Progress/Episodes_Played": 5.0,
        "Progress/Weight_Updates_Total": 5.0, "System/Num_Active_Workers": 10.0, "System/Num_Pending_Tasks": 10.0,
    }  # fmt: skip
    return [
        *(_metric(f"Loss/{name}", "trainer", "mean") for name in losses),
        _metric("LearningRate", "trainer", "latest"),
        *(_metric(f"Episode/{name}", "worker", "mean", context_key=name.lower(), **_EPISODE) for name in episode),
        _metric("MCTS/Avg_Simulations_Per_Step", "worker", "mean", seconds=10.0, raw_event_name="mcts_step"),
        _metric("MCTS/Avg_Tree_Depth", "worker", "mean", context_key="avg_mcts_depth", **_EPISODE),
        _metric("RL/Step_Reward_Mean", "worker", "mean", seconds=10.0, raw_event_name="step_reward"),
        *(_metric(name, "loop", "latest", seconds=seconds) for name, seconds in loop.items()),
        _metric("Rate/Steps_Per_Sec", "loop", "rate", rate_numerator_event="step_completed", **_RATE),
        _metric("Rate/Episodes_Per_Sec", "worker", "rate", rate_numerator_event="episode_end", **_RATE),
        _metric("Rate/Simulations_Per_Sec", "worker", "rate", rate_numerator_event="mcts_step", **_RATE),
        _metric("PER/Beta", "trainer", "latest"),
    ]
