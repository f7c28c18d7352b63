"""Statistics: what is reported of the scores of many runs, each figure with the interval in which it may be trusted.

Scores are arrays `[seed, task]`, or `[seed]` of one task, with NaN where a seed is missing for a task; higher is
better, so negate a loss. Seeds are what is replicated: a resample draws the runs of each task with replacement, as many
as there are, and the tasks stay. A task without a run makes a figure NaN rather than one of fewer tasks; a task with
one run gives no interval, since nothing is known of its spread. With few seeds an interval is too narrow: resamples
of n runs spread by a factor of sqrt((n - 1) / n) less than new runs would.

The formulas are those of Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (NeurIPS
2021), and of its library rliable.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.aggregates import Aggregate, weighted_sum
from trieye.results.bootstrap import (
    RESAMPLES,
    Counts,
    Floats,
    Statistic,
    Strata,
    finite,
    interval_of,
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: In the unit of the scores; NaN if a task has no run.
        low: Lower end of the interval; None if a task has fewer than two runs.
        high: Upper end of the interval, or None.
        n: How many runs it is made of, all tasks together.
        n_missing: How many more there would be if each seed had a score for each task.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    n_missing: int


@dataclass(frozen=True, slots=True)
class Band:
    """An estimate at each of several points: of a curve, or of a profile. The interval is that of each point by itself.

    Attributes:
        at: float64 `[point]`: steps, or thresholds in the unit of the scores.
        value: float64 `[point]`; NaN where a task has no run.
        low: float64 `[point]`; NaN where a task has fewer than two runs.
        high: float64 `[point]`; NaN where a task has fewer than two runs.
        n: int64 `[point]`, how many runs there are, all tasks together.
        n_missing: int64 `[point]`, how many are missing.
    """

    at: Floats
    value: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]
    n_missing: NDArray[np.int64]


def aggregate(
    scores: ArrayLike,
    stat: Aggregate = "iqm",
    *,
    gamma: float = 1.0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return one figure for all runs, with a stratified bootstrap percentile interval.

    Args:
        scores: `[seed, task]` or `[seed]`; NaN where one is missing.
        stat: Which figure; `trieye.results.aggregates` says what each is.
        gamma: The score that is enough, of the optimality gap.
        confidence: How often such an interval contains the figure of infinitely many seeds.
        resamples: How many the interval is made of.
        seed: Of the resamples: the same seed gives the same interval, in whatever order the runs come.

    Raises:
        ConfigurationError: The scores have another shape or are infinite, or an option is out of bounds.
    """
    runs = Strata.of(scores)
    return estimate_of([(1.0, runs)], stat, gamma=gamma, confidence=confidence, resamples=resamples, seed=seed)


