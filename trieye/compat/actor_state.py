"""ActorState of trieye 0.1.5: the queue of the hub with access to single events, and the progress of processing."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from trieye.compat.events import LogContext, RawMetricEvent, row_of
from trieye.hub.pending import PendingEvents
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow, salvage
from trieye.stats.drops import Drops
from trieye.stats.point import Point

EventsByStep = dict[int, dict[str, list[RawMetricEvent]]]


class ActorState(PendingEvents):
    """Accepted events that are not yet processed, and the progress of processing; safe to use from several threads.

    Attributes:
        drops: Events that could not be accepted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drops = Drops()
        self._last_step = -1
        self._last_time = 0.0
        self._last_log_times: dict[str, float] = {}
        self._latest: dict[str, tuple[int, float]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_lock", "drops"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), drops=Drops())

    def add_event(self, event: RawMetricEvent, *, arrived: float = 0.0) -> None:
        """Take one event.

        Args:
            event: The event.
            arrived: Unix time in seconds, for an event without a timestamp or with one that is no date.
        """
        with self._lock:
            self._rows.append(row_of(event, arrived=arrived))
            self._num_pending += 1

    def _batch_of(self, rows: Sequence[EventRow | tuple[Any, ...]]) -> EventBatch:
        try:
            return super()._batch_of(rows)
        except (OverflowError, TypeError, ValueError):
            good, bad = salvage([EventRow(*row) for row in rows])
            for reason, name in bad:
                self.drops.add(reason, name)
            return EventBatch.from_rows(good)

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

    def note_pass(self, points: Sequence[Point], stats: Aggregator, *, at: float, step: int | None) -> None:
        """Remember a pass; see `PendingEvents.note_pass`."""
        self._last_log_times.update((point.metric, at) for point in points)
        self._latest = stats.latest()
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
