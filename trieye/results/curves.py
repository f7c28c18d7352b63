"""Curves that lie on one grid, aggregated point by point; each point says how many runs it is made of."""

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError
from trieye.results.aggregates import Aggregate, statistic_of
from trieye.results.aligned import Between, ascending
from trieye.results.bootstrap import Counts, Floats, Statistic, Strata, finite, interval_of
from trieye.results.statistics import Band


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

    The sample-efficiency curve of Agarwal et al. (2021): that of all runs which have a value there.

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
    at, runs = ascending(grid, "grid", least=1), finite(values, "values")
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
    at, heights = ascending(grid, "grid", least=2), finite(values, "values")
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
