"""Aggregates: one number for the scores of all runs, computed for many bootstrap resamples at once."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.results.bootstrap import Counts, Floats, Statistic, Strata

Aggregate = Literal["mean", "median", "iqm", "optimality_gap", "run_median"]
"""`mean`: mean of the task means. `median`: median of the task means, as in papers; with one task, its mean.
`run_median`: median of all runs. `iqm`: interquartile mean of all runs. `optimality_gap`: mean shortfall below gamma.
All tasks have the same weight, also those with fewer runs.
"""

_MAX_WEIGHT = 1 << 52
"""Upper limit of the weight of all runs, which float64 represents exactly."""


def statistic_of(strata: Strata, stat: Aggregate, gamma: float = 1.0) -> Statistic:
    """Return an aggregate of these runs as a function of the resample counts.

    Args:
        strata: The runs, at least one per task.
        stat: Name of the aggregate.
        gamma: Target score of the optimality gap, in the unit of the scores.

    Raises:
        ConfigurationError: The name is unknown.
    """
    if stat not in _MAKERS:
        from trieye.config.base import did_you_mean  # pydantic: 100 ms

        allowed = ", ".join(_MAKERS)
        raise ConfigurationError(f"stat={stat!r} is unknown{did_you_mean(str(stat), _MAKERS)} (choose from: {allowed})")
    return _optimality_gap(strata, gamma) if stat == "optimality_gap" else _MAKERS[stat](strata)


def weighted_sum(terms: Sequence[tuple[float, Strata]], stat: Aggregate, gamma: float = 1.0) -> Statistic:
    """Return the weighted sum of the aggregates of several tables, as a function of the counts of the joined tables."""
    parts, start = [], 0
    for factor, strata in terms:
        end = start + strata.scores.size
        parts.append((factor, slice(start, end), statistic_of(strata, stat, gamma)))
        start = end

    def statistic(counts: Counts) -> Floats:
        total: Floats = np.sum([factor * part(counts[:, runs]) for factor, runs, part in parts], axis=0)
        return total

    return statistic


def _mean(strata: Strata) -> Statistic:
    return lambda counts: strata.task_means(counts).mean(axis=1)


def _median(strata: Strata) -> Statistic:
    """Agarwal et al. (2021), section 3: the median of the mean of each task."""
    return lambda counts: np.median(strata.task_means(counts), axis=1)


def _iqm(strata: Strata) -> Statistic:
    """Agarwal et al. (2021), section 4.3: the mean of the middle half of all runs of all tasks.

    A quarter of the runs, rounded down, is cut at each end, as in `scipy.stats.trim_mean(scores, 0.25, axis=None)`.
    """
    return _trimmed(strata, _num_runs(strata) // 4)


def _run_median(strata: Strata) -> Statistic:
    return _trimmed(strata, (_num_runs(strata) - 1) // 2)


def _num_runs(strata: Strata) -> int:
    """Return the number of runs if all tasks had as many as the largest, so that a missing run does not change cuts."""
    return strata.sizes.size * int(strata.sizes.max())


def _trimmed(strata: Strata, num_cut: int) -> Statistic:
    """Return the mean without the lowest and the highest `num_cut` of `_num_runs` runs.

    Each run weighs 1 / (number of tasks * number of runs of its task), so all tasks have the same weight, and
    `num_cut / _num_runs` of the weight is cut at each end.

    The weight of a run follows from the cumulative counts in the order of scores, so resamples need no sorting. A cut
    run has weight 0, so that a huge score of a diverged run does not round away the rest of the mean; weights are
    integers for this reason.
    """
    order = np.argsort(strata.scores, kind="stable")
    scores = strata.scores[order]
    of_a_task = min(math.lcm(*strata.sizes.tolist()), _MAX_WEIGHT // strata.sizes.size)
    weights = np.rint(of_a_task / strata.sizes.repeat(strata.sizes)).astype(np.intp)[order]
    cut_weight = num_cut * int(weights.min(initial=of_a_task))
    kept_weight = int(weights.sum()) - 2 * cut_weight
    are_equal = bool((weights == 1).all())

    def statistic(counts: Counts) -> Floats:
        drawn = counts.take(order, axis=1)
        drawn = np.cumsum(drawn if are_equal else drawn * weights, axis=1)
        drawn -= cut_weight
        np.clip(drawn, 0, kept_weight, out=drawn)
        means: Floats = (np.diff(drawn) @ scores[1:] + drawn[:, 0] * scores[0]) / kept_weight
        return means

    return statistic


def _optimality_gap(strata: Strata, gamma: float = 1.0) -> Statistic:
    """Agarwal et al. (2021), section 4.3: gamma minus the mean of min(score, gamma); lower is better."""
    capped = np.minimum(strata.scores, gamma)
    return lambda counts: gamma - strata.task_means(counts, capped).mean(axis=1)


_MAKERS: dict[str, Callable[[Strata], Statistic]] = {
    "mean": _mean,
    "median": _median,
    "iqm": _iqm,
    "optimality_gap": _optimality_gap,
    "run_median": _run_median,
}
