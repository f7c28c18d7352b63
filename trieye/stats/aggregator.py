"""Aggregator: batches of events in, points out; it knows no clock but the one it is given."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from trieye.config import MetricConfig
from trieye.schemas import MetricSummary
from trieye.stats.batch import EventBatch
from trieye.stats.drops import Drops
from trieye.stats.point import Point
from trieye.stats.reducers import Ints
from trieye.stats.windows import MetricWindows, windows_for

MAX_UNDECLARED_NAMES = 10_000
MAX_STEP = 1 << 62
"""Steps beyond it could not be rounded up to the end of their window within int64."""


class Aggregator:
    """Turn events into points, for all metrics of a run.

    Args:
        metrics: The declared metrics.
        undeclared: What to do with events that no metric reads; `auto` makes a metric: the mean at every step.
        started: Unix time in seconds at which journal time is zero.
        run_created: Unix time in seconds at which the run began: the zero of `x_axis=wall_time`.

    Attributes:
        drops: What was not logged.
        summary: Extremes of the points of each metric.
    """

    def __init__(
        self,
        metrics: Iterable[MetricConfig],
        *,
        undeclared: Literal["auto", "warn", "drop"] = "auto",
        started: float = 0.0,
        run_created: float | None = None,
    ) -> None:
        self.drops = Drops()
        self.summary: dict[str, MetricSummary] = {}
        self._undeclared = undeclared
        self._started = started
        self._run_created = started if run_created is None else run_created
        self._windows: dict[str, MetricWindows] = {}
        self._readers: defaultdict[str, list[MetricWindows]] = defaultdict(list)
        self._num_undeclared = 0
        self._attempt = uuid.uuid4().hex
        self._is_restored = False
        for metric in metrics:
            self._declare(metric)

    def _declare(self, metric: MetricConfig) -> MetricWindows:
        windows = windows_for(metric, started=self._started)
        self._windows[metric.name] = windows
        numerator = metric.rate_numerator_event if metric.aggregation == "rate" else None
        self._readers[numerator or metric.event_key].append(windows)
        return windows

    def ingest(self, batch: EventBatch, *, at: float) -> None:
        """Take events in the order of their arrival.

        Args:
            batch: The events.
            at: Journal time in seconds.
        """
        if not len(batch):
            return
        for name, events in self._by_name(batch):
            readers = self._readers.get(name) or self._undeclared_reader(name, len(events))
            for windows in readers:
                self._feed(windows, events, at)

    def _by_name(self, batch: EventBatch) -> list[tuple[str, EventBatch]]:
        if batch.steps.max() > MAX_STEP or batch.steps.min() < -MAX_STEP:
            in_range = (batch.steps <= MAX_STEP) & (batch.steps >= -MAX_STEP)
            for code in batch.codes[~in_range].tolist():
                self.drops.add("step_out_of_range", batch.names[code])
            batch = batch.take(np.flatnonzero(in_range))
        if len(batch.names) == 1:
            return [(batch.names[0], batch)] if len(batch) else []
        order = np.argsort(batch.codes, kind="stable")
        bounds = np.searchsorted(batch.codes[order], np.arange(len(batch.names) + 1))
        slices = zip(batch.names, bounds[:-1], bounds[1:], strict=True)
        return [(name, batch.take(order[start:stop])) for name, start, stop in slices if stop > start]

    def _undeclared_reader(self, name: str, count: int) -> list[MetricWindows]:
        if not _is_name(name):
            self.drops.add("unnamed", ascii(name), count)
            return []
        if self._undeclared == "auto" and self._num_undeclared < MAX_UNDECLARED_NAMES:
            self._num_undeclared += 1
            return [self._declare(MetricConfig(name=name, aggregation="mean"))]
        if self._undeclared == "drop":
            self.drops.count("undeclared", count)
        else:
            self.drops.add("undeclared", name, count)
        return []

    def _feed(self, windows: MetricWindows, events: EventBatch, at: float) -> None:
        config = windows.config
        if config.context_key is not None:
            events = self._from_context(config, events)
        finite = np.isfinite(events.values)
        if not finite.all():
            self.drops.add("non_finite", config.name, int((~finite).sum()))
            events = events.take(np.flatnonzero(finite))
        if len(events):
            windows.add(events.values, events.steps, events.times, self._xs(windows, events), at=at)

    def _from_context(self, config: MetricConfig, events: EventBatch) -> EventBatch:
        """Return the events whose context holds the metric's key, with that value; others are not meant for it."""
        key = config.context_key or ""
        kept, values = [], []
        for row, context in events.contexts.items():
            if key not in context:
                continue
            try:
                values.append(float(context[key]))
                kept.append(row)
            except (TypeError, ValueError, OverflowError, RuntimeError):  # whatever float() of a user's object raises
                self.drops.add("context", config.name)
        return replace(events.take(np.array(kept, dtype=np.intp)), values=np.array(values, dtype=np.float64))

    def _xs(self, windows: MetricWindows, events: EventBatch) -> Ints | None:
        axis = windows.config.x_axis
        if axis == "global_step":
            return None
        if axis == "wall_time":
            elapsed: Ints = np.floor(np.clip(events.times - self._run_created, 0.0, MAX_STEP)).astype(np.int64)
            return elapsed
        counted = np.arange(windows.num_events + 1, windows.num_events + 1 + len(events), dtype=np.int64)
        for row, context in events.contexts.items():
            if isinstance(episode := context.get("episode"), int | np.integer) and abs(int(episode)) <= MAX_STEP:
                counted[row] = episode
        return counted

    def advance(self, *, at: float, step: int | None = None) -> list[Point]:
        """Close windows that are complete, and return their points.

        Args:
            at: Journal time in seconds.
            step: The step that is complete; None: the one before each metric's highest.
        """
        return self._noted([p for windows in self._windows.values() for p in windows.advance(at=at, step=step)], at)

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Return points of all windows, open ones too, up to a step (None: all)."""
        return self._noted([p for windows in self._windows.values() for p in windows.flush(at=at, step=step)], at)

    def _noted(self, points: list[Point], at: float) -> list[Point]:
        for point in points:
            self._summarize(point)
        dropped = self.drops.changed()
        step = max((w.highest for w in self._windows.values() if w.highest is not None), default=0)
        return points + [
            Point(f"trieye/dropped/{reason}", float(total), step, self._started + at, count=0)
            for reason, total in sorted(dropped.items())
        ]

    def _summarize(self, point: Point) -> None:
        seen = self.summary.get(point.metric)
        if seen is None:
            self.summary[point.metric] = MetricSummary(
                last=point.value, min=point.value, max=point.value, step=point.step
            )
            return
        seen["last"], seen["step"] = point.value, point.step
        seen["min"] = min(seen["min"], point.value)
        seen["max"] = max(seen["max"], point.value)

    def latest(self) -> dict[str, tuple[int, float]]:
        """Return (step, value) of each metric: its last point, or what its open window holds if it is never logged."""
        values = {name: (seen["step"], seen["last"]) for name, seen in self.summary.items()}
        for name, windows in self._windows.items():
            if name not in values and (held := windows.latest()) is not None:
                values[name] = held
        return values

    @property
    def num_late(self) -> int:
        """Events that came after their window was closed; each is counted in a later point."""
        return sum(windows.num_late for windows in self._windows.values())

    def to_state(self) -> dict[str, Any]:
        """Return plain data that `restore` takes."""
        return {
            "attempt": self._attempt,
            "windows": {name: windows.to_state() for name, windows in self._windows.items() if windows.num_events},
            "summary": {name: dict(seen) for name, seen in self.summary.items()},
            "drops": self.drops.to_state(),
        }

    def restore(self, state: Mapping[str, Any], *, at: float) -> None:
        """Go on where `to_state` of an earlier attempt left off; metrics that are declared no more are left out.

        What came in this attempt before is added. A state of this attempt itself, or a second one, replaces what there
        is: it was counted already.
        """
        replaces = self._is_restored or state.get("attempt") == self._attempt
        self._is_restored = self._is_restored or "windows" in state
        for name, windows in state.get("windows", {}).items():
            declared = self._windows.get(name)
            if declared is None and self._undeclared == "auto" and self._num_undeclared < MAX_UNDECLARED_NAMES:
                self._num_undeclared += 1
                declared = self._declare(MetricConfig(name=name, aggregation="mean"))
            if declared is not None:
                declared.restore(windows, at=at, replaces=replaces)
        self.remember(state.get("summary", {}))
        if not replaces:
            self.drops.restore(state.get("drops", {}))

    def remember(self, summary: Mapping[str, MetricSummary]) -> None:
        """Count the extremes of an earlier attempt in."""
        for name, before in summary.items():
            now = self.summary.setdefault(name, MetricSummary(**before))
            now["min"], now["max"] = min(now["min"], before["min"]), max(now["max"], before["max"])


def _is_name(name: str) -> bool:
    """Tell whether a name can be written anywhere: it is not empty, and valid Unicode."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False
