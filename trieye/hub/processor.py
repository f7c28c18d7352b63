"""The drop-in API's events: as rows of a batch, and through a StatsProcessor, which knows no hub."""

import math
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from trieye.config import StatsConfig
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import MAX_CONTEXT_BYTES, EventBatch, EventRow, context_bytes

if TYPE_CHECKING:
    from trieye.sinks.base import Sink

MAX_TIMESTAMP_S = 253_402_300_800.0
"""The year 10000; no backend can show a later date."""


class RawMetricEvent(BaseModel):
    """One raw value from user code.

    NumPy scalars, zero-dimensional tensors, booleans and numeric strings are accepted as values.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())

    name: str
    value: float | int
    global_step: int
    timestamp: float | None = Field(default=None, description="Unix time in seconds; the time of arrival if None.")
    context: dict[str, Any] = Field(default_factory=dict)

    def is_valid(self) -> bool:
        """Tell whether the value is finite.

        Raises:
            TypeError: The value is an integer beyond the range of a float.
        """
        try:
            return math.isfinite(self.value)
        except OverflowError as error:
            raise TypeError(f"event {self.name!r}: value is beyond the range of a float") from error


class LogContext(BaseModel):
    """Clock and latest values of one processing pass."""

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())

    latest_step: int
    last_log_time: float
    current_time: float
    event_timestamps: dict[str, list[tuple[float, int]]] = Field(default_factory=dict)
    latest_values: dict[str, tuple[int, float]] = Field(default_factory=dict)


class SentEvents(NamedTuple):
    """Events of the drop-in API on their way to the actor: plain values, which pickle passes on ten times as fast.

    Attributes:
        rows: Name, value, step, timestamp and context of each; the last two may be None.
        drops: (reason, name, count) of what is no event, and of contexts that are too large.
    """

    rows: list[tuple[Any, ...]]
    drops: list[tuple[str, str, int]]

    @classmethod
    def of(cls, events: Iterable[Any]) -> Self:
        """Return events, and whatever is among them, to be sent."""
        sent = cls([], [])
        for event in events:
            if isinstance(event, RawMetricEvent):
                context = event.context or None
                if context is not None and context_bytes(context) > MAX_CONTEXT_BYTES:
                    sent.drops.append(("context_too_large", event.name, 1))
                    context = None
                sent.rows.append((event.name, event.value, event.global_step, event.timestamp, context))
            else:
                sent.drops.append(("invalid", type(event).__name__, 1))
        return sent


def row_of(event: RawMetricEvent, *, arrived: float) -> EventRow:
    """Return an event as the row of a batch; see `ActorState.add_event`."""
    return rows_of([event], arrived=arrived)[0][0]


def rows_of(events: Iterable[Any] | SentEvents, *, arrived: float) -> tuple[list[EventRow], list[tuple[str, str, int]]]:
    """Return events as the rows of a batch, and (reason, name, count) of what is no event."""
    sent = events if isinstance(events, SentEvents) else SentEvents.of(events)
    rows = [
        EventRow(name, value, step, time if time is not None and 0.0 <= time < MAX_TIMESTAMP_S else arrived, context)
        for name, value, step, time, context in sent.rows
    ]
    return rows, sent.drops


def plain_step(step: Any) -> int:
    """Return a step as an int of Python; 0 for what is none, which is refused elsewhere with a message."""
    plain = int(step) if isinstance(step, int | np.integer) else 0
    return plain if abs(plain) < 1 << 62 else 0


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
        at = max(context.current_time - context.last_log_time, 0.0)
        if rows:
            self.aggregator.ingest(EventBatch.from_rows(rows), at=at)
        points = sorted(self.aggregator.flush(at=at), key=attrgetter("step"))
        for sink in self._sinks if points else ():
            sink.write([point for point in points if sink.name in point.log_to])


def _opened(run_name: str, tb_writer: Any, mlflow_run_id: str | None, mlflow_client: Any) -> "list[Sink]":
    from pathlib import Path

    from trieye.sinks.base import RunInfo
    from trieye.sinks.console import ConsoleSink

    sinks: list[Sink] = [ConsoleSink()]
    if tb_writer is not None:
        from trieye.sinks.tensorboard.sink import ScalarWriterSink

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
