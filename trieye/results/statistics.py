"""Statistics of the scores of many runs, each with a bootstrap interval.

Scores are arrays `[seed, task]`, or `[seed]` for one task, with NaN where a seed is missing for a task; higher is
better, so negate a loss. Seeds are the replicates: a resample draws the runs of each task with replacement, as many as
the task has; tasks are not resampled. If a task has no run, a figure is NaN rather than computed from fewer tasks; if a
task has a single run, there is no interval, because its spread is unknown. With few seeds an interval is too narrow:
if scores are normally distributed, a 95 % interval of 2, 3, 4, 5, 10 runs contains the true mean in 51, 75, 80, 84,
90 % of cases.

Formulas follow Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (NeurIPS 2021), and
its library rliable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.aggregates import Aggregate, weighted_sum
from trieye.results.bootstrap import RESAMPLES, Counts, Floats, Statistic, Strata, finite, interval_of

FEW = 5
"""With fewer runs, an interval is too narrow to decide."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: The figure in the unit of the scores; NaN if a task has no run.
        low: Lower bound of the interval; None if a task has fewer than two runs.
        high: Upper bound of the interval, or None.
        n: Number of runs, summed over tasks.
        n_missing: Number of (seed, task) pairs without a score.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    n_missing: int


@dataclass(frozen=True, slots=True)
class Band:
    """Estimates at the points of a curve or a profile, with pointwise intervals.

    Attributes:
        at: float64 `[point]`: steps, or thresholds in the unit of the scores.
        value: float64 `[point]`; NaN where a task has no run.
        low: float64 `[point]`; NaN where a task has fewer than two runs.
        high: float64 `[point]`; NaN where a task has fewer than two runs.
        n: int64 `[point]`, number of runs, summed over tasks.
        n_missing: int64 `[point]`, number of missing runs.
    """

    at: Floats
    value: Floats
    low: Floats
    high: Floats
    n: NDArray[np.int64]
    n_missing: NDArray[np.int64]

    def without_spikes(self) -> "Band":
        """Return the band without points between two others with fewer runs: a short run adds such a point."""
        counts = np.pad(self.n, 1)
        is_spike = (self.n > counts[:-2]) & (self.n > counts[2:]) & (counts[:-2] > 0) & (counts[2:] > 0)
        return Band(**{field.name: getattr(self, field.name)[~is_spike] for field in fields(self)})


