"""make_sinks: the sinks that a config asks for, and those of installed packages.

A package offers a sink of its own with three lines in its `pyproject.toml`, and it gets every point as soon as the
package is installed:

    [project.entry-points."trieye.sinks"]
    mine = "my_package.sinks:MySink"

`MySink` is a class that is called without arguments and follows `trieye.sinks.base.Sink`; it passes the tests of
`trieye.testing.SinkContract`.
"""

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from trieye.config.sinks import SinksConfig
from trieye.sinks.base import Sink
from trieye.sinks.console import ConsoleSink
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.tensorboard.scalar_writer import ScalarWriterSink
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.sinks.wandb import WandbSink

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

    Raises:
        ConfigurationError: A sink is enabled whose library is not installed.
    """
    config.check()
    sinks: list[Sink] = []
    if config.mlflow.enabled:
        interval_s = config.mlflow.system_metrics_interval_s if config.mlflow.system_metrics else None
        sinks.append(MlflowSink(on_run_id, mlflow_client, system_metrics_interval_s=interval_s))
    if config.tensorboard.enabled:
        interval_s = config.tensorboard.flush_interval_s
        sinks.append(TensorboardSink(interval_s) if tb_writer is None else ScalarWriterSink(tb_writer, interval_s))
    if config.console.enabled:
        sinks.append(ConsoleSink())
    if config.wandb.enabled:
        sinks.append(WandbSink(config.wandb))
    return [*sinks, *_sinks_of_packages({"mlflow", "tensorboard", "console", "wandb"})]


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
