"""Aggregator: batches of events in, points out; it knows no clock but the one it is given."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from trieye.config import AggregationMethod, MetricConfig
from trieye.config.names import is_text
from trieye.files.run_record import MetricSummary
from trieye.stats.batch import MAX_NAME_LENGTH, EventBatch
from trieye.stats.drops import NON_FINITE_METRIC, Drops
from trieye.stats.point import Point
from trieye.stats.window_kinds import EachWindows, EmaWindows, QuantileWindows, RateWindows
from trieye.stats.windows import Ints, MetricWindows

KINDS: Mapping[str, type[MetricWindows]] = {
    "rate": RateWindows,
    "quantile": QuantileWindows,
    "ema": EmaWindows,
    "each": EachWindows,
}
"""Windows of the aggregations that need more than those of the others."""

logger = logging.getLogger(__name__)

EPISODE = "episode"
"""The key of a context that holds the coordinate of `x_axis=episode`."""

MAX_UNDECLARED_NAMES = 10_000
MAX_STEP = 1 << 62
"""Steps beyond it could not be rounded up to the end of their window within int64."""


class Aggregator:
    """Turn events into points, for all metrics of a run.

    Args:
        metrics: The declared metrics.
        undeclared: What to do with events that no metric reads; `auto` makes a metric: the mean at every step; `each`
            makes one of which each event is a point.
        started: Unix time in seconds at which journal time is zero.
        elapsed_before: Seconds of the run's life before this attempt.
        attempt_started: Unix time in seconds at which this attempt began; None: when journal time was zero.

    Attributes:
        started, elapsed_before, attempt_started: As above; another attempt sets them before its first event.
        drops: What was not logged.
        summary: Extremes of the points of each metric.
        context_keys: What metrics read of the contexts of events.
    """

    def __init__(
        self,
        metrics: Iterable[MetricConfig],
        *,
        undeclared: Literal["auto", "each", "warn", "drop"] = "auto",
        started: float = 0.0,
        elapsed_before: float = 0.0,
        attempt_started: float | None = None,
    ) -> None:
        self.started = started
        self.elapsed_before = elapsed_before
        self.attempt_started = started if attempt_started is None else attempt_started
        self.drops = Drops()
        self.summary: dict[str, MetricSummary] = {}
        self._metrics = list(metrics)
        self._undeclared = undeclared
        self.context_keys = _context_keys(self._metrics)
        self._begin()

    def _begin(self) -> None:
        self._windows: dict[str, MetricWindows] = {}
        self._readers: dict[str, list[MetricWindows]] = {}
        self._timed: list[MetricWindows] = []
        self._undeclared_names: list[str] = []
        self._non_finite: dict[str, tuple[int, int, float]] = {}  # count, first step and time since the last pass
        self._carries = False
        for metric in self._metrics:
            self._declare(metric)

    def _declare(self, metric: MetricConfig) -> MetricWindows:
        windows = KINDS.get(metric.aggregation, MetricWindows)(metric, self)
        self._windows[metric.name] = windows
        numerator = metric.rate_numerator_event if metric.aggregation == "rate" else None
        self._readers.setdefault(numerator or metric.event_key, []).append(windows)
        if metric.log_frequency_seconds or metric.aggregation == "rate":
            self._timed.append(windows)
        return windows

    def ingest(self, batch: EventBatch, *, at: float) -> None:
        """Take events in the order of their arrival.

        Args:
            batch: The events.
            at: Journal time in seconds.
        """
        if not len(batch):
            return
        is_finite = bool(np.isfinite(batch.values).all())  # looked at once for all metrics: there may be thousands
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite sum is dealt with when its point is made
            for name, events in self._in_range(batch).by_name():
                readers = self._readers.get(name) or self._undeclared_reader(name, len(events))
                finite = events if is_finite else None
                for windows in readers:
                    if windows.config.context_key is not None:
                        self._add(windows, events, None, at)
                    else:  # looked at once, so that an event counts once, however many metrics read it
                        finite = self._finite(name, events) if finite is None else finite
                        self._add(windows, events, finite, at)

    def _add(self, windows: MetricWindows, events: EventBatch, finite: EventBatch | None, at: float) -> None:
        try:
            if finite is None:
                events = self._from_context(windows.config, events)
                finite = self._finite(windows.config.name, events)
            if len(finite):
                self._non_finite.pop(windows.config.name, None)
                windows.add(finite.values, finite.steps, finite.times, self._xs(windows, finite), at=at)
            if len(finite) < len(events):
                self._note_non_finite(windows, events)
        except Exception:  # a border to user data: what it raises must cost no other metric; it is counted
            name = windows.config.name
            logger.exception("%d events of metric %r could not be put into windows", len(events), name)
            self.drops.add("invalid", name, len(events))

    def _note_non_finite(self, windows: MetricWindows, events: EventBatch) -> None:
        """Remember the non-finite events after the last finite one: a metric that ends with them has diverged."""
        is_finite = np.isfinite(events.values)
        first = int(np.flatnonzero(is_finite)[-1]) + 1 if is_finite.any() else 0
        if first < len(events):
            rest = events.take(np.arange(first, len(events)))
            xs = self._xs(windows, rest)
            first_seen = 0, int((rest.steps if xs is None else xs).min()), float(rest.times.min())
            count, step, time = self._non_finite.get(windows.config.name, first_seen)
            self._non_finite[windows.config.name] = count + len(rest), step, time

    def _in_range(self, batch: EventBatch) -> EventBatch:
        if batch.steps.max() <= MAX_STEP and batch.steps.min() >= -MAX_STEP:
            return batch
        in_range = (batch.steps <= MAX_STEP) & (batch.steps >= -MAX_STEP)
        for code, count in Counter(batch.codes[~in_range].tolist()).items():
            self.drops.add("step_out_of_range", batch.names[code], count)
        return batch.take(np.flatnonzero(in_range))

    def _undeclared_reader(self, name: str, count: int) -> list[MetricWindows]:
        if len(name) > MAX_NAME_LENGTH:
            self.drops.add("name_too_long", name, count)
        elif not name or not is_text(name):
            self.drops.add("unnamed", ascii(name), count)
        elif (windows := self._declare_undeclared(name)) is not None:
            return [windows]
        elif self._undeclared == "drop":
            self.drops.count("undeclared", count)
        else:
            self.drops.add("undeclared", name, count)
        return []

    def _declare_undeclared(self, name: str) -> MetricWindows | None:
        if self._undeclared not in {"auto", "each"} or len(self._undeclared_names) >= MAX_UNDECLARED_NAMES:
            return None
        if name in self._windows:  # a declared metric of that name reads other events: its curve is not to be mixed
            return None
        self._undeclared_names.append(name)
        aggregation: AggregationMethod = "each" if self._undeclared == "each" else "mean"
        return self._declare(MetricConfig(name=name, aggregation=aggregation))

    def _finite(self, name: str, events: EventBatch) -> EventBatch:
        finite = np.isfinite(events.values)
        if finite.all():
            return events
        self.drops.add("non_finite", name, int((~finite).sum()))
        return events.take(np.flatnonzero(finite))

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
            elapsed = np.nan_to_num(self.elapsed_before + (events.times - self.attempt_started), nan=0.0)
            seconds: Ints = np.floor(np.clip(elapsed, 0.0, MAX_STEP)).astype(np.int64)
            return seconds
        counted = np.arange(windows.num_events + 1, windows.num_events + 1 + len(events), dtype=np.int64)
        for row, context in events.contexts.items():
            if isinstance(episode := context.get(EPISODE), int | np.integer) and abs(int(episode)) <= MAX_STEP:
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

    def is_over_time(self, metric: str) -> bool:
        """Return True if the steps of a metric are seconds, which no attempt repeats."""
        windows = self._windows.get(metric)
        return windows is not None and windows.config.x_axis == "wall_time"

    def begin_again(self, first_steps: Mapping[str, int], *, at: float) -> list[Point]:
        """Let events of an attempt be in time although an earlier one had logged later steps.

        Args:
            first_steps: The first step of the attempt by the name of its events.
            at: Journal time in seconds.

        Returns:
            Points of the windows that were open, of those metrics that begin again.
        """
        points: list[Point] = []
        for name, step in first_steps.items():
            for windows in self._readers.get(name, ()):
                if windows.highest is not None and step <= windows.highest:
                    points += windows.flush(at=at)
                    windows.go_back(step)
        return self._noted(points, at) if points else []

    def go_back(self, step: int) -> None:
        """Let events at a step or after it be in time again, after a `flush`."""
        for windows in self._windows.values():
            windows.go_back(step)
        for seen in self.summary.values():
            seen["step"] = min(seen["step"], step - 1)

    def _noted(self, points: list[Point], at: float) -> list[Point]:
        self._carries = False
        non_finite, self._non_finite = self._non_finite, {}
        diverging = [
            Point(f"{NON_FINITE_METRIC}{name}", float(count), x, time, count=0)
            for name, (count, x, time) in sorted(non_finite.items())
        ]
        for point in [*points, *diverging]:
            self._summarize(point)
        dropped = self.drops.changed()
        step = max(self.highest_step, 0) if dropped else 0
        points += [
            Point(f"trieye/dropped/{reason}", float(total), step, self.started + at, count=0)
            for reason, total in sorted(dropped.items())
        ]
        return points + diverging

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

    @property
    def waits_for_time(self) -> bool:
        """Whether a pass without new events could give a point."""
        return self._carries or self.drops.has_news or any(windows.waits_for_time for windows in self._timed)

    @property
    def highest_step(self) -> int:
        """Highest step of any event; -1 before the first."""
        return max((w.highest for w in self._windows.values() if w.highest is not None), default=-1)

    @property
    def num_late(self) -> int:
        """Events that came after their window was closed; each is counted in a later point."""
        return sum(windows.num_late for windows in self._windows.values())

    @property
    def late_by_metric(self) -> dict[str, int]:
        """Late events of each metric that has any."""
        return {name: windows.num_late for name, windows in self._windows.items() if windows.num_late}

    def to_state(self, pack: Callable[[Mapping[str, Any]], Any] = dict) -> dict[str, Any]:
        """Return everything that `restore` needs, as plain data.

        Args:
            pack: What is made of the data of a metric at once. Of 10 000 metrics it takes 150 ms, most of it Python's
                search for garbage among so many objects, and 40 ms if the data of each metric become bytes.
        """
        return {
            "undeclared": list(self._undeclared_names),
            "windows": {
                name: pack(windows.to_state()) for name, windows in self._windows.items() if windows.num_events
            },
            "summary": {name: pack(seen) for name, seen in self.summary.items()},
            "drops": self.drops.to_state(),
            **({"non_finite": dict(self._non_finite)} if self._non_finite else {}),
        }

    def restore(self, state: Mapping[str, Any], *, shift_s: float = 0.0) -> None:
        """Go on where `to_state` left off; what there is now is forgotten.

        Metrics that are declared no more are left out, unless undeclared names become metrics.

        Args:
            state: The state; empty: the very beginning.
            shift_s: What is added to each journal time in it.
        """
        self._begin()
        windows = state.get("windows", {})
        for name in (*state.get("undeclared", ()), *windows):
            if name not in self._windows:
                self._declare_undeclared(name)
        for name, held in windows.items():
            if name in self._windows:
                self._windows[name].restore(held, shift_s=shift_s)
        self._carries = any(windows.carries for windows in self._windows.values())
        summary: Mapping[str, MetricSummary] = state.get("summary", {})
        self.summary = {name: seen.copy() for name, seen in summary.items()}
        self.drops.restore(state.get("drops", {}))
        self._non_finite = {name: tuple(seen) for name, seen in state.get("non_finite", {}).items()}

    def remember(self, summary: Mapping[str, MetricSummary]) -> None:
        """Count the extremes of an earlier attempt in."""
        for name, before in summary.items():
            now = self.summary.setdefault(name, MetricSummary(**before))
            now["min"], now["max"] = min(now["min"], before["min"]), max(now["max"], before["max"])


def _context_keys(metrics: Sequence[MetricConfig]) -> frozenset[str]:
    read = {metric.context_key for metric in metrics if metric.context_key is not None}
    return frozenset(read | {EPISODE for metric in metrics if metric.x_axis == "episode"})
