"""RawMetricEvent and LogContext of trieye 0.1.5, and events as the rows of a batch."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from trieye.stats.batch import MAX_CONTEXT_BYTES, EventRow, context_bytes

MAX_TIMESTAMP_S = 253_402_300_800.0
"""The year 10000; no backend can show a later date."""


class Schema(BaseModel):
    """A model of the 0.1.5 API, whose fields hold objects of the user."""

    model_config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=())


class RawMetricEvent(Schema):
    """One raw value from user code.

    NumPy scalars, zero-dimensional tensors, booleans and numeric strings are accepted as values.
    """

    name: str
    value: float | int
    global_step: int
    timestamp: float | None = Field(default=None, description="Unix time in seconds; the time of arrival if None.")
    context: dict[str, Any] = Field(default_factory=dict)

    def is_valid(self) -> bool:
        """Return whether the value is finite.

        Raises:
            TypeError: The value is an integer beyond the range of a float.
        """
        try:
            return math.isfinite(self.value)
        except OverflowError as error:
            raise TypeError(f"event {self.name!r}: value is beyond the range of a float") from error


class LogContext(Schema):
    """Clock and latest values of one processing pass."""

    latest_step: int
    last_log_time: float
    current_time: float
    event_timestamps: dict[str, list[tuple[float, int]]] = Field(default_factory=dict)
    latest_values: dict[str, tuple[int, float]] = Field(default_factory=dict)


class SentEvents(NamedTuple):
    """Events of the drop-in API on their way to the actor: plain values, which pickle passes on ten times as fast.

    Attributes:
        rows: Name, value, step, timestamp and context of each; the last two may be None.
        drops: (reason, name, count) of other objects, and of contexts that are too large.
    """

    rows: list[tuple[Any, ...]]
    drops: list[tuple[str, str, int]]

    @classmethod
    def of(cls, events: Iterable[Any]) -> Self:
        """Pack events for sending; other objects count as dropped."""
        sent_events = cls([], [])
        for event in events:
            if isinstance(event, RawMetricEvent):
                context = event.context or None
                if context is not None and context_bytes(context) > MAX_CONTEXT_BYTES:
                    sent_events.drops.append(("context_too_large", event.name, 1))
                    context = None
                sent_events.rows.append((event.name, event.value, event.global_step, event.timestamp, context))
            else:
                sent_events.drops.append(("invalid", type(event).__name__, 1))
        return sent_events


def rows_of(events: Iterable[Any] | SentEvents, *, arrived: float) -> tuple[list[EventRow], list[tuple[str, str, int]]]:
    """Return events as the rows of a batch, and (reason, name, count) of other objects."""
    sent_events = events if isinstance(events, SentEvents) else SentEvents.of(events)
    rows = [
        EventRow(name, value, step, time if time is not None and 0.0 <= time < MAX_TIMESTAMP_S else arrived, context)
        for name, value, step, time, context in sent_events.rows
    ]
    return rows, sent_events.drops
