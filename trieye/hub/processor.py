"""StatsProcessor: events to windows to points to sinks."""

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trieye.config import StatsConfig
from trieye.files.run_record import MetricSummary
from trieye.hub.pending import LogContext, RawMetricEvent
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow
from trieye.stats.point import Point

if TYPE_CHECKING:
    from trieye.sinks.base import Sink


class PointSink(Protocol):
    """Where points go: a `FanOut` of sinks in a run, a list in a test."""

    def write(self, points: Sequence[Point]) -> None:
        """Take points; never blocks on I/O."""


class StatsProcessor:
    """Turn events into points and hand them to the sinks.

    Args:
        config: The metrics.
        run_name: Name of the run.
        tb_writer: A writer with `add_scalar`, used instead of the run's own event file; for `process_and_log`.
        mlflow_run_id: The MLflow run that points go to; for `process_and_log`.
        _mlflow_client: The MLflow client to use; for `process_and_log`.
        sinks: Where points go; None: to the writer and the client given.
        undeclared: What to do with events that no metric reads; None: what the config says.
    """

    def __init__(
        self,
        config: StatsConfig,
        run_name: str = "",
        tb_writer: Any = None,
        mlflow_run_id: str | None = None,
        _mlflow_client: Any = None,
        *,
        sinks: PointSink | None = None,
        undeclared: Literal["auto", "warn", "drop"] | None = None,
    ) -> None:
        self.config = config
        self.run_name = run_name
        self.aggregator = Aggregator(config.metrics, undeclared=undeclared or config.undeclared or "auto")
        self._sinks = _DirectSinks(run_name, tb_writer, mlflow_run_id, _mlflow_client) if sinks is None else sinks

    def ingest(self, batches: Sequence[EventBatch], *, at: float) -> None:
        """Take batches in the order of their arrival; `at` is journal time in seconds."""
        for batch in batches:
            if len(batch):
                self.aggregator.ingest(batch, at=at)

    def advance(self, *, at: float, step: int | None = None) -> list[Point]:
        """Close the windows that are complete, and send their points to the sinks."""
        return self._send(self.aggregator.advance(at=at, step=step))

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Send the points of all windows up to a step, open ones too."""
        return self._send(self.aggregator.flush(at=at, step=step))

    def _send(self, points: list[Point]) -> list[Point]:
        if points:
            # in the order of their steps, as people read them on a terminal
            self._sinks.write(sorted(points, key=attrgetter("step")))
        return points

    @property
    def highest_step(self) -> int:
        """Highest step of any event; -1 before the first."""
        return self.aggregator.highest_step

    @property
    def summary(self) -> dict[str, MetricSummary]:
        """Extremes of the points of each metric."""
        return self.aggregator.summary

    def process_and_log(self, raw_data: dict[int, dict[str, list[RawMetricEvent]]], context: LogContext) -> None:
        """Process events given as {step: {name: [event]}} in one pass, and log all their windows."""
        rows = [
            EventRow(event.name, event.value, step, event.timestamp or context.current_time, event.context or None)
            for step, by_name in sorted(raw_data.items())
            for events in by_name.values()
            for event in events
        ]
        at = max(context.current_time - context.last_log_time, 0.0)
        self.ingest([EventBatch.from_rows(rows)], at=at)
        self.flush(at=at)


class _DirectSinks:
    """The writer and the client that the caller made, as sinks that are written to at once."""

    def __init__(self, run_name: str, tb_writer: Any, mlflow_run_id: str | None, mlflow_client: Any) -> None:
        self._sinks = list(_opened(run_name, tb_writer, mlflow_run_id, mlflow_client))

    def write(self, points: Sequence[Point]) -> None:
        for sink in self._sinks:
            sink.write([point for point in points if sink.name in point.log_to])


def _opened(run_name: str, tb_writer: Any, mlflow_run_id: str | None, mlflow_client: Any) -> "list[Sink]":
    from pathlib import Path

    from trieye.sinks.base import RunInfo
    from trieye.sinks.console import ConsoleSink

    sinks: list[Sink] = [ConsoleSink()]
    if tb_writer is not None:
        from trieye.sinks.tensorboard.scalar_writer import ScalarWriterSink

        sinks.append(ScalarWriterSink(tb_writer))
    if mlflow_client is not None and mlflow_run_id is not None:
        from trieye.sinks.mlflow.sink import MlflowSink

        sinks.append(MlflowSink(client=mlflow_client))
    here = Path()
    run = RunInfo(
        app_name="",
        run_name=run_name,
        run_id=run_name,
        run_dir=here,
        tensorboard_dir=here,
        mlflow_dir=here,
        tracking_uri="",
        created=0.0,
        mlflow_run_id=mlflow_run_id,
        tags={},
    )
    for sink in sinks:
        sink.open(run)
    return sinks
