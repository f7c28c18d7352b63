"""AlignedCurves: interpolation of the points of many runs to a common grid, and the final score of a run."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.bootstrap import finite
from trieye.results.runs import LoadedRun, Series

XAxis = Literal["step", "env_steps", "updates", "wall_time"]
Between = Literal["last", "linear"]
"""Value of a curve between two points: the last value, or linear interpolation."""
Floats = NDArray[np.float64]

_SHORT = 0.05
"""Largest stretch with few runs, as a fraction of the curve's range, that is cut at its ends."""

COUNTERS = {"env_steps": ("progress/env_steps",), "updates": ("progress/updates", "train/n_updates")}
"""Metrics that count environment steps or updates in runs whose step counts something else."""


class AlignedCurves(NamedTuple):
    """The curves of one metric on a common grid.

    Attributes:
        x: `[grid]` float64.
        y: `[config, seed, grid]` float64; NaN where a run is missing or has no points.
        mask: `[config, seed, grid]` bool; True where a run has a value, including a logged NaN.
    """

    x: Floats
    y: Floats
    mask: NDArray[np.bool_]


def axis_of(run: LoadedRun, series: Series, x: XAxis, counter: Series | None) -> Floats | None:
    """Return the coordinates of a run's points on an axis, `[points]`; None if the run does not log the axis.

    Args:
        run: The run.
        series: The points.
        x: The axis.
        counter: Points of the metric that counts the axis; None: the run has none.
    """
    if x == "wall_time":
        start_time = run.created if math.isfinite(run.created) else series.times[:1].min(initial=np.inf)
        return series.times - start_time
    if x in ("step", run.axis):
        return series.steps.astype(np.float64)
    if counter is None or not len(counter.steps):
        return None
    steps, counts = _ascending(counter.steps.astype(np.float64), counter.values)
    if steps[0] > 0:  # counters start from 0
        steps, counts = np.concatenate([[0.0], steps]), np.concatenate([[0.0], counts])
    return np.interp(series.steps, steps, counts, right=np.nan if len(steps) == 1 else None)


def on_grid(
    xs: Sequence[Floats | None], ys: Sequence[Floats], grid: int | Floats, between: Between = "linear"
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Interpolate curves to one grid: `[grid]`, `[curves, grid]`, and the mask of values `[curves, grid]`.

    A curve is neither padded nor extrapolated before its first and after its last point. A logged NaN stays NaN, as
    does a line to it, so a diverged run is missing from there on. The last of several points at the same x counts.

    Args:
        xs: `[points]` each; None: the curve is missing.
        ys: `[points]` each.
        grid: Number of grid points, from the first to the last point of all curves; or ascending coordinates. With
            a number, the ends of curves that contain no grid point are added, if these are no more than `grid`.
        between: Interpolation between points.

    Raises:
        ConfigurationError: The coordinates do not ascend or are empty, or `between` is unknown.
    """
    if between not in {"last", "linear"}:
        raise ConfigurationError(f"between={between!r} is unknown; allowed: 'last', 'linear'")
    coordinates = _grid_points(xs, grid)
    heights = np.full((len(xs), len(coordinates)), np.nan)
    mask = np.zeros(heights.shape, bool)
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x is None or not np.isfinite(x).any():
            continue
        is_finite = np.isfinite(x)
        own_x, own_y = _ascending(x[is_finite], y[is_finite])
        is_inside = mask[index] = (coordinates >= own_x[0]) & (coordinates <= own_x[-1])
        if between == "linear":
            heights[index, is_inside] = np.interp(coordinates[is_inside], own_x, own_y)
        else:
            heights[index, is_inside] = own_y[np.searchsorted(own_x, coordinates[is_inside], side="right") - 1]
    return coordinates, heights, mask


def _grid_points(xs: Sequence[Floats | None], grid: int | Floats) -> Floats:
    if isinstance(grid, int):
        if grid < 1:
            raise ConfigurationError(f"grid={grid}: expected 1 or more points")
        ends = [x[np.isfinite(x)] for x in xs if x is not None and np.isfinite(x).any()]
        if not ends:
            return np.zeros(0)
        first, last = min(x.min() for x in ends), max(x.max() for x in ends)
        points = np.linspace(first, last, grid) if last > first else np.array([first])
        return _with_short_curves(points, np.array([(x.min(), x.max()) for x in ends]), grid)
    return ascending(grid, "grid", min_size=1)


def _with_short_curves(points: Floats, ends: Floats, max_added: int) -> Floats:
    """Add the ends of curves that contain no grid point, with midpoints, so that a line never connects two of them.

    Args:
        points: `[point]`, ascending.
        ends: `[curve, 2]`, first and last coordinate.
        max_added: Maximum number of added ends, because each adds a column to all curves.
    """
    num_points = np.searchsorted(points, ends[:, 1], "right") - np.searchsorted(points, ends[:, 0])
    short = np.unique(ends[(num_points == 0) | (ends[:, 0] == ends[:, 1])])
    return np.union1d(points, [*short, *(short[1:] + short[:-1]) / 2]) if len(short) <= max_added else points


def ascending(steps: ArrayLike, name: str, *, min_size: int) -> Floats:
    """Check and return ascending numbers `[point]`.

    Raises:
        ConfigurationError: The numbers do not ascend, contain a NaN or infinity, or are fewer than `min_size`.
    """
    array = finite(steps, name)
    if array.ndim != 1 or array.size < min_size or np.isnan(array).any():
        raise ConfigurationError(
            f"{name}: the shape is {array.shape}, or a value is NaN; expected a 1-D array of {min_size} or more numbers"
        )
    if (falls := np.flatnonzero(np.diff(array) < 0)).size:
        index = int(falls[0])
        raise ConfigurationError(f"{name}: {array[index + 1]:g} comes after {array[index]:g}; sort the values first")
    return array


def stretches(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Return the indices of each contiguous stretch of True in a mask `[point]`."""
    indices = np.flatnonzero(mask)
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1) if len(indices) else []


