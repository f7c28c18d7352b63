"""ActorState: what the hub remembers between two processing passes."""

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from trieye.stats.batch import EventBatch, EventRow, salvage
from trieye.stats.drops import Drops
from trieye.stats.point import Point

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


EventsByStep = dict[int, dict[str, list[RawMetricEvent]]]


class ActorState:
    """Events that were accepted and not yet processed, and where processing stands; safe to use from several threads.

    Attributes:
        drops: Events that could not be accepted.
    """

    def __init__(self) -> None:
        self.drops = Drops()
        self._lock = threading.Lock()
        self._rows: list[EventRow | tuple[Any, ...]] = []
        self._batches: list[EventBatch] = []
        self._num_pending = 0
        self._last_step = -1
        self._last_time = 0.0
        self._last_log_times: dict[str, float] = {}
        self._latest: dict[str, tuple[int, float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_lock", "drops"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), drops=Drops())

    def __len__(self) -> int:
        return self._num_pending

    def add_event(self, event: RawMetricEvent, *, arrived: float = 0.0) -> None:
        """Take one event.

        Args:
            event: The event.
            arrived: Unix time in seconds, for an event without a timestamp or with one that is no date.
        """
        with self._lock:
            self._rows.append(row_of(event, arrived=arrived))
            self._num_pending += 1

    def add_batch(self, batch: EventBatch) -> None:
        """Take a batch of events."""
        with self._lock:
            self._seal()
            self._batches.append(batch)
            self._num_pending += len(batch)

    def add_rows(self, batch: EventBatch) -> None:
        """Take the events of a batch one by one: `take` joins them with those around them."""
        names = map(batch.names.__getitem__, batch.codes.tolist())
        contexts = map(batch.contexts.get, range(len(batch)))
        rows = zip(names, batch.values.tolist(), batch.steps.tolist(), batch.times.tolist(), contexts, strict=True)
        with self._lock:
            self._rows += rows
            self._num_pending += len(batch)

    def take(self) -> list[EventBatch]:
        """Return all pending events in the order of their arrival, and forget them."""
        with self._lock:
            self._seal()
            taken, self._batches, self._num_pending = self._batches, [], 0
        return taken

    def _seal(self) -> None:
        if not self._rows:
            return
        rows, self._rows = self._rows, []
        try:
            batch = EventBatch.from_rows(rows)
        except (OverflowError, TypeError, ValueError):
            good, bad = salvage([EventRow(*row) for row in rows])
            for reason, name in bad:
                self.drops.add(reason, name)
            batch = EventBatch.from_rows(good)
        self._batches.append(batch)

    def get_data_to_process(self, current_global_step: int) -> tuple[EventsByStep, int]:
        """Return pending events up to a step as {step: {name: [event]}}, and the highest step among them (or -1)."""
        found: EventsByStep = defaultdict(lambda: defaultdict(list))
        for event in self._pending_events():
            if event.global_step <= current_global_step:
                found[event.global_step][event.name].append(event)
        return {step: dict(by_name) for step, by_name in found.items()}, max(found, default=-1)

    def clear_processed_data(self, current_step: int) -> None:
        """Forget pending events up to a step."""
        later = [event for event in self._pending_events() if event.global_step > current_step]
        self.take()
        for event in later:
            self.add_event(event)

    def _pending_events(self) -> list[RawMetricEvent]:
        with self._lock:
            self._seal()
            batches = list(self._batches)
        return [
            RawMetricEvent(
                name=batch.names[code],
                value=value,
                global_step=step,
                timestamp=time,
                context=dict(batch.contexts.get(index, {})),
            )
            for batch in batches
            for index, (code, value, step, time) in enumerate(
                zip(
                    batch.codes.tolist(), batch.values.tolist(), batch.steps.tolist(), batch.times.tolist(), strict=True
                )
            )
        ]

    def get_log_context(self, latest_step: int, current_time: float) -> LogContext:
        """Return clock and latest values of a pass."""
        return LogContext(
            latest_step=latest_step,
            last_log_time=self._last_time,
            current_time=current_time,
            latest_values=dict(self._latest),
        )

    def note_pass(
        self, points: Sequence[Point], *, at: float, step: int | None, latest: dict[str, tuple[int, float]]
    ) -> None:
        """Remember a pass.

        Args:
            points: What was logged.
            at: Journal time in seconds.
            step: The step that was said to be complete, if any.
            latest: (step, value) of each metric.
        """
        for point in points:
            self._last_log_times[point.metric] = at
        self._latest = latest
        self.update_last_processed_time(at)
        if step is not None:
            self.update_last_processed_step(step)

    def update_last_processed_step(self, step: int) -> None:
        """Remember the highest step of a pass."""
        self._last_step = max(self._last_step, step)

    def get_last_processed_step(self) -> int:
        """Return the highest step of all passes; -1 before the first."""
        return self._last_step

    def update_last_processed_time(self, at: float) -> None:
        """Remember the time of a pass, in seconds of journal time."""
        self._last_time = at

    def get_last_processed_time(self) -> float:
        """Return the time of the last pass, in seconds of journal time."""
        return self._last_time

    def get_persistable_state(self) -> dict[str, Any]:
        """Return plain data that `restore_from_state` takes."""
        return {
            "last_processed_step": self._last_step,
            "last_processed_time": self._last_time,
            "_last_log_time_per_metric": dict(self._last_log_times),
        }

    def restore_from_state(self, state: dict[str, Any]) -> None:
        """Go on where `get_persistable_state` left off.

        Pending events are kept. The times are only reported: they count from the start of an attempt, so nothing is
        scheduled by those of another one.
        """
        self._last_step = int(state.get("last_processed_step", -1))
        self._last_time = float(state.get("last_processed_time", 0.0))
        self._last_log_times = dict(state.get("_last_log_time_per_metric", {}))


class SentEvents(NamedTuple):
    """Events of the drop-in API on their way to the actor: plain values, which pickle passes on ten times as fast.

    Attributes:
        rows: Name, value, step, timestamp and context of each; the last two may be None.
        drops: (reason, name, count) of what is no event.
    """

    rows: list[tuple[Any, ...]]
    drops: list[tuple[str, str, int]]

    @classmethod
    def of(cls, events: Iterable[Any]) -> Self:
        """Return events, and whatever is among them, to be sent."""
        sent = cls([], [])
        for event in events:
            if isinstance(event, RawMetricEvent):
                sent.rows.append((event.name, event.value, event.global_step, event.timestamp, event.context or None))
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
