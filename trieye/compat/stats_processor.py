"""StatsProcessor of trieye 0.1.5: events to points at once, for programs that have no hub."""

from operator import attrgetter
from pathlib import Path
from typing import Any

from trieye.compat.events import LogContext, RawMetricEvent
from trieye.config import StatsConfig
from trieye.sinks.base import RunInfo, Sink
from trieye.sinks.console import ConsoleSink
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.tensorboard.sink import ScalarWriterSink
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow


class StatsProcessor:
    """Turn events into points and hand them to a writer and a client at once, in programs that have no hub.

    Args:
        config: The metrics.
        run_name: Name of the run.
        tb_writer: A writer with `add_scalar`; None: no points go there.
        mlflow_run_id: The MLflow run that points go to.
        _mlflow_client: The MLflow client to use; None: no points go to MLflow.
    """

    def __init__(
        self,
        config: StatsConfig,
        run_name: str = "",
        tb_writer: Any = None,
        mlflow_run_id: str | None = None,
        _mlflow_client: Any = None,
    ) -> None:
        self.config = config
        self.run_name = run_name
        self.aggregator = Aggregator(config.metrics, undeclared=config.undeclared or "auto")
        self._sinks = _opened(run_name, tb_writer, mlflow_run_id, _mlflow_client)

    def process_and_log(self, raw_data: dict[int, dict[str, list[RawMetricEvent]]], context: LogContext) -> None:
        """Process events given as {step: {name: [event]}} in one pass, and log all their windows."""
        rows = [
            EventRow(event.name, event.value, step, event.timestamp or context.current_time, event.context or None)
            for step, by_name in sorted(raw_data.items())
            for events in by_name.values()
            for event in events
        ]
        time_s = max(context.current_time - context.last_log_time, 0.0)
        if rows:
            self.aggregator.ingest(EventBatch.from_rows(rows), at=time_s)
        points = sorted(self.aggregator.flush(at=time_s), key=attrgetter("step"))
        for sink in self._sinks if points else ():
            sink.write([point for point in points if sink.name in point.log_to])


def _opened(run_name: str, tb_writer: Any, mlflow_run_id: str | None, mlflow_client: Any) -> list[Sink]:
    sinks: list[Sink] = [ConsoleSink()]
    if tb_writer is not None:
        sinks.append(ScalarWriterSink(tb_writer))
    if mlflow_client is not None and mlflow_run_id is not None:
        sinks.append(MlflowSink(client=mlflow_client))
    current_dir = Path()
    run = RunInfo(
        app_name="",
        run_name=run_name,
        run_id=run_name,
        run_dir=current_dir,
        tensorboard_dir=current_dir,
        mlflow_dir=current_dir,
        tracking_uri="",
        created=0.0,
        mlflow_run_id=mlflow_run_id,
        tags={},
    )
    for sink in sinks:
        sink.open(run)
    return sinks
