"""Aggregates: one number for the scores of all runs, as a statistic that many resamples are given to at once."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.results.bootstrap import Counts, Floats, Statistic, Strata

Aggregate = Literal["mean", "median", "iqm", "optimality_gap", "run_median"]
"""`mean`: of the tasks' means. `median`: of the tasks' means, as papers report it; the mean if there is one task.
`run_median`: of all runs. `iqm`: the interquartile mean of all runs. `optimality_gap`: how far runs stay below gamma.
"""


def statistic_of(strata: Strata, stat: Aggregate, gamma: float = 1.0) -> Statistic:
    """Return an aggregate of these runs, as a function of how often each was drawn.

    Args:
        strata: The runs; every task has one.
        stat: Its name.
        gamma: The score that is enough, of the optimality gap; in the unit of the scores.

    Raises:
        ConfigurationError: There is no aggregate of this name.
    """
    if stat not in _MAKERS:
        from trieye.config.base import did_you_mean  # pydantic: 100 ms

        known = ", ".join(_MAKERS)
        raise ConfigurationError(f"stat={stat!r} is unknown{did_you_mean(str(stat), _MAKERS)} (known: {known})")
    return _optimality_gap(strata, gamma) if stat == "optimality_gap" else _MAKERS[stat](strata)


def weighted_sum(terms: Sequence[tuple[float, Strata]], stat: Aggregate, gamma: float = 1.0) -> Statistic:
    """Return the sum of the aggregates of several tables, each times its factor, of the counts of the joined tables."""
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

    A quarter of the runs, rounded down, is left out at each end, as `scipy.stats.trim_mean(scores, 0.25, axis=None)`.
    """
    num_cut = strata.scores.size // 4
    return _trimmed(strata, num_cut)


def _run_median(strata: Strata) -> Statistic:
    return _trimmed(strata, (strata.scores.size - 1) // 2)


def _trimmed(strata: Strata, num_cut: int) -> Statistic:
    """Return the mean without the lowest and the highest `num_cut` runs.

    How often a run counts follows from how many are drawn up to it, in the order of scores: nothing is sorted anew. A
    run that is cut has weight 0, so that the rounding of a diverged one is not in the mean either.
    """
    order = np.argsort(strata.scores, kind="stable")
    scores = strata.scores[order]
    num_kept = scores.size - 2 * num_cut

    def statistic(counts: Counts) -> Floats:
        drawn = np.cumsum(counts.take(order, axis=1), axis=1)
        drawn -= num_cut
        np.clip(drawn, 0, num_kept, out=drawn)
        means: Floats = (np.diff(drawn) @ scores[1:] + drawn[:, 0] * scores[0]) / num_kept
        return means

    return statistic


def _optimality_gap(strata: Strata, gamma: float = 1.0) -> Statistic:
    """Agarwal et al. (2021), section 4.3: gamma less the mean of min(score, gamma); lower is better."""
    capped = np.minimum(strata.scores, gamma)
    return lambda counts: gamma - strata.task_means(counts, capped).mean(axis=1)


_MAKERS: dict[str, Callable[[Strata], Statistic]] = {
    "mean": _mean,
    "median": _median,
    "iqm": _iqm,
    "optimality_gap": _optimality_gap,
    "run_median": _run_median,
}
