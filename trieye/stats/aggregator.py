"""Aggregator: turns batches of events into points; callers pass the time."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
from trieye.stats.windows import AttemptTimes, Ints, MetricWindows

KINDS: Mapping[str, type[MetricWindows]] = {
    "rate": RateWindows,
    "quantile": QuantileWindows,
    "ema": EmaWindows,
    "each": EachWindows,
}
"""Window classes of the aggregations that `MetricWindows` does not cover."""

logger = logging.getLogger(__name__)

EPISODE = "episode"
"""The context key with the x coordinate for `x_axis=episode`."""

MAX_UNDECLARED_NAMES = 10_000
MAX_STEP = 1 << 62
"""Largest absolute step: larger ones could overflow int64 when rounded up to the end of their window."""


class Aggregator:
    """Turns events into points, for all metrics of a run.

    Args:
        metrics: The declared metrics.
        undeclared: Policy for events that no metric reads; `auto` declares a metric with the mean at every step; `each`
            declares a metric with one point per event.
        times: The times of the attempt; None: journal time is Unix time.

    Attributes:
        drops: Counts of events that were not logged.
        summary: Last value and extremes of the points of each metric.
        context_keys: Keys that metrics read from the contexts of events.
    """

    def __init__(
        self,
        metrics: Iterable[MetricConfig],
        *,
        undeclared: Literal["auto", "each", "warn", "drop"] = "auto",
        times: AttemptTimes | None = None,
    ) -> None:
        self.drops = Drops()
        self.summary: dict[str, MetricSummary] = {}
        self._metrics = list(metrics)
        self._undeclared, self._times = undeclared, times or AttemptTimes()
        keys = {metric.context_key for metric in self._metrics if metric.context_key is not None}
        self.context_keys = frozenset(keys | {EPISODE for metric in self._metrics if metric.x_axis == "episode"})
        self._reset()

    def _reset(self) -> None:
        self._windows: dict[str, MetricWindows] = {}
        self._readers: dict[str, list[MetricWindows]] = {}
        self._timed_windows: list[MetricWindows] = []
        self._undeclared_names: list[str] = []
        self._non_finite: dict[str, tuple[int, int, float]] = {}  # count, first step and time since the last points
        self._carries = self._has_warned = False
        for metric in self._metrics:
            self._declare(metric)

    def _declare(self, metric: MetricConfig) -> MetricWindows:
        windows = KINDS.get(metric.aggregation, MetricWindows)(metric, self._times)
        self._windows[metric.name] = windows
        numerator = metric.rate_numerator_event if metric.aggregation == "rate" else None
        self._readers.setdefault(numerator or metric.event_key, []).append(windows)
        if metric.log_frequency_seconds or metric.aggregation == "rate":
            self._timed_windows.append(windows)
        return windows

    def ingest(self, batch: EventBatch, *, at: float) -> None:
        """Add events in the order of arrival.

        Args:
            batch: The events.
            at: Journal time in seconds.
        """
        if not len(batch):
            return
        is_finite = bool(np.isfinite(batch.values).all())  # one check for all metrics, of which there may be thousands
        with np.errstate(over="ignore", invalid="ignore"):  # `MetricWindows` replaces an infinite sum in its point
            for name, events in self._in_range(batch).by_name():
                readers = self._readers.get(name) or self._undeclared_reader(name, len(events))
                finite = events if is_finite else None
                for windows in readers:
                    if windows.config.context_key is not None:
                        self._add(windows, events, None, at)
                    else:  # filtered once, so that a dropped event counts once for all metrics that read it
                        finite = self._finite(name, events) if finite is None else finite
                        self._add(windows, events, finite, at)

    def _add(self, windows: MetricWindows, events: EventBatch, finite: EventBatch | None, at: float) -> None:
        try:
            if finite is None:
                events = self._from_context(windows.config, events)
                finite = self._finite(windows.config.name, events)
            if len(finite):
                self._non_finite.pop(windows.config.name, None)
                num_late, highest = windows.num_late, windows.highest
                windows.add(finite.values, finite.steps, finite.times, self._xs(windows, finite), at=at)
                is_late = windows.num_late > num_late and windows.config.log_frequency_steps == 1
                if is_late and highest is not None and finite.steps.min() < highest:  # not the same step after a flush
                    self._warn_of_late_events(windows.config.name)
            if len(finite) < len(events):
                self._note_non_finite(windows, events)
        except Exception:  # a border to user data: an error must not affect other metrics; it is counted
            name = windows.config.name
            logger.exception("metric %r: aggregation of %d events failed; they are dropped", name, len(events))
            self.drops.add("invalid", name, len(events))

    def _warn_of_late_events(self, name: str) -> None:
        """Warn once that steps go back; with longer windows, late events are usual and change means only a little."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "event %r: values at lower steps than before are merged into the next point; if a counter restarts, as "
                "in each epoch, log at steps that increase over the whole run",
                name,
            )

    def _note_non_finite(self, windows: MetricWindows, events: EventBatch) -> None:
        """Count the non-finite events after the last finite one: a metric that ends with them has diverged."""
        is_finite = np.isfinite(events.values)
        start = int(np.flatnonzero(is_finite)[-1]) + 1 if is_finite.any() else 0
        if start < len(events):
            tail = events.take(np.arange(start, len(events)))
            xs = self._xs(windows, tail)
            initial_entry = 0, int((tail.steps if xs is None else xs).min()), float(tail.times.min())
            count, step, time = self._non_finite.get(windows.config.name, initial_entry)
            self._non_finite[windows.config.name] = count + len(tail), step, time

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
        if name in self._windows:  # a declared metric with this name reads other events: do not mix the curves
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
        """Return the events whose context has the metric's key, with the value of that key; skip other events."""
        key = config.context_key or ""
        matching_rows, values = [], []
        for row, context in events.contexts.items():
            if key not in context:
                continue
            try:
                values.append(float(context[key]))
                matching_rows.append(row)
            except (TypeError, ValueError, OverflowError, RuntimeError):  # errors of float() for a user's object
                self.drops.add("context", config.name)
        return replace(events.take(np.array(matching_rows, dtype=np.intp)), values=np.array(values, dtype=np.float64))

    def _xs(self, windows: MetricWindows, events: EventBatch) -> Ints | None:
        axis = windows.config.x_axis
        if axis == "global_step":
            return None
        if axis == "wall_time":
            times = self._times
            elapsed_s = np.nan_to_num(times.elapsed_before + (events.times - times.attempt_started), nan=0.0)
            seconds: Ints = np.floor(np.clip(elapsed_s, 0.0, MAX_STEP)).astype(np.int64)
            return seconds
        event_numbers = np.arange(windows.num_events + 1, windows.num_events + 1 + len(events), dtype=np.int64)
        for row, context in events.contexts.items():
            episode = context.get(EPISODE)
            if isinstance(episode, float) and episode.is_integer():
                episode = int(episode)
            if isinstance(episode, int | np.integer) and abs(int(episode)) <= MAX_STEP:
                event_numbers[row] = episode
        return event_numbers

    def advance(self, *, at: float, step: int | None = None) -> list[Point]:
        """Close complete windows and return their points.

        Args:
            at: Journal time in seconds.
            step: The last complete step; None: for each metric, its highest step minus 1.
        """
        return self._finish([p for windows in self._windows.values() for p in windows.advance(at=at, step=step)], at)

    def flush(self, *, at: float, step: int | None = None) -> list[Point]:
        """Return points of all windows, including open ones, up to a step (None: all)."""
        return self._finish([p for windows in self._windows.values() for p in windows.flush(at=at, step=step)], at)

    def axis_of(self, metric: str) -> str:
        """Return the `x_axis` of a metric; no attempt repeats the coordinates of `wall_time`."""
        windows = self._windows.get(metric)
        return "global_step" if windows is None else windows.config.x_axis

    def begin_again(self, first_steps: Mapping[str, int], *, at: float) -> list[Point]:
        """Accept the steps of a new attempt that lie before those of an earlier attempt.

        Args:
            first_steps: First step of the attempt, by event name.
            at: Journal time in seconds.

        Returns:
            Points of the windows that were open, for the metrics whose steps restart.
        """
        points: list[Point] = []
        for name, step in first_steps.items():
            for windows in self._readers.get(name, ()):
                if windows.highest is not None and step <= windows.highest:
                    points += windows.flush(at=at)
                    windows.go_back(step)
        return self._finish(points, at) if points else []

    def go_back(self, step: int) -> None:
        """Accept events from a step on as new instead of late; call it after `flush`."""
        for windows in self._windows.values():
            windows.go_back(step)
        for summary in self.summary.values():
            summary["step"] = min(summary["step"], step - 1)

    def _finish(self, points: list[Point], at: float) -> list[Point]:
        """Update the summary, and add the points that report drops and divergence."""
        self._carries = False
        non_finite, self._non_finite = self._non_finite, {}
        diverging = [
            Point(f"{NON_FINITE_METRIC}{name}", float(count), x, time, count=0)
            for name, (count, x, time) in sorted(non_finite.items())
        ]
        for point in [*points, *diverging]:
            summarize(self.summary, point)
        total_by_reason = self.drops.changed() if self.drops.by_reason else {}
        step = max(self.highest_step, 0) if total_by_reason else 0
        points += [
            Point(f"trieye/dropped/{reason}", float(total), step, self._times.started + at, count=0)
            for reason, total in sorted(total_by_reason.items())
        ]
        return points + diverging

    def if_closed(self, *, at: float) -> list[Point]:
        """Return the points of `flush`, except counts of drops, without closing a window."""
        copy = Aggregator(self._metrics, undeclared=self._undeclared)
        copy.restore(self.to_state())
        copy.drops.changed()
        return copy.flush(at=at)

    @property
    def waits_for_time(self) -> bool:
        """Whether `advance` could return a point without new events."""
        return self._carries or self.drops.has_news or any(windows.waits_for_time for windows in self._timed_windows)

    @property
    def highest_step(self) -> int:
        """Highest step of any event; -1 before the first."""
        return max((w.highest for w in self._windows.values() if w.highest is not None), default=-1)

    @property
    def num_late(self) -> int:
        """Number of events that arrived after their window closed; later points include them."""
        return sum(windows.num_late for windows in self._windows.values())

    @property
    def late_by_metric(self) -> dict[str, int]:
        """Number of late events by metric, without zeros."""
        return {name: windows.num_late for name, windows in self._windows.items() if windows.num_late}

    def to_state(self, pack: Callable[[Mapping[str, Any]], Any] = dict) -> dict[str, Any]:
        """Return the state for `restore`, as plain data.

        Args:
            pack: Encodes the state of each metric as soon as it exists. With 10 000 metrics, plain data take 150 ms,
                mostly garbage collection over so many objects, and bytes per metric take 40 ms.
        """
        return {
            "undeclared": list(self._undeclared_names),
            "windows": {
                name: pack(windows.to_state()) for name, windows in self._windows.items() if windows.num_events
            },
            "summary": {name: pack(summary) for name, summary in self.summary.items()},
            "drops": self.drops.to_state(),
            **({"non_finite": dict(self._non_finite)} if self._non_finite else {}),
        }

    def restore(self, state: Mapping[str, Any], *, shift_s: float = 0.0) -> None:
        """Replace the current state by one of `to_state`.

        Metrics that are no longer declared are dropped, unless undeclared names become metrics.

        Args:
            state: The state; empty: the initial state.
            shift_s: Seconds to add to each journal time in the state.
        """
        self._reset()
        windows = state.get("windows", {})
        for name in (*state.get("undeclared", ()), *windows):
            if name not in self._windows:
                self._declare_undeclared(name)
        for name, metric_state in windows.items():
            if name in self._windows:
                self._windows[name].restore(metric_state, shift_s=shift_s)
        self._carries = any(windows.waits_for_time for windows in self._windows.values())
        summaries: Mapping[str, MetricSummary] = state.get("summary", {})
        self.summary = {name: summary.copy() for name, summary in summaries.items()}
        self.drops.restore(state.get("drops", {}))
        self._non_finite = {name: tuple(entry) for name, entry in state.get("non_finite", {}).items()}

    def remember(self, summary: Mapping[str, MetricSummary]) -> None:
        """Merge the summary of an earlier attempt: its extremes, and its last values for metrics without points."""
        for name, earlier_summary in summary.items():
            now = self.summary.setdefault(name, MetricSummary(**earlier_summary))
            now["min"], now["max"] = min(now["min"], earlier_summary["min"]), max(now["max"], earlier_summary["max"])


def summarize(summary: dict[str, MetricSummary], point: Point) -> None:
    """Add a point to the summary of its metric."""
    value, before = point.value, summary.get(point.metric)
    low, high = (value, value) if before is None else (min(before["min"], value), max(before["max"], value))
    summary[point.metric] = MetricSummary(last=value, min=low, max=high, step=point.step)
