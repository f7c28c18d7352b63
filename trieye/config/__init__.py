"""The config of a run: one pydantic model for each Hydra group; importing it loads no Hydra."""

from typing import Any

from trieye.config import metric
from trieye.config.loop import LoopConfig
from trieye.config.metric import AggregationMethod, DataSource, LogTarget, MetricConfig, XAxis
from trieye.config.persistence import PersistenceConfig
from trieye.config.replay import ReplayConfig
from trieye.config.root import TrieyeConfig
from trieye.config.runtime import RuntimeConfig
from trieye.config.sinks import ConsoleSinkConfig, MlflowSinkConfig, SinksConfig, TensorboardSinkConfig
from trieye.config.stats import StatsConfig

__all__ = [
    "DEFAULT_METRICS",
    "AggregationMethod",
    "ConsoleSinkConfig",
    "DataSource",
    "LogTarget",
    "LoopConfig",
    "MetricConfig",
    "MlflowSinkConfig",
    "PersistenceConfig",
    "ReplayConfig",
    "RuntimeConfig",
    "SinksConfig",
    "StatsConfig",
    "TensorboardSinkConfig",
    "TrieyeConfig",
    "XAxis",
]

DEFAULT_METRICS: list[MetricConfig]


def __getattr__(name: str) -> Any:
    if name == "DEFAULT_METRICS":
        return metric.DEFAULT_METRICS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
