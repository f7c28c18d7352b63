"""ActorState of trieye 0.1.5: events that wait for the hub, and the progress of processing."""

from collections import defaultdict
from typing import Any

from trieye.compat.events import LogContext, RawMetricEvent

EventsByStep = dict[int, dict[str, list[RawMetricEvent]]]


class ActorState:
    """Events that are not yet processed, and the progress of processing; the hub takes the events at its next pass."""

    def __init__(self) -> None:
        self._events: list[RawMetricEvent] = []
        self._latest: dict[str, tuple[int, float]] = {}
        self._last_step, self._last_time = -1, 0.0
        self._last_log_times: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._events)

    def add_event(self, event: RawMetricEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self._latest[event.name] = (event.global_step, event.value)

    def take(self) -> list[RawMetricEvent]:
        """Remove all events and return them in the order of their arrival."""
        events, self._events = self._events, []
        return events

    def get_data_to_process(self, current_global_step: int) -> tuple[EventsByStep, int]:
        """Return the events up to a step as {step: {name: [event]}}, and the highest step among them (or -1)."""
        by_step: EventsByStep = defaultdict(lambda: defaultdict(list))
        for event in self._events:
            if event.global_step <= current_global_step:
                by_step[event.global_step][event.name].append(event)
        return {step: dict(by_name) for step, by_name in by_step.items()}, max(by_step, default=-1)

    def clear_processed_data(self, current_step: int) -> None:
        """Remove the events up to a step."""
        self._events = [event for event in self._events if event.global_step > current_step]

    def get_log_context(self, latest_step: int, current_time: float) -> LogContext:
        """Return the clock of a pass, and step and value of the latest event of each name."""
        return LogContext(
            latest_step=latest_step,
            last_log_time=self._last_time,
            current_time=current_time,
            latest_values=dict(self._latest),
        )

    def update_last_processed_step(self, step: int) -> None:
        """Remember the highest step of a pass."""
        self._last_step = max(self._last_step, step)

    def get_last_processed_step(self) -> int:
        """Return the highest step of all passes; -1 before the first."""
        return self._last_step

    def update_last_processed_time(self, at: float) -> None:
        """Remember the time of a pass, in seconds."""
        self._last_time = at

    def get_last_processed_time(self) -> float:
        """Return the time of the last pass, in seconds."""
        return self._last_time

    def get_persistable_state(self) -> dict[str, Any]:
        """Return plain data that `restore_from_state` takes."""
        return {
            "last_processed_step": self._last_step,
            "last_processed_time": self._last_time,
            "_last_log_time_per_metric": dict(self._last_log_times),
        }

    def restore_from_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of `get_persistable_state`; pending events are kept, and nothing is scheduled by it."""
        self._last_step = int(state.get("last_processed_step", -1))
        self._last_time = float(state.get("last_processed_time", 0.0))
        self._last_log_times = dict(state.get("_last_log_time_per_metric", {}))
