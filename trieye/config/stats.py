"""StatsConfig: which metrics there are and how often they are processed."""

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from trieye.config.base import TolerantModel
from trieye.config.metric import MetricConfig


def _values_of_a_dict(metrics: Any) -> Any:
    """Take the metric sets of Hydra, which are a dict keyed by slug, as the list that they stand for."""
    if isinstance(metrics, dict):
        return [metric for metric in metrics.values() if metric is not None]
    return metrics


class StatsConfig(TolerantModel):
    """How events become points."""

    processing_interval_seconds: float = Field(
        default=1.0, gt=0, le=3600, description="Seconds between two processing passes of the hub."
    )
    metrics: Annotated[list[MetricConfig], BeforeValidator(_values_of_a_dict)] = Field(
        default_factory=list, description="The metrics; in YAML a dict keyed by a short name of your choice."
    )
    undeclared: Literal["auto", "warn", "drop"] | None = Field(
        default=None,
        description="Events that no metric reads: `auto` = mean at every step, `warn` = count and warn once, `drop` = count; "
        "null = auto, but warn for the drop-in actor once any metric is configured.",
    )

    @field_validator("metrics")
    @classmethod
    def _names_are_unique(cls, metrics: list[MetricConfig]) -> list[MetricConfig]:
        twice = sorted(name for name, count in Counter(metric.name for metric in metrics).items() if count > 1)
        if twice:
            raise ValueError(f"Duplicate metric names found: {', '.join(twice)}")
        return metrics