def difference(
    x: ArrayLike,
    y: ArrayLike,
    stat: Aggregate = "iqm",
    *,
    gamma: float = 1.0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return a figure of X less that of Y; both are resampled independently, since equal seeds make no pair.

    Args:
        x: `[seed, task]` or `[seed]`; NaN where one is missing.
        y: Of the same tasks, with as many seeds as there are.
        stat: Which figure.
        gamma: The score that is enough, of the optimality gap.
        confidence: Of the interval.
        resamples: How many the interval is made of.
        seed: Of the resamples.

    Returns:
        The difference; `n` and `n_missing` count the runs of both.

    Raises:
        ConfigurationError: The tasks of both differ in number, or what `aggregate` raises.
    """
    terms = list(zip((1.0, -1.0), _sides(x, y), strict=True))
    return estimate_of(terms, stat, gamma=gamma, confidence=confidence, resamples=resamples, seed=seed)


def estimate_of(
    terms: Sequence[tuple[float, Strata]],
    stat: Aggregate,
    *,
    gamma: float = 1.0,
    confidence: float,
    resamples: int,
    seed: int,
) -> Estimate:
    """Return the sum of the aggregates of several tables, each times its factor, with the interval of that sum.

    Raises:
        ConfigurationError: The confidence, the resamples or the name of the aggregate is out of bounds.
    """
    runs = Strata.joined([table for _, table in terms])
    statistic = weighted_sum(terms, stat, gamma)
    return _estimate(runs, statistic, confidence=confidence, resamples=resamples, seed=seed)


def _estimate(runs: Strata, statistic: Statistic, *, confidence: float, resamples: int, seed: int) -> Estimate:
    value, low, high = interval_of(runs, statistic, confidence=confidence, resamples=resamples, seed=seed)
    if not runs.has_spread:
        return Estimate(float(value), None, None, runs.scores.size, runs.num_missing)
    return Estimate(float(value), float(low), float(high), runs.scores.size, runs.num_missing)


def probability_of_improvement(
    x: ArrayLike,
    y: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """Return how likely a run of X is better than one of Y on the same task, the mean of all tasks.

    Agarwal et al. (2021), section 4.3: the Mann-Whitney U of each task, divided by the number of pairs; a pair of equal
    scores counts one half.

    Args:
        x: `[seed, task]` or `[seed]`; NaN where one is missing.
        y: Of the same tasks, with as many seeds as there are.
        confidence: Of the interval.
        resamples: How many the interval is made of.
        seed: Of the resamples.

    Returns:
        The probability, without unit; `n` and `n_missing` count the runs of both.

    Raises:
        ConfigurationError: The tasks of both differ in number, or what `aggregate` raises.
    """
    sides = _sides(x, y)
    statistic = _improvement(*sides)
    return _estimate(Strata.joined(sides), statistic, confidence=confidence, resamples=resamples, seed=seed)


def _sides(x: ArrayLike, y: ArrayLike) -> tuple[Strata, Strata]:
    sides = Strata.of(x, "the scores of X"), Strata.of(y, "the scores of Y")
    if sides[0].sizes.size != sides[1].sizes.size:
        numbers = " and ".join(f"{side.sizes.size}" for side in sides)
        raise ConfigurationError(f"X and Y have {numbers} tasks; both need the same tasks, NaN where one has no run")
    return sides


def _improvement(x: Strata, y: Strata) -> Statistic:
    """Return P(X > Y) as a function of how often each run of X was drawn, and each of Y behind them."""
    tasks = []
    for size_x, start_x, size_y, start_y in zip(x.sizes, x.starts, y.sizes, y.starts, strict=True):
        of_x, of_y = slice(start_x, start_x + size_x), slice(start_y, start_y + size_y)
        pairs = x.scores[of_x, np.newaxis], y.scores[of_y]
        better = np.greater(*pairs) + 0.5 * np.equal(*pairs)
        tasks.append((of_x, slice(x.scores.size + of_y.start, x.scores.size + of_y.stop), better, better.size))

    def statistic(counts: Counts) -> Floats:
        weights = counts.astype(np.float64)
        wins = [np.einsum("ry,ry->r", weights[:, xs] @ better, weights[:, ys]) / num for xs, ys, better, num in tasks]
        mean: Floats = np.mean(wins, axis=0)
        return mean

    return statistic


def performance_profile(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    of: Literal["runs", "task_means"] = "runs",
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Band:
    """Return the fraction of scores above each threshold.

    Agarwal et al. (2021), section 4.2: `runs` is the run-score distribution, the mean over tasks of the
    fraction of runs with score > threshold; `task_means` is the average-score distribution, the fraction of tasks whose
    mean score is > threshold.

    Args:
        scores: `[seed, task]` or `[seed]`; NaN where one is missing.
        thresholds: `[point]`, in the unit of the scores, in any order.
        of: Whose scores are counted.
        confidence: Of the interval of each threshold by itself.
        resamples: How many the intervals are made of.
        seed: Of the resamples.

    Raises:
        ConfigurationError: The thresholds are not `[point]`, `of` is unknown, or what `aggregate` raises.
    """
    at = finite(thresholds, "thresholds")
    if at.ndim != 1 or np.isnan(at).any():
        raise ConfigurationError(f"thresholds have shape {at.shape} or a NaN; allowed: numbers [point]")
    if of not in {"runs", "task_means"}:
        raise ConfigurationError(f"of={of!r} is unknown; allowed: 'runs', 'task_means'")
    runs = Strata.of(scores)
    statistic = _runs_above(runs, at) if of == "runs" else _means_above(runs, at)
    ends = interval_of(runs, statistic, confidence=confidence, resamples=resamples, seed=seed)
    value, low, high = (np.broadcast_to(end, at.shape) for end in ends)
    n, n_missing = np.full(at.size, runs.scores.size), np.full(at.size, runs.num_missing)
    return Band(at, value, low, high, n, n_missing)


def _runs_above(runs: Strata, at: Floats) -> Statistic:
    weights = 1 / (runs.sizes.size * runs.sizes.repeat(runs.sizes))
    above = (runs.scores[:, np.newaxis] > at) * weights[:, np.newaxis]
    return lambda counts: counts @ above


def _means_above(runs: Strata, at: Floats) -> Statistic:
    def statistic(counts: Counts) -> Floats:
        means = runs.task_means(counts)
        return np.stack([(means > threshold).mean(axis=1) for threshold in at], axis=1)

    return statistic
