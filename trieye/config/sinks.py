"""SinksConfig: which sinks (MLflow, TensorBoard, console, W&B, plugins) receive points."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from trieye.config.base import StrictModel
from trieye.config.packages import require


class MlflowSinkConfig(StrictModel):
    """Sends points, parameters, tags and artifacts to an MLflow store or server."""

    enabled: bool = Field(default=False, description="Log to MLflow.")
    system_metrics: bool = Field(
        default=False,
        description="Log CPU, memory, disk, network (and, with nvidia-ml-py, GPU) of the hub's machine as system/...",
    )
    system_metrics_interval_s: float = Field(
        default=10.0, gt=0, le=3600, description="Seconds between two points of each system metric."
    )


class TensorboardSinkConfig(StrictModel):
    """Writes points to TensorBoard event files in the run directory."""

    enabled: bool = Field(default=False, description="Write TensorBoard event files.")
    flush_interval_s: float = Field(default=2.0, gt=0, le=600, description="Seconds between flushes of the file.")


class ConsoleSinkConfig(StrictModel):
    """Prints points of metrics with `console` in their `log_to`."""

    enabled: bool = Field(
        default=False, description="Print a STATS line for each point of metrics with `console` in `log_to`."
    )


class WandbSinkConfig(StrictModel):
    """Sends points, parameters, tags and media to Weights & Biases; needs `pip install "trieye[wandb]"`."""

    enabled: bool = Field(default=False, description="Log to Weights & Biases.")
    project: str | None = Field(default=None, min_length=1, description="W&B project; null = the app_name.")
    entity: str | None = Field(default=None, min_length=1, description="W&B user or team; null = your default entity.")
    mode: Literal["online", "offline"] | None = Field(
        default=None,
        description="online = W&B server; offline = files for `wandb sync`; null = as the variable WANDB_MODE.",
    )
    system_metrics: bool = Field(default=False, description="Log CPU, memory and GPU usage of the hub's machine.")
    flush_interval_s: float = Field(
        default=5.0, gt=0, le=600, description="Maximum seconds before points are written to wandb's local file."
    )


class SinksConfig(StrictModel):
    """Where points go; `log_to` of a metric selects among MLflow, TensorBoard and the console, if enabled."""

    mlflow: MlflowSinkConfig = Field(default_factory=MlflowSinkConfig, description="MLflow tracking.")
    tensorboard: TensorboardSinkConfig = Field(default_factory=TensorboardSinkConfig, description="Event files.")
    console: ConsoleSinkConfig = Field(default_factory=ConsoleSinkConfig, description="Output to the terminal.")

    wandb: WandbSinkConfig = Field(default_factory=WandbSinkConfig, description="Weights & Biases.")
    log_config: bool = Field(default=True, description="Log the config as parameters of the run.")
    exclude_plugins: list[str] = Field(
        default=[], description="Names of sinks from installed packages that this run does not use; [] = use all."
    )
    required: list[str] = Field(
        default=[],
        description="Names of sinks whose failure fails the run, at the next flush, evaluation or save, or at "
        "its end. Other sinks may fail: the run continues, and missing points are delivered when the sink recovers.",
    )

    @field_validator("exclude_plugins")
    @classmethod
    def _ours_have_keys(cls, exclude: list[str]) -> list[str]:
        for name in exclude:
            if name in OUR_NAMES:
                raise ValueError(f"{name} is a sink of trieye; type sinks.{name}.enabled=false")
        return exclude

    @property
    def enabled(self) -> list[str]:
        """Names of the enabled sinks of trieye."""
        return [name for name, sink in self if getattr(sink, "enabled", False)]

    def check(self) -> None:
        """Check that the libraries of the enabled sinks are installed, without importing them.

        Raises:
            MissingPackageError: A library is not installed.
        """
        for name in ("mlflow", "wandb"):
            if name in self.enabled:
                require(name, f"sinks.{name}.enabled=true", f"set sinks.{name}.enabled=false")

    @classmethod
    def all_enabled(cls) -> Self:
        """Return the default of a config created in Python: every sink that needs no account is enabled."""
        return cls.model_validate(cls.completed({}))

    @classmethod
    def completed(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a config created in Python, with every sink enabled that needs no account."""
        sinks = {name: values.get(name, {}) for name in ("mlflow", "tensorboard", "console")}
        enabled_sinks = {name: {"enabled": True, **sink} for name, sink in sinks.items() if isinstance(sink, Mapping)}
        return {**values, **enabled_sinks}


OUR_NAMES = tuple(
    name
    for name, field in SinksConfig.model_fields.items()
    if "enabled" in getattr(field.annotation, "model_fields", ())
)
"""Names of the sinks of trieye: the fields of `SinksConfig` with a key `enabled`."""
