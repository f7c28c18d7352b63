"""SinksConfig: where points go."""

from typing import Self

from pydantic import Field

from trieye.config.base import StrictModel


class MlflowSinkConfig(StrictModel):
    """Points, parameters, tags and artifacts to an MLflow store or server."""

    enabled: bool = Field(default=False, description="Log to MLflow.")
    max_backlog_points: int = Field(
        default=1_000_000, ge=1000, description="Points kept in memory while MLflow is unreachable; more go to a file."
    )


class TensorboardSinkConfig(StrictModel):
    """Points to TensorBoard event files in the run's directory."""

    enabled: bool = Field(default=False, description="Write TensorBoard event files.")
    flush_interval_s: float = Field(default=2.0, gt=0, le=600, description="Seconds between two flushes of the file.")


class ConsoleSinkConfig(StrictModel):
    """Points of metrics with `console` in their `log_to` as lines on the terminal."""

    enabled: bool = Field(default=False, description="Print a STATS line for every point.")


class SinksConfig(StrictModel):
    """Where points go; a metric's `log_to` chooses among the enabled sinks."""

    mlflow: MlflowSinkConfig = Field(default_factory=MlflowSinkConfig, description="MLflow tracking.")
    tensorboard: TensorboardSinkConfig = Field(default_factory=TensorboardSinkConfig, description="Event files.")
    console: ConsoleSinkConfig = Field(default_factory=ConsoleSinkConfig, description="Lines on the terminal.")

    @classmethod
    def all_enabled(cls) -> Self:
        """Return the config of a run made in Python, where every sink is on and `log_to` decides."""
        return cls(
            mlflow=MlflowSinkConfig(enabled=True),
            tensorboard=TensorboardSinkConfig(enabled=True),
            console=ConsoleSinkConfig(enabled=True),
        )
