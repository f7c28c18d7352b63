"""Hyperparameters: selection of the best config, configs statistically indistinguishable from it, and sensitivity.

The best of many configs appears better than it is, because selection favors luck: with 50 equal configs of 5 seeds
each, by about one standard deviation of a run. Report results from seeds that were not used for the selection.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.aggregates import Aggregate, statistic_of
from trieye.results.bootstrap import RESAMPLES, Floats, Strata, draws_of
from trieye.results.statistics import Estimate, estimate_of

Scores = Sequence[ArrayLike] | NDArray[np.float64]
"""For each config `[seed, task]`, or `[seed]` for one task; NaN where a score is missing."""

Mode = Literal["max", "min"]
"""Whether higher or lower scores are better; see `figure_mode` for their aggregates."""

_SAME = 1e-9
"""Relative tolerance for equal figures, whose sums are rounded differently."""


def figure_mode(stat: Aggregate, mode: Mode) -> Mode:
    """Return whether higher or lower aggregates are better: an optimality gap is a loss, whatever the scores are."""
    return "min" if stat == "optimality_gap" else mode


@dataclass(frozen=True, slots=True)
class Selection:
    """The best config, and the confidence in this choice.

    Attributes:
        best: Index of the best config; the first of equal configs.
        estimates: The aggregate of each config.
        p_best: float64 `[config]`, fraction of resamples where the config is the best; ties share it.
        p_as_good: float64 `[config]`, fraction of resamples where the config is at least as good as `best`.
        not_worse: Indices of the configs indistinguishable from the best config, including it: `p_as_good` is at least
            `1 - confidence`, or either config has a task with a single run, whose spread is unknown.
        ranked: Indices of all configs, best first; configs without an aggregate are last.
    """

    best: int
    estimates: tuple[Estimate, ...]
    p_best: Floats
    p_as_good: Floats
    not_worse: tuple[int, ...]
    ranked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """Figures for one value of a hyperparameter.

    Attributes:
        value: The value.
        best: Aggregate of the best config with the value; its interval ignores the selection.
        best_config: Index of that config; None if no config has an aggregate.
        mean: Mean of the aggregates of all configs with the value; NaN if any is missing.
        configs: Indices of these configs.
    """

    value: Any
    best: Estimate
    best_config: int | None
    mean: Estimate
    configs: tuple[int, ...]


def select(
    scores: Scores,
    stat: Aggregate = "iqm",
    *,
    mode: Mode = "max",
    diverged: Sequence[int] | None = None,
    gamma: float = 1.0,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Selection:
    """Select the best config by an aggregate of its runs, and the configs indistinguishable from it.

    A config counts as indistinguishable by pairwise comparison with the best config, not by how often it is the best of
    all: each of 50 equal configs is best in 2 % of resamples, but none can be excluded.

    Args:
        scores: Scores of each config; see `Scores`.
        stat: Name of the aggregate.
        mode: Whether higher or lower scores are better.
        diverged: Number of diverged runs of each config, whose scores are missing; fewer diverged runs rank first,
            regardless of scores. None: no run diverged.
        gamma: Target score of the optimality gap.
        confidence: Confidence level of the intervals; `not_worse` requires a `p_as_good` of `1 - confidence`.
        resamples: Number of bootstrap resamples; each config is resampled independently.
        seed: Seed of the resamples.

    Raises:
        ConfigurationError: No config has a run for each task, the mode is unknown, or `aggregate` raises it.
    """
    tables, mode = _tables(scores, mode), figure_mode(stat, mode)
    figure = partial(estimate_of, stat=stat, gamma=gamma, confidence=confidence, resamples=resamples, seed=seed)
    estimates = tuple(figure([(1.0, table)]) for table in tables)
    penalties = [0] * len(tables) if diverged is None else list(diverged)
    ranked_rows = _measured_first(estimates, penalties, mode)
    best_row = ranked_rows[0]
    if np.isnan(estimates[best_row].value):
        note = f" ({sum(penalties)} runs diverged)" if any(penalties) else ""
        raise ConfigurationError(f"cannot select a config: none of {len(tables)} configs has a run for each task{note}")
    draws = np.full((len(tables), resamples), -np.inf)
    rng = np.random.default_rng(seed)
    compared = [table.is_complete and penalties[row] == penalties[best_row] for row, table in enumerate(tables)]
    for row, table in enumerate(tables):
        if compared[row]:
            draws[row] = draws_of(table, statistic_of(table, stat, gamma), resamples=resamples, rng=rng)
            draws[row] *= 1 if mode == "max" else -1
    is_best = _at_least(draws, draws.max(axis=0))
    p_as_good = _at_least(draws, draws[best_row]).mean(axis=1)
    have_spread = [table.has_spread and tables[best_row].has_spread for table in tables]
    unsure = [is_compared and not spread for is_compared, spread in zip(compared, have_spread, strict=True)]
    not_worse = np.flatnonzero((p_as_good >= 1 - confidence - _SAME) | unsure)
    p_best = (is_best / is_best.sum(axis=0)).mean(axis=1)
    return Selection(best_row, estimates, p_best, p_as_good, tuple(map(int, not_worse)), tuple(ranked_rows))


def sensitivity(
    scores: Scores,
    params: Sequence[Mapping[str, Any]],
    name: str,
    stat: Aggregate = "iqm",
    *,
    mode: Mode = "max",
    diverged: Sequence[int] | None = None,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
) -> tuple[Setting, ...]:
    """Return the figures for each value of a hyperparameter, with the others at their best and on average.

    Patterson, Neumann, White and White, Empirical Design in Reinforcement Learning (JMLR 2024): the curve with other
    parameters at their best shows how far tuning them compensates; the mean shows the cost of not tuning them.

    Args:
        scores: Scores of each config; see `Scores`.
        params: The parameters of each config by name.
        name: The parameter; configs without it are skipped.
        stat: Aggregate of the runs of a config.
        mode: Whether higher or lower scores are better.
        diverged: Number of diverged runs of each config; see `select`.
        confidence: Confidence level of the intervals.
        resamples: Number of bootstrap resamples.

    Returns:
        One item per value, in ascending order if all are numbers, else in order of appearance.

    Raises:
        ConfigurationError: No config has the parameter, or `select` raises it.
    """
    tables, mode = _tables(scores, mode), figure_mode(stat, mode)
    if len(params) != len(tables):
        raise ConfigurationError(f"there are scores of {len(tables)} configs, but parameters of {len(params)}")
    figure = partial(estimate_of, stat=stat, confidence=confidence, resamples=resamples, seed=0)
    settings = []
    for value, configs in _by_value(params, name):
        estimates = [figure([(1.0, tables[config])]) for config in configs]
        mean = figure([(1 / len(configs), tables[config]) for config in configs])
        penalties = [0 if diverged is None else diverged[config] for config in configs]
        index = _measured_first(estimates, penalties, mode)[0]
        best, best_config = estimates[index], None if np.isnan(estimates[index].value) else configs[index]
        settings.append(Setting(value, best, best_config, mean, tuple(configs)))
    return tuple(settings)


def _tables(scores: Scores, mode: Mode) -> list[Strata]:
    if mode not in {"max", "min"}:
        raise ConfigurationError(f"mode={mode!r} is unknown; allowed: 'max', 'min'")
    if not len(scores):
        raise ConfigurationError("scores are empty; expected [seed, task], or [seed], for each of one or more configs")
    return [Strata.of(runs, f"scores of config {config}") for config, runs in enumerate(scores)]


def ranked(estimates: Sequence[Estimate], penalties: Sequence[int], mode: Mode) -> list[int]:
    """Return all rows, best first: by penalty, then by figure; rows without a figure are the last of their penalty."""
    sign = -1 if mode == "max" else 1
    losses = [np.inf if np.isnan(estimate.value) else sign * estimate.value for estimate in estimates]
    return sorted(range(len(estimates)), key=lambda row: (penalties[row], losses[row]))


def _measured_first(estimates: Sequence[Estimate], penalties: Sequence[int], mode: Mode) -> list[int]:
    return sorted(ranked(estimates, penalties, mode), key=lambda row: bool(np.isnan(estimates[row].value)))


def _at_least(draws: Floats, thresholds: Floats) -> Any:
    return draws >= thresholds - _SAME * np.abs(thresholds)


def _by_value(params: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Any, list[int]]]:
    groups: dict[Any, tuple[Any, list[int]]] = {}
    for config, values in enumerate(params):
        if name in values:
            value = values[name]
            key = value if _is_number(value) else repr(value)  # True must not equal 1, and lists are not hashable
            groups.setdefault(key, (value, []))[1].append(config)
    if not groups:
        from trieye.config.base import did_you_mean  # pydantic: 100 ms

        names = sorted({key for values in params for key in values})
        raise ConfigurationError(
            f"no config has the parameter {name!r}{did_you_mean(name, names)} (choose from: {', '.join(names)})"
        )
    by_value = list(groups.values())
    return sorted(by_value, key=lambda group: group[0]) if all(_is_number(value) for value, _ in by_value) else by_value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