def well_supported(xs: Floats, n: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask `[point]` of the points where enough runs have values for an aggregate.

    At least half of the runs need a value. Short stretches at either end, where some runs have not started or have
    already ended, are excluded: the aggregate of the other runs jumps there, which would look like a spike.

    Args:
        xs: `[point]`, ascending.
        n: `[point]`, number of runs with a value.
    """
    mask: NDArray[np.bool_] = (n > 0) & (2 * n >= n.max(initial=0))
    if mask.any():
        indices = np.flatnonzero(mask)
        first_index, last_index = indices[0], indices[-1]
        min_length = _SHORT * (xs[last_index] - xs[first_index])
        mask[_supported_until(xs, n, last_index, min_length) + 1 :] = False
        mask[: len(n) - 1 - _supported_until(-xs[::-1], n[::-1], len(n) - 1 - first_index, min_length)] = False
    return mask


def _supported_until(xs: Floats, n: NDArray[np.int64], last_index: int, min_length: float) -> int:
    """Return the last index outside a short stretch with fewer runs."""
    while n[last_index] < n.max():
        other_indices = np.flatnonzero(n[:last_index] != n[last_index])
        if not other_indices.size or xs[last_index] - xs[other_indices[-1]] >= min_length:
            break
        last_index = int(other_indices[-1])
    return last_index


@np.errstate(over="ignore")  # a mean of values near the largest number is infinite
def final(
    values: Floats, steps: NDArray[np.int64], last: float, last_steps: int | None, reduce: Callable[[Floats], float]
) -> float:
    """Return the final score of a curve, from its finite points; NaN without finite points.

    Args:
        values: `[points]`.
        steps: `[points]`.
        last: Fraction of the points at the end, at least one point.
        last_steps: Number of steps at the end, which replaces `last`.
        reduce: Reduces the selected values to one number.
    """
    x, y = _ascending(steps.astype(np.float64), values)
    is_finite = np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    if not len(y):
        return math.nan
    if last_steps is not None:
        return float(reduce(y[x > x[-1] - last_steps]))
    return float(reduce(y[-max(1, math.ceil(len(y) * last - 1e-9)) :]))


def means_of(values: Floats) -> list[float]:
    """Return the mean score of each config `[config, seed]`; NaN without scores."""
    return [float(row[~np.isnan(row)].mean()) if not np.isnan(row).all() else np.nan for row in values]


def diverged_at(series: Series, dropped_points: Series) -> int | None:
    """Return the first step of the trailing non-finite values of a metric; None if its last value is finite.

    Args:
        series: The points; foreign stores include NaN and infinity.
        dropped_points: The points of `NON_FINITE_METRIC`, at whose steps a trieye run dropped such values.
    """
    x, y = _ascending(series.steps.astype(np.float64), series.values)
    last_finite = x[np.isfinite(y)].max(initial=-np.inf)
    steps_beyond = np.concatenate([x[~np.isfinite(y)], dropped_points.steps])
    steps_beyond = steps_beyond[steps_beyond > last_finite]
    return int(steps_beyond.min()) if len(steps_beyond) else None


def _ascending(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Sort points by x; the last logged of several points at the same x counts."""
    if (np.diff(x) > 0).all():
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    is_last = np.append(np.diff(x) > 0, True)
    return x[is_last], y[is_last]
