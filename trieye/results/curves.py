"""Pointwise aggregation of curves on a common grid, with the number of runs at each point; area under a curve."""

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
    """Return the aggregate at each point of a grid, with a pointwise stratified bootstrap interval.

    The sample-efficiency curve of Agarwal et al. (2021); each point aggregates all runs with a value there.

    Args:
        values: `[seed, task, point]`, or `[seed, point]` for one task; NaN where a value is missing.
        grid: `[point]`, ascending.
        stat: Name of the aggregate.
        gamma: Target score of the optimality gap.
        confidence: Confidence level of the intervals.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Returns:
        The curve; NaN at points where a task has no run, no interval where a task has a single run.

    Raises:
        ConfigurationError: The shapes do not fit, or `aggregate` raises it.
    """
    xs, runs = ascending(grid, "grid", min_size=1), finite(values, "values")
    runs = runs[:, np.newaxis] if runs.ndim == 2 else runs  # noqa: PLR2004
    if runs.ndim != 3 or runs.shape[-1] != xs.size:  # noqa: PLR2004
        allowed = f"[seed, task, {xs.size}], or [seed, {xs.size}] for one task"
        raise ConfigurationError(f"values have shape {np.shape(values)}; allowed for this grid: {allowed}")
    strata = [Strata.of(runs[..., point]) for point in range(xs.size)]
    points_by_sizes: dict[bytes, list[int]] = {}
    for point, table in enumerate(strata):
        points_by_sizes.setdefault(table.sizes.tobytes(), []).append(point)
    value, low, high = lines = np.full((3, xs.size), np.nan)
    for points in points_by_sizes.values():  # points with equal numbers of runs per task share the resample counts
        statistics = [statistic_of(strata[point], stat, gamma) for point in points]

        def statistic(counts: Counts, statistics: list[Statistic] = statistics) -> Floats:
            return np.stack([each(counts) for each in statistics], axis=1)

        ends = interval_of(strata[points[0]], statistic, confidence=confidence, resamples=resamples, seed=seed)
        lines[:, points] = [np.broadcast_to(end, len(points)) for end in ends]
    n, n_missing = (np.array(counts) for counts in zip(*((s.scores.size, s.num_missing) for s in strata), strict=True))
    return Band(xs, value, low, high, n, n_missing)


def area_under_curve(values: ArrayLike, grid: ArrayLike, between: Between = "last") -> Floats:
    """Return the area under each curve, in units of value times step.

    Sums rectangles if `between` is `last`, and uses the trapezoidal rule if it is `linear`. Divide by
    `grid[-1] - grid[0]` for the mean value. Areas of runs are scores, which `aggregate` accepts.

    Args:
        values: `[..., point]`; NaN where a value is missing.
        grid: `[point]`, ascending, two or more.
        between: Value between two points.

    Returns:
        float64 `[...]`; NaN for curves that do not cover the whole grid.

    Raises:
        ConfigurationError: The shapes do not fit, the grid does not ascend, or `between` is unknown.
    """
    coordinates, heights = ascending(grid, "grid", min_size=2), finite(values, "values")
    if between not in {"last", "linear"}:
        raise ConfigurationError(f"between={between!r} is unknown; allowed: 'last', 'linear'")
    if heights.ndim < 1 or heights.shape[-1] != coordinates.size:
        raise ConfigurationError(f"values have shape {heights.shape}; allowed for this grid: [..., {coordinates.size}]")
    if between == "linear":
        heights = (heights[..., 1:] + heights[..., :-1]) / 2
        areas: Floats = heights @ np.diff(coordinates)
        return areas
    areas = heights[..., :-1] @ np.diff(coordinates)
    return np.where(np.isnan(heights[..., -1]), np.nan, areas)