def aggregate(
    scores: ArrayLike,
    stat: Aggregate = "iqm",
    *,
    gamma: float = 1.0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return an aggregate of all runs, with a stratified bootstrap percentile interval.

    Args:
        scores: `[seed, task]` or `[seed]`; NaN where a score is missing.
        stat: Name of the aggregate; see `trieye.results.aggregates`.
        gamma: Target score of the optimality gap.
        confidence: How often such an interval contains the figure of infinitely many seeds.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples; the interval does not depend on the order of the runs.

    Raises:
        ConfigurationError: The scores have another shape or are infinite, or an option is out of bounds.
    """
    runs = Strata.of(scores)
    return estimate_of([(1.0, runs)], stat, gamma=gamma, confidence=confidence, resamples=resamples, seed=seed)


def spread(scores: Floats) -> Estimate:
    """Return the sample standard deviation of all runs, without an interval; NaN for a single run."""
    valid_scores = scores[~np.isnan(scores)]
    with np.errstate(over="ignore"):
        value = float(valid_scores.std(ddof=1)) if len(valid_scores) > 1 else np.nan
    return Estimate(value, None, None, len(valid_scores), 0)


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
    """Return the difference of the aggregates, X minus Y; both are resampled independently, as seeds are no pairs.

    The interval of Y minus X is the same with opposite signs.

    Args:
        x: `[seed, task]` or `[seed]`; NaN where a score is missing.
        y: Scores for the same tasks, with any number of seeds.
        stat: Name of the aggregate.
        gamma: Target score of the optimality gap.
        confidence: Confidence level of the interval.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Returns:
        The difference; `n` and `n_missing` count the runs of both.

    Raises:
        ConfigurationError: X and Y differ in their number of tasks, or `aggregate` raises it.
    """
    terms = sorted(zip((1.0, -1.0), _operands(x, y), strict=True), key=lambda term: term[1].order)
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
    """Return the weighted sum of the aggregates of several tables, with its interval.

    Raises:
        ConfigurationError: The confidence, the number of resamples or the name of the aggregate is invalid.
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
    x: ArrayLike, y: ArrayLike, *, confidence: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> Estimate:
    """Return the probability that a run of X is better than a run of Y on the same task, averaged over tasks.

    Agarwal et al. (2021), section 4.3: the Mann-Whitney U of each task, divided by the number of pairs; a pair of equal
    scores counts one half.

    Args:
        x: `[seed, task]` or `[seed]`; NaN where a score is missing.
        y: Scores for the same tasks, with any number of seeds.
        confidence: Confidence level of the interval.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Returns:
        The probability; `n` and `n_missing` count the runs of both.

    Raises:
        ConfigurationError: X and Y differ in their number of tasks, or `aggregate` raises it.
    """
    operands = _operands(x, y)
    first, second = sorted(operands, key=lambda runs: runs.order)
    improvement = _improvement(first, second)
    # the interval of P(Y > X) is that of P(X > Y), subtracted from 1
    statistic = improvement if first is operands[0] else lambda counts: 1 - improvement(counts)
    return _estimate(Strata.joined([first, second]), statistic, confidence=confidence, resamples=resamples, seed=seed)


def verdict(
    gap: Estimate, num_runs: int, num_diverged: int = 0, *, stat: Aggregate = "iqm"
) -> tuple[Literal["higher", "lower", "inconclusive"], str]:
    """Return whether X scores higher or lower than Y, or inconclusive if the difference may be noise, and the reason.

    Args:
        gap: The `difference` X - Y.
        num_runs: Number of runs of the smaller group in a task.
        num_diverged: Number of diverged runs, which have no score, so that the other scores are a biased selection.
        stat: The aggregate of the difference; a lower optimality gap is a higher score.
    """
    if num_diverged:
        return "inconclusive", "diverged runs have no score"
    if num_runs < FEW:
        return "inconclusive", f"each group needs {FEW} or more runs per task"
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return "inconclusive", "the interval of their difference includes 0"
    is_higher = (gap.low > 0) != (stat == "optimality_gap")
    return ("higher" if is_higher else "lower"), "the interval of their difference excludes 0"


def _operands(x: ArrayLike, y: ArrayLike) -> tuple[Strata, Strata]:
    operands = Strata.of(x, "the scores of X"), Strata.of(y, "the scores of Y")
    if operands[0].sizes.size != operands[1].sizes.size:
        numbers = " and ".join(f"{operand.sizes.size}" for operand in operands)
        raise ConfigurationError(f"X and Y have {numbers} tasks; expected equal tasks, with NaN for missing runs")
    return operands


def _improvement(x: Strata, y: Strata) -> Statistic:
    """Return P(X > Y) as a function of the counts of the runs of X, followed by the runs of Y."""
    tasks = []
    for size_x, start_x, size_y, start_y in zip(x.sizes, x.starts, y.sizes, y.starts, strict=True):
        runs_x, runs_y = slice(start_x, start_x + size_x), slice(start_y, start_y + size_y)
        pairs = x.scores[runs_x, np.newaxis], y.scores[runs_y]
        better = np.greater(*pairs) + 0.5 * np.equal(*pairs)
        tasks.append((runs_x, slice(x.scores.size + runs_y.start, x.scores.size + runs_y.stop), better, better.size))

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
        scores: `[seed, task]` or `[seed]`; NaN where a score is missing.
        thresholds: `[point]`, in the unit of the scores, in any order.
        of: The counted scores: of runs, or task means.
        confidence: Confidence level of the pointwise intervals.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resamples.

    Raises:
        ConfigurationError: The thresholds are not `[point]`, `of` is unknown, or `aggregate` raises it.
    """
    xs = finite(thresholds, "thresholds")
    if xs.ndim != 1 or np.isnan(xs).any():
        raise ConfigurationError(
            f"thresholds: the shape is {xs.shape}, or a value is NaN; expected a 1-D array of numbers"
        )
    if of not in {"runs", "task_means"}:
        raise ConfigurationError(f"of={of!r} is unknown; allowed: 'runs', 'task_means'")
    runs = Strata.of(scores)
    statistic = _runs_above(runs, xs) if of == "runs" else _means_above(runs, xs)
    ends = interval_of(runs, statistic, confidence=confidence, resamples=resamples, seed=seed)
    value, low, high = (np.broadcast_to(end, xs.shape) for end in ends)
    n, n_missing = np.full(xs.size, runs.scores.size), np.full(xs.size, runs.num_missing)
    return Band(xs, value, low, high, n, n_missing)


def performance_profiles(scores: Mapping[str, Floats], metric: str, *, confidence: float = 0.95) -> dict[str, Band]:
    """Return the performance profile of each table of scores, over the score range of all of them.

    Args:
        scores: Scores `[seed, task]` by label; NaN where a run is missing.
        metric: Name of the metric, for the error message.
        confidence: Confidence level of the pointwise intervals.

    Raises:
        ConfigurationError: No run has a score.
    """
    valid_scores = np.concatenate([values[~np.isnan(values)] for values in scores.values()])
    if not valid_scores.size:
        raise ConfigurationError(f"{metric}: no run has a score")
    thresholds = np.linspace(valid_scores.min() - 0.02 * (np.ptp(valid_scores) or 1.0), valid_scores.max(), 200)
    return {label: performance_profile(values, thresholds, confidence=confidence) for label, values in scores.items()}


def _runs_above(runs: Strata, xs: Floats) -> Statistic:
    weights = 1 / (runs.sizes.size * runs.sizes.repeat(runs.sizes))
    weights_above = (runs.scores[:, np.newaxis] > xs) * weights[:, np.newaxis]
    return lambda counts: counts @ weights_above


def _means_above(runs: Strata, xs: Floats) -> Statistic:
    def statistic(counts: Counts) -> Floats:
        means = runs.task_means(counts)
        return np.stack([(means > threshold).mean(axis=1) for threshold in xs], axis=1)

    return statistic
