"""Aligned: the points of many runs on one grid, and what one number each comes to."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trieye.results.runs import Series, StoredRun

XAxis = Literal["step", "env_steps", "updates", "wall_time"]
Floats = NDArray[np.float64]

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


def axis_of(run: StoredRun, series: Series, x: XAxis, counter: Series | None) -> Floats | None:
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
    xs: Sequence[Floats | None], ys: Sequence[Floats], grid: int | Floats
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return curves on one grid: `[grid]`, `[curves, grid]`, and where there is a value.

    Between two points a curve is a straight line; before its first and after its last point it is missing.

    Args:
        xs: `[points]` each; None: the curve is missing.
        ys: `[points]` each.
        grid: How many places, from the first to the last point of all; or the places.
    """
    ends = [x[np.isfinite(x)] for x in xs if x is not None and len(x)]
    ends = [x for x in ends if len(x)]
    if not isinstance(grid, int):
        places = np.asarray(grid, np.float64)
    elif ends:
        first, last = min(x.min() for x in ends), max(x.max() for x in ends)
        places = np.linspace(first, last, grid) if last > first else np.array([first])
    else:
        places = np.zeros(0)
    found = np.full((len(xs), len(places)), np.nan)
    mask = np.zeros(found.shape, bool)
    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x is None or not np.isfinite(x).any():
            continue
        is_known = np.isfinite(x)
        own_x, own_y = _ascending(x[is_known], y[is_known])
        mask[number] = (places >= own_x[0]) & (places <= own_x[-1])
        found[number] = np.where(mask[number], np.interp(places, own_x, own_y), np.nan)
    return places, found, mask


def final(
    values: Floats, steps: NDArray[np.int64], last: float, last_steps: int | None, reduce: Callable[[Floats], float]
) -> float:
    """Return the number that the end of a curve comes to; NaN if it has no points.

    Args:
        values: `[points]`.
        steps: `[points]`.
        last: The last part of its points, at least one.
        last_steps: Instead, the points of so many last steps.
        reduce: What makes a number of them.
    """
    if not len(values):
        return math.nan
    x, y = _ascending(steps.astype(np.float64), values)
    if last_steps is not None:
        return float(reduce(y[x > x[-1] - last_steps]))
    return float(reduce(y[-max(1, math.ceil(len(y) * last - 1e-9)) :]))


def _ascending(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return points in the order of x; of several at one place the last one that was made counts."""
    if (np.diff(x) > 0).all():
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    is_last = np.append(np.diff(x) > 0, True)
    return x[is_last], y[is_last]
