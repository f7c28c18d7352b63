"""StatsConfig: declared metrics, undeclared events, and how often events are processed."""

from collections import Counter
from typing import Literal

from pydantic import Field, field_validator

from trieye.config.base import Keyed
from trieye.config.metric import MetricConfig
from trieye.config.spellings import ModelOf015


class StatsConfig(ModelOf015):
    """How events are aggregated to points."""

    spellings = ("processing_interval_seconds", "metrics")

    processing_interval_seconds: float = Field(
        default=1.0, gt=0, description="Seconds between two rounds of processing events to points in the hub."
    )
    hub_metrics_interval_s: float = Field(
        default=30.0,
        ge=0,
        description="Seconds between two points of the hub's internal metrics, such as trieye/accepted; 0 = none.",
    )
    metrics: Keyed[MetricConfig] = Field(
        default_factory=list,
        description="Metrics and their aggregation; in YAML a dict keyed by names of your choice, where null removes "
        "an entry.",
    )
    undeclared: Literal["auto", "each", "warn", "drop"] | None = Field(
        default=None,
        description="What to do with events that no metric reads: auto = log the mean at every step; each = log each "
        "event as a point; warn = count them and warn once per name; drop = count them. null = auto, except warn in "
        "TrieyeActor, the API of trieye 0.1.5, once any metric is configured.",
    )

    @field_validator("metrics")
    @classmethod
    def _names_are_unique(cls, metrics: list[MetricConfig]) -> list[MetricConfig]:
        duplicates = sorted(name for name, count in Counter(metric.name for metric in metrics).items() if count > 1)
        if duplicates:
            raise ValueError(f"Duplicate metric names found: {', '.join(duplicates)}")
        return metrics
