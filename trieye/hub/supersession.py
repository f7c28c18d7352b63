"""Supersession: decides, for each metric, which points of earlier attempts the new points supersede.

The rules and their reasons are in `tests/history/supersession_model.py`. A first attempt supersedes nothing.
`Ledger.rewind` handles attempts that resume from a trieye checkpoint.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from trieye.history.history import History, NamedItems
from trieye.journal.ranges import Range, mask, merged, of_indices
from trieye.stats.batch import EventBatch
from trieye.stats.point import Point

_NOWHERE = -(1 << 63)
_NOTHING: NDArray[np.int64] = np.zeros(0, np.int64)


class SupersedingCurve(msgspec.Struct, array_like=True):
    """The curve of a metric that the current attempt logs.

    Attributes:
        start: Presumed first step of the curve.
        last: Highest step of the curve.
        range_start: All older points from this step on are superseded; None: not decided yet.
    """

    start: int
    last: int
    range_start: int | None = None


class Continuation(msgspec.Struct):
    """Decisions of an attempt, in the form stored by a snapshot.

    Attributes:
        boundary: Points with a lower index are older.
        boundaries: The same index for metrics whose windows the attempt had to close first.
        curves: The new curves of metrics that have older points.
        logged: Names of the events logged so far.
        stepless: Metrics that are logged without a step, so that their points at step 0 supersede no others.
        since: Points with a lower index are never superseded: they precede the checkpoint that the attempt restored;
            None: it restored none.
    """

    boundary: int
    boundaries: dict[str, int] = {}
    curves: dict[str, SupersedingCurve] = {}
    logged: set[str] = set()
    stepless: set[str] = set()
    since: int | None = None


class Supersession:
    """Decides which older points the points of an attempt supersede.

    The same points in the same order lead to the same decisions, however they are split into calls, and after any
    restart from `state`.

    Args:
        state: The decisions so far.
        history: The history with the older points.

    Attributes:
        state: The decisions so far.
    """

    def __init__(self, state: Continuation, history: History) -> None:
        self.state = state
        self._history = history
        self._older: dict[str, NamedItems] = {}  # sorted by step; without decided metrics
        self._is_loaded = False
        self._floors = {name: c.range_start for name, c in state.curves.items() if c.range_start is not None}

    def first_steps(self, batches: Iterable[EventBatch]) -> dict[str, int]:
        """Return the lowest step of each event name that the attempt has not logged before."""
        steps: dict[str, int] = {}
        logged_names = self.state.logged
        for batch in batches:
            for code, name in enumerate(batch.names):
                if name not in logged_names and (name_steps := batch.steps[batch.codes == code]).size:
                    steps[name] = min(int(name_steps.min()), steps.get(name, int(name_steps[0])))
        logged_names.update(steps)
        return steps

    def note_older(self, metrics: Iterable[str], end: int) -> None:
        """Treat all points of some metrics before an index as older."""
        self.state.boundaries.update(dict.fromkeys(metrics, end))
        self._is_loaded = False

    def of(self, points: Sequence[Point]) -> list[Range]:
        """Return the indices superseded by new points; the points of each metric are in logging order."""
        index_arrays: list[NDArray[np.int64]] = []
        floors = self._floors
        for point in points:
            floor = floors.get(point.metric)
            if floor is None or point.step < floor:
                index_arrays.append(self._superseded_by(point.metric, point.step))
        return of_indices(np.concatenate(index_arrays)) if index_arrays else []

    def _superseded_by(self, metric: str, step: int) -> NDArray[np.int64]:
        if step == 0 and metric in self.state.stepless:
            return _NOTHING
        if not self._is_loaded or (metric not in self._older and metric in self._floors):
            self._load(metric)
        older_items = self._older.get(metric)
        if older_items is None or not older_items.steps.size:
            self._floors[metric] = _NOWHERE
            return _NOTHING
        curve = self._follow(metric, step, older_items)
        if curve.range_start is not None:
            self._floors[metric] = curve.range_start
            del self._older[metric]
            return older_items.indices[np.searchsorted(older_items.steps, curve.range_start) :]
        self._floors.pop(metric, None)
        first, end = np.searchsorted(older_items.steps, [step, step + 1]).tolist()
        if first < end:
            self._older[metric] = older_items.take(np.delete(np.arange(len(older_items.steps)), slice(first, end)))
        return older_items.indices[first:end]

    def _follow(self, metric: str, step: int, older_items: NamedItems) -> SupersedingCurve:
        curve = self.state.curves.get(metric)
        if curve is None or curve.range_start is not None or step < curve.last:
            curve = self.state.curves[metric] = SupersedingCurve(step, step)
        elif step > curve.last:
            last_step, curve.last = curve.last, step
            if last_step > curve.start:  # a jump over older points: is the next jump about as long?
                if 2 * (step - last_step) > last_step - curve.start:
                    curve.range_start = curve.start
                    return curve
                curve.start = last_step
            first_row, end_row = np.searchsorted(older_items.steps, [curve.start + 1, step]).tolist()
            if first_row == end_row:
                curve.range_start = curve.start
        return curve

    def _load(self, metric: str) -> None:
        """Read the older points of undecided metrics, and of a decided one that logs an earlier step."""
        self._older, self._is_loaded = {}, True
        for name, series in self._history.series(self.state.since or 0).items():
            if name == metric or name not in self._floors:
                num = int(np.searchsorted(series.indices, self.state.boundaries.get(name, self.state.boundary)))
                self._older[name] = series.take(np.argsort(series.steps[:num], kind="stable"))


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """A part of the history: an attempt, or the rest of one after the process opened or restored the run again.

    Attributes:
        number: Consecutive number, starting at 1.
        index: Index of its first item.
        started: Unix time in seconds.
        resumed_step: Step of the checkpoint that it resumed from; None: it restored none, or the journal is older.
        is_reopening: Whether it began without a new attempt; False in older journals.
    """

    number: int
    index: int
    started: float
    resumed_step: int | None = None
    is_reopening: bool = False


Choice = Callable[[History, Sequence[Opening]], list[Range]]
"""Returns all superseded ranges for a history and its openings."""


def after_restore(history: History, openings: Sequence[Opening], step: int | None) -> list[Range]:
    """Return all superseded ranges after a restore.

    Args:
        history: The history.
        openings: The openings so far.
        step: The first step that is logged again; None: unknown.
    """
    ranges = history.superseded_ranges
    if step is None:
        return ranges
    if step <= 0:
        return merged([*ranges, (0, history.end)])
    series = history.series(with_media=True)
    reaching_series = [metric for metric in series.values() if (metric.steps >= step).any()]
    if not reaching_series:
        return ranges
    # compares times first, because the indices of one flush are ordered by step
    time, limit, index = max(_first_passage(metric, step) for metric in reaching_series)
    begin = max((opening.index for opening in openings if opening.index <= index), default=0)
    end = min((opening.index for opening in openings if opening.index > index), default=history.end)

    def is_finer(metric: NamedItems) -> bool:
        is_earlier = (metric.indices >= begin) & (metric.indices < end) & (metric.times < time)
        return bool((metric.steps[is_earlier] > 2 * limit).any())

    coarse = [metric for metric in reaching_series if not is_finer(metric)]
    return merged([*ranges, *of_indices(np.concatenate([metric.indices[metric.steps >= step] for metric in coarse]))])


def _first_passage(series: NamedItems, step: int) -> tuple[float, int, int]:
    """Return time, step and index of the earliest point at a step or later."""
    rows = np.flatnonzero(series.steps >= step)
    row = rows[np.argmin(series.times[rows])]
    return float(series.times[row]), int(series.steps[row]), int(series.indices[row])


def with_opening(history: History, openings: Sequence[Opening], opening_number: int) -> list[Range]:
    """Return all superseded ranges after an opening replaces the others from its first superseded step on.

    Args:
        history: The history.
        openings: The openings so far.
        opening_number: Number of the opening that is restored.
    """
    first_index = next(opening.index for opening in openings if opening.number == opening_number)
    end = next((opening.index for opening in openings if opening.number > opening_number), history.end)
    is_superseded = mask(0, history.end, history.superseded_ranges)
    visible_series = history.series(with_media=True)
    for name, (steps, indices, _) in history.series(with_media=True, superseded=True).items():
        is_inside = (indices >= first_index) & (indices < end)
        if is_inside.any():
            is_superseded[indices[is_inside]] = False
            if name in visible_series:
                outside_indices = visible_series[name].indices[visible_series[name].steps >= steps[is_inside].min()]
                is_superseded[outside_indices[(outside_indices < first_index) | (outside_indices >= end)]] = True
    return of_indices(np.flatnonzero(is_superseded))
