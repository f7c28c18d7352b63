"""Importance of the varying keys of a sweep: how much of the objective's variation each of them explains."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_JOBS = 8
"""Minimum number of jobs with a key; fewer say nothing about it."""
_MOST_GROUPS = 5
_JOBS_PER_GROUP = 4


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of a key.

    Attributes:
        key: The key.
        share: Share of the rank variance of the objective that the key alone explains, 0 to 1; NaN if there are too few
            jobs, or all have the same objective.
        num_jobs: Number of jobs that have the key and an objective.
    """

    key: str
    share: float
    num_jobs: int


def importances(values: Sequence[Mapping[str, Any]], objectives: Sequence[float]) -> list[Importance]:
    """Return the importance of each key with several values, the most important first.

    The share is the effect size of the Kruskal-Wallis test, adjusted for the number of groups (Tomczak and Tomczak
    2014): 0 for a key without effect, and independent of the scale of the objective and of outliers. Numbers with many
    values are grouped by quantiles. Effects of several keys together are not included.

    Args:
        values: Values of each job by key; a job may lack a conditional key. None is a value like others.
        objectives: Objective of each job; jobs with NaN are ignored.
    """
    rows = [
        (row, objective) for row, objective in zip(values, objectives, strict=True) if not math.isnan(float(objective))
    ]
    keys = dict.fromkeys(key for row, _ in rows for key in row)
    shares = []
    for key in keys:
        pairs = [(row[key], objective) for row, objective in rows if key in row]
        column = [value for value, _ in pairs]
        if len(set(map(str, column))) > 1:
            share = _share(_groups(column), _ranks([objective for _, objective in pairs]))
            shares.append(Importance(key, share if len(pairs) >= MIN_JOBS else math.nan, len(pairs)))
    return sorted(shares, key=lambda one: -one.share if not math.isnan(one.share) else math.inf)


def number_of(value: Any) -> float | None:
    """Return a value, possibly as typed in an override, as a number; None for other values."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _groups(column: Sequence[Any]) -> list[Any]:
    """Return the group of each value: the value, or the quantile of a number if there are many numbers."""
    numbers = [number_of(value) for value in column]
    valid_numbers = [number for number in numbers if number is not None]
    groups: Iterator[float] = iter(valid_numbers)
    if len(set(valid_numbers)) > _MOST_GROUPS:
        num = max(2, min(_MOST_GROUPS, len(valid_numbers) // _JOBS_PER_GROUP))
        groups = (min(int((rank - 0.5) * num / len(valid_numbers)), num - 1) for rank in _ranks(valid_numbers))
    return [str(value) if number is None else next(groups) for value, number in zip(column, numbers, strict=True)]


def _ranks(numbers: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal numbers share their mean rank."""
    import numpy as np  # tables without importances need it not

    _, positions, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    mean_ranks = counts.cumsum() - (counts - 1) / 2
    return [float(rank) for rank in mean_ranks[positions]]


def _share(groups: Sequence[Any], ranks: Sequence[float]) -> float:
    num, mean = len(ranks), sum(ranks) / len(ranks)
    total = sum((rank - mean) ** 2 for rank in ranks)
    ranks_by_group: dict[Any, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        ranks_by_group.setdefault(group, []).append(rank)
    if not total or num <= len(ranks_by_group):
        return math.nan
    between = sum(len(sample) * (sum(sample) / len(sample) - mean) ** 2 for sample in ranks_by_group.values())
    return min(max(1 - (1 - between / total) * (num - 1) / (num - len(ranks_by_group)), 0.0), 1.0)
