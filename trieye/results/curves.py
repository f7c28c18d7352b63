"""Curves: runs logged at steps of their own, brought to one grid, where they are aggregated point by point.

A curve is a pair of arrays, its steps and its values; NaN is a value that is not there. Beyond its first and its last
step a curve has no value: it is neither padded nor extrapolated, and each point says how many runs it is made of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.aggregates import Aggregate, statistic_of
from trieye.results.bootstrap import Counts, Floats, Statistic, Strata, finite, interval_of
from trieye.results.statistics import Band

Curve = tuple[ArrayLike, ArrayLike]
"""Steps `[point]`, ascending, and values `[point]`; of points at the same step the last one counts."""
Between = Literal["last", "linear"]
"""What a curve is between two of its steps: the value at the last one, or on the line between both."""


@dataclass(frozen=True, slots=True)
class Gridded:
    """Curves on a common grid.

    Attributes:
        grid: float64 `[point]`, in the unit of the steps.
        values: float64 `[curve, point]`; NaN where a curve has none.
        has_value: bool `[curve, point]`.
    """

    grid: Floats
    values: Floats
    has_value: NDArray[np.bool_]


def common_grid(curves: Sequence[Curve], num: int = 200) -> Floats:
    """Return evenly spaced steps, float64 `[num]`, from the first step of any curve to the last of any.

    Raises:
        ConfigurationError: No curve has a point, or one is not as `on_grid` takes it.
    """
    ends = [steps[[0, -1]] for steps, _ in map(_checked, range(len(curves)), curves) if steps.size]
    if not ends:
        raise ConfigurationError(f"none of {len(curves)} curves has a point; a grid needs one that has")
    return np.linspace(np.min(ends), np.max(ends), num)


def on_grid(curves: Sequence[Curve], grid: ArrayLike, between: Between = "last") -> Gridded:
    """Bring ragged curves to a common grid.

    Args:
        curves: Steps and values of each run, as many points as each has; none is fine, too.
        grid: `[point]`, ascending, in the unit of the steps.
        between: What a curve is between two of its steps. A value that is NaN is carried as NaN, and a line to it is
            NaN: a run that diverged is seen to be missing from there on.

    Raises:
        ConfigurationError: Steps do not ascend, steps and values differ in length, or a number is infinite.
    """
    at = _ascending(grid, "grid", least=1)
    if between not in {"last", "linear"}:
        raise ConfigurationError(f"between={between!r} is unknown; allowed: 'last', 'linear'")
    values = np.full((len(curves), at.size), np.nan)
    for row, curve in enumerate(curves):
        steps, logged = _checked(row, curve)
        if not steps.size:
            continue
        if between == "linear":
            values[row] = np.interp(at, steps, logged, left=np.nan, right=np.nan)
        else:
            inside = (steps[0] <= at) & (at <= steps[-1])
            values[row, inside] = logged[np.searchsorted(steps, at[inside], side="right") - 1]
    return Gridded(at, values, ~np.isnan(values))


def _checked(row: int, curve: Curve) -> tuple[Floats, Floats]:
    """Return steps and values of a curve, one value for each step."""
    steps, values = _ascending(curve[0], f"steps of curve {row}", least=0), finite(curve[1], f"values of curve {row}")
    if steps.shape != values.shape:
        raise ConfigurationError(f"curve {row} has steps {steps.shape} and values {values.shape}; they belong in pairs")
    is_last = np.append(np.diff(steps) > 0, True)[: steps.size]
    return steps[is_last], values[is_last]


def _ascending(steps: ArrayLike, name: str, *, least: int) -> Floats:
    array = finite(steps, name)
    if array.ndim != 1 or array.size < least or np.isnan(array).any():
        raise ConfigurationError(f"{name} have shape {array.shape} or a NaN; allowed: numbers [point], {least} or more")
    if (falls := np.flatnonzero(np.diff(array) < 0)).size:
        place = int(falls[0])
        raise ConfigurationError(f"{name}: {array[place + 1]:g} comes after {array[place]:g}; sort them first")
    return array


def aggregate_curves(
    values: ArrayLike,
    grid: ArrayLike,
    stat: Aggregate = "iqm",
    *,
    gamma: float = 1.0,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Band:
    """Return the aggregate at each point of a grid, with the stratified bootstrap interval of each point by itself.

    The sample-efficiency curve of Agarwal et al. (2021), appendix A.3: that of all runs which have a value there.

    Args:
        values: `[seed, task, point]`, or `[seed, point]` of one task; NaN where there is none.
        grid: `[point]`, ascending.
        stat: Which figure.
        gamma: The score that is enough, of the optimality gap.
        confidence: Of the intervals.
        resamples: How many the intervals are made of.
        seed: Of the resamples.

    Returns:
        The curve; NaN at points that a task has no run at, without interval where a task has one run only.

    Raises:
        ConfigurationError: The shapes do not fit, or what `aggregate` raises.
    """
    at, runs = _ascending(grid, "grid", least=1), finite(values, "values")
    runs = runs[:, np.newaxis] if runs.ndim == 2 else runs  # noqa: PLR2004
    if runs.ndim != 3 or runs.shape[-1] != at.size:  # noqa: PLR2004
        allowed = f"[seed, task, {at.size}], or [seed, {at.size}] of one task"
        raise ConfigurationError(f"values have shape {np.shape(values)}; allowed: {allowed}, as the grid is long")
    strata = [Strata.of(runs[..., point]) for point in range(at.size)]
    alike: dict[bytes, list[int]] = {}
    for point, table in enumerate(strata):
        alike.setdefault(table.sizes.tobytes(), []).append(point)
    value, low, high = lines = np.full((3, at.size), np.nan)
    for points in alike.values():  # those with as many runs in each task share the counts of the resamples
        statistics = [statistic_of(strata[point], stat, gamma) for point in points]

        def statistic(counts: Counts, statistics: list[Statistic] = statistics) -> Floats:
            return np.stack([each(counts) for each in statistics], axis=1)

        ends = interval_of(strata[points[0]], statistic, confidence=confidence, resamples=resamples, seed=seed)
        lines[:, points] = [np.broadcast_to(end, len(points)) for end in ends]
    n, n_missing = (np.array(counts) for counts in zip(*((s.scores.size, s.num_missing) for s in strata), strict=True))
    return Band(at, value, low, high, n, n_missing)


def area_under_curve(values: ArrayLike, grid: ArrayLike, between: Between = "last") -> Floats:
    """Return the area under each curve, in the unit of its values times that of the steps.

    By rectangles from each point to the next one if the last value is carried, by the trapezoidal rule if curves are
    linear. Divided by `grid[-1] - grid[0]` it is the mean value. Areas of runs are scores, which `aggregate` takes.

    Args:
        values: `[..., point]`; NaN where there is none.
        grid: `[point]`, ascending, two or more.
        between: What a curve is between two points.

    Returns:
        float64 `[...]`; NaN for a curve that does not cover the whole grid.

    Raises:
        ConfigurationError: The shapes do not fit, the grid does not ascend, or `between` is unknown.
    """
    at, heights = _ascending(grid, "grid", least=2), finite(values, "values")
    if between not in {"last", "linear"}:
        raise ConfigurationError(f"between={between!r} is unknown; allowed: 'last', 'linear'")
    if heights.ndim < 1 or heights.shape[-1] != at.size:
        raise ConfigurationError(f"values have shape {heights.shape}; allowed: [..., {at.size}], as the grid is long")
    if between == "linear":
        heights = (heights[..., 1:] + heights[..., :-1]) / 2
        areas: Floats = heights @ np.diff(at)
        return areas
    areas = heights[..., :-1] @ np.diff(at)
    return np.where(np.isnan(heights[..., -1]), np.nan, areas)
