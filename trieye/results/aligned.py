"""Aligned: the points of many runs on one grid, and the score of each run."""

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
"""What a curve is between two of its points: the value at the last one, or on the line between both."""
Floats = NDArray[np.float64]

_SHORT = 0.05
"""Fraction of a curve's range."""

COUNTERS = {"env_steps": ("progress/env_steps",), "updates": ("progress/updates", "train/n_updates")}
"""Metrics in which runs say how far they are, where their steps count something else."""


class Curve(NamedTuple):
    """The curves of one metric on a common grid.

    Attributes:
        x: `[grid]` float64.
        y: `[config, seed, grid]` float64; NaN where a run is missing, or has no points there.
        mask: `[config, seed, grid]` bool; True where there is a value, also one that the run logged as NaN.
    """

    x: Floats
    y: Floats
    mask: NDArray[np.bool_]


def axis_of(run: LoadedRun, series: Series, x: XAxis, counter: Series | None) -> Floats | None:
    """Return where the points of a run lie on an axis, `[points]`; None if the run does not tell.

    Args:
        run: The run.
        series: Its points.
        x: The axis.
        counter: The points of the metric that says how far the run was, by its steps; None: there is none.
    """
    if x == "wall_time":
        begun = run.created if math.isfinite(run.created) else series.times[:1].min(initial=np.inf)
        return series.times - begun
    if x in ("step", run.axis):
        return series.steps.astype(np.float64)
    if counter is None or not len(counter.steps):
        return None
    steps, counts = _ascending(counter.steps.astype(np.float64), counter.values)
    if steps[0] > 0:  # everything is counted from 0 on
        steps, counts = np.concatenate([[0.0], steps]), np.concatenate([[0.0], counts])
    return np.interp(series.steps, steps, counts, right=np.nan if len(steps) == 1 else None)


def on_grid(
    xs: Sequence[Floats | None], ys: Sequence[Floats], grid: int | Floats, between: Between = "linear"
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return curves on one grid: `[grid]`, `[curves, grid]`, and where there is a value.

    Before its first and after its last point a curve is missing: it is neither padded nor extrapolated. A value that
    was logged as NaN is carried as NaN, and so is a line to it: a run that diverged is seen to be missing from there
    on. Of points at one place the last one counts.

    Args:
        xs: `[points]` each; None: the curve is missing.
        ys: `[points]` each.
        grid: How many places, from the first to the last point of all; or the places, ascending.
        between: What a curve is between two of its points.

    Raises:
        ConfigurationError: The places do not ascend, there is none, or `between` is unknown.
    """
    if between not in {"last", "linear"}:
        raise ConfigurationError(f"between={between!r} is unknown; allowed: 'last', 'linear'")
    places = _places(xs, grid)
    found = np.full((len(xs), len(places)), np.nan)
    mask = np.zeros(found.shape, bool)
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x is None or not np.isfinite(x).any():
            continue
        is_known = np.isfinite(x)
        own_x, own_y = _ascending(x[is_known], y[is_known])
        inside = mask[number] = (places >= own_x[0]) & (places <= own_x[-1])
        if between == "linear":
            found[number, inside] = np.interp(places[inside], own_x, own_y)
        else:
            found[number, inside] = own_y[np.searchsorted(own_x, places[inside], side="right") - 1]
    return places, found, mask


def _places(xs: Sequence[Floats | None], grid: int | Floats) -> Floats:
    if isinstance(grid, int):
        if grid < 1:
            raise ConfigurationError(f"grid={grid}: it needs one place or more")
        ends = [x[np.isfinite(x)] for x in xs if x is not None and np.isfinite(x).any()]
        if not ends:
            return np.zeros(0)
        first, last = min(x.min() for x in ends), max(x.max() for x in ends)
        return np.linspace(first, last, grid) if last > first else np.array([first])
    return ascending(grid, "grid", least=1)


def ascending(steps: ArrayLike, name: str, *, least: int) -> Floats:
    """Return numbers `[point]` as they are.

    Raises:
        ConfigurationError: They do not ascend, one is no number, or there are fewer than `least`.
    """
    array = finite(steps, name)
    if array.ndim != 1 or array.size < least or np.isnan(array).any():
        raise ConfigurationError(f"{name} have shape {array.shape} or a NaN; allowed: numbers [point], {least} or more")
    if (falls := np.flatnonzero(np.diff(array) < 0)).size:
        place = int(falls[0])
        raise ConfigurationError(f"{name}: {array[place + 1]:g} comes after {array[place]:g}; sort them first")
    return array


def well_supported(at: Floats, n: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where enough runs have points for an aggregate `[point]`.

    These are points with at least half of the runs. A short stretch at either end where some have not begun, or have
    ended, is left out: the aggregate of the others jumps there, which would look like a spike.

    Args:
        at: `[point]`, ascending.
        n: `[point]`, how many runs have a value.
    """
    enough: NDArray[np.bool_] = (n > 0) & (2 * n >= n.max(initial=0))
    if enough.any():
        places = np.flatnonzero(enough)
        first, last = places[0], places[-1]
        shortest = _SHORT * (at[last] - at[first])
        enough[_supported_until(at, n, last, shortest) + 1 :] = False
        enough[: len(n) - 1 - _supported_until(-at[::-1], n[::-1], len(n) - 1 - first, shortest)] = False
    return enough


def _supported_until(at: Floats, n: NDArray[np.int64], last: int, shortest: float) -> int:
    """Return the last place that is not in a short stretch of fewer runs."""
    while n[last] < n.max():
        others = np.flatnonzero(n[:last] != n[last])
        if not others.size or at[last] - at[others[-1]] >= shortest:
            break
        last = int(others[-1])
    return last


def final(
    values: Floats, steps: NDArray[np.int64], last: float, last_steps: int | None, reduce: Callable[[Floats], float]
) -> float:
    """Return the score of the end of a curve, from its finite points; NaN if it has none.

    Args:
        values: `[points]`.
        steps: `[points]`.
        last: The last part of its points, at least one.
        last_steps: Instead, the points of so many last steps.
        reduce: What makes a number of them.
    """
    x, y = _ascending(steps.astype(np.float64), values)
    is_finite = np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    if not len(y):
        return math.nan
    if last_steps is not None:
        return float(reduce(y[x > x[-1] - last_steps]))
    return float(reduce(y[-max(1, math.ceil(len(y) * last - 1e-9)) :]))


def diverged_at(series: Series, dropped: Series) -> int | None:
    """Return the first step of the trailing non-finite values of a metric; None if its last value is finite.

    Args:
        series: Its points, in which foreign stores keep NaN and infinity.
        dropped: The points of `NON_FINITE_METRIC`, the steps at which a run of trieye dropped such values.
    """
    x, y = _ascending(series.steps.astype(np.float64), series.values)
    last = x[np.isfinite(y)].max(initial=-np.inf)
    beyond = np.concatenate([x[~np.isfinite(y)], dropped.steps])
    beyond = beyond[beyond > last]
    return int(beyond.min()) if len(beyond) else None


def _ascending(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return points in the order of x; of several at one place the last one that was made counts."""
    if (np.diff(x) > 0).all():
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    is_last = np.append(np.diff(x) > 0, True)
    return x[is_last], y[is_last]
