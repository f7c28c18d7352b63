"""make_sinks: the sinks that a config asks for, and those of installed packages."""

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from trieye.config.sinks import SinksConfig
from trieye.sinks.base import Sink
from trieye.sinks.console import ConsoleSink
from trieye.sinks.mlflow import MlflowSink
from trieye.sinks.tensorboard import TensorboardSink

log = logging.getLogger("trieye.sinks")

ENTRY_POINT_GROUP = "trieye.sinks"
"""Packages offer a sink under this group: its name, and a class that is called without arguments."""


def make_sinks(
    config: SinksConfig,
    *,
    on_run_id: Callable[[str], None] | None = None,
    mlflow_client: Any = None,
    tb_writer: Any = None,
) -> list[Sink]:
    """Make the enabled sinks, not yet open, and one of each kind that installed packages offer.

    Args:
        config: Which sinks are enabled.
        on_run_id: Told the id of the MLflow run, on the sink's thread, before the first point is written.
        mlflow_client: An `MlflowClient` to use as it is.
        tb_writer: An object with `add_scalar`, `flush` and `close` to use as it is.
    """
    sinks: list[Sink] = []
    if config.mlflow.enabled:
        sinks.append(MlflowSink(on_run_id, mlflow_client))
    if config.tensorboard.enabled:
        sinks.append(TensorboardSink(config.tensorboard.flush_interval_s, tb_writer))
    if config.console.enabled:
        sinks.append(ConsoleSink())
    return [*sinks, *_sinks_of_packages({"mlflow", "tensorboard", "console"})]


def _sinks_of_packages(taken: set[str]) -> list[Sink]:
    sinks: list[Sink] = []
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            sink = entry_point.load()()
            if not isinstance(sink.name, str) or sink.name in taken:
                raise ValueError(f"its name {sink.name!r} is taken or no string")  # noqa: TRY301 - the border is one
        except Exception as error:  # noqa: BLE001 - the border to a sink: somebody else's package must not stop the run
            log.warning("sink %s of an installed package is left out: %s", entry_point.value, error)
            continue
        taken.add(sink.name)
        sinks.append(sink)
    return sinks
