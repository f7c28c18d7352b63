"""Hyperparameters: which config is best, which ones cannot be told from it, and how much one parameter matters.

The best of many
configs looks better than it is, since its luck is what it was chosen for: of 50 equal ones with 5 seeds each, by about
one standard deviation of a run. Report it with seeds that were not used to choose it.
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
"""For each config `[seed, task]`, or `[seed]` of one task; NaN where one is missing."""

Mode = Literal["max", "min"]
"""Which scores are better; of an optimality gap it is `min`."""

_SAME = 1e-9
"""Relative difference up to which two figures are equal: their sums are rounded differently."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The best config, and how sure that is.

    Attributes:
        best: Its index; the first one of equals.
        estimates: The figure of each config.
        p_best: float64 `[config]`, in which fraction of resamples each is the best; equals share it.
        p_as_good: float64 `[config]`, in which fraction of resamples each is at least as good as `best`.
        not_worse: Indices of the configs that cannot be told from the best one, which is among them: `p_as_good` is at
            least `1 - confidence`, or one of both has a task with a single run, whose spread is unknown.
        ranked: Indices of all configs, the best one first; those without a figure are last.
    """

    best: int
    estimates: tuple[Estimate, ...]
    p_best: Floats
    p_as_good: Floats
    not_worse: tuple[int, ...]
    ranked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What came of one value of a parameter.

    Attributes:
        value: The value.
        best: The figure of the best config that has the value, with its interval as if it had not been chosen.
        best_config: The index of that config; None if none has a figure.
        mean: The mean of the figures of all configs that have the value; NaN if one of them has none.
        configs: Their indices.
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
    """Return the best config by an aggregate of its runs, and those that cannot be told from it.

    A config belongs to these by its own comparison with the best one, not by how often it is best of all: of 50 equal
    ones each is best in 2 % of resamples, and none could be excluded all the same.

    Args:
        scores: Of each config; see `Scores`.
        stat: Which figure.
        mode: Which scores are better.
        diverged: How many runs of each config diverged, whose scores are missing; configs with fewer of them rank
            first, regardless of their scores. None: no run did.
        gamma: The score that is enough, of the optimality gap.
        confidence: Of the intervals; `1 - confidence` is the least `p_as_good` of a config that is not worse.
        resamples: How many the intervals and probabilities are made of; each config is resampled independently.
        seed: Of the resamples.

    Raises:
        ConfigurationError: No config has a run for each task, the mode is unknown, or what `aggregate` raises.
    """
    tables = _tables(scores, mode)
    figure = partial(estimate_of, stat=stat, gamma=gamma, confidence=confidence, resamples=resamples, seed=seed)
    estimates = tuple(figure([(1.0, table)]) for table in tables)
    penalties = [0] * len(tables) if diverged is None else list(diverged)
    best = _best(estimates, penalties, mode)
    if best is None:
        lost = f" ({sum(penalties)} runs diverged)" if any(penalties) else ""
        raise ConfigurationError(
            f"none of {len(tables)} configs has a run for each task{lost}; there is nothing to select from"
        )
    draws = np.full((len(tables), resamples), -np.inf)
    rng = np.random.default_rng(seed)
    compared = [table.is_complete and penalties[row] == penalties[best] for row, table in enumerate(tables)]
    for row, table in enumerate(tables):
        if compared[row]:
            draws[row] = draws_of(table, statistic_of(table, stat, gamma), resamples=resamples, rng=rng)
            draws[row] *= 1 if mode == "max" else -1
    is_best = _at_least(draws, draws.max(axis=0))
    p_as_good = _at_least(draws, draws[best]).mean(axis=1)
    have_spread = [table.has_spread and tables[best].has_spread for table in tables]
    unsure = [is_compared and not spread for is_compared, spread in zip(compared, have_spread, strict=True)]
    not_worse = np.flatnonzero((p_as_good >= 1 - confidence - _SAME) | unsure)
    p_best = (is_best / is_best.sum(axis=0)).mean(axis=1)
    sign = 1 if mode == "max" else -1
    known = [place for place, held in enumerate(estimates) if not np.isnan(held.value)]
    ranked = sorted(known, key=lambda place: (penalties[place], -sign * estimates[place].value))
    rest = (place for place in range(len(tables)) if place not in known)
    return Selection(best, estimates, p_best, p_as_good, tuple(map(int, not_worse)), (*ranked, *rest))


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
    """Return what came of each value of a parameter, with the others at their best and on the average.

    Patterson, Neumann, White and White, Empirical Design in Reinforcement Learning (JMLR 2024): a curve of the best
    setting of the other parameters at each value shows what tuning them can make good, the mean what it costs not to.

    Args:
        scores: Of each config; see `Scores`.
        params: The parameters of each config by name.
        name: The parameter; configs that do not have it are left out.
        stat: Which figure of the runs of a config.
        mode: Which scores are better.
        diverged: How many runs of each config diverged; see `select`.
        confidence: Of the intervals.
        resamples: How many the intervals are made of.

    Returns:
        One for each value: in ascending order if all are numbers, else as they first come.

    Raises:
        ConfigurationError: No config has the parameter, or what `select` raises.
    """
    tables = _tables(scores, mode)
    if len(params) != len(tables):
        raise ConfigurationError(f"there are scores of {len(tables)} configs and parameters of {len(params)}")
    figure = partial(estimate_of, stat=stat, confidence=confidence, resamples=resamples, seed=0)
    settings = []
    for value, configs in _by_value(params, name):
        estimates = [figure([(1.0, tables[config])]) for config in configs]
        mean = figure([(1 / len(configs), tables[config]) for config in configs])
        place = _best(estimates, [0 if diverged is None else diverged[config] for config in configs], mode)
        best = estimates[place or 0]
        settings.append(Setting(value, best, None if place is None else configs[place], mean, tuple(configs)))
    return tuple(settings)


def _tables(scores: Scores, mode: Mode) -> list[Strata]:
    if mode not in {"max", "min"}:
        raise ConfigurationError(f"mode={mode!r} is unknown; allowed: 'max', 'min'")
    if not len(scores):
        raise ConfigurationError("scores are of no config; allowed: [seed, task], or [seed], for each of one or more")
    return [Strata.of(runs, f"scores of config {config}") for config, runs in enumerate(scores)]


def _best(estimates: Sequence[Estimate], penalties: Sequence[int], mode: Mode) -> int | None:
    known = [place for place, held in enumerate(estimates) if not np.isnan(held.value)]
    sign = -1 if mode == "max" else 1
    return min(known, key=lambda place: (penalties[place], sign * estimates[place].value), default=None)


def _at_least(draws: Floats, others: Floats) -> Any:
    return draws >= others - _SAME * np.abs(others)


def _by_value(params: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Any, list[int]]]:
    groups: dict[Any, tuple[Any, list[int]]] = {}
    for config, of_config in enumerate(params):
        if name in of_config:
            value = of_config[name]
            key = value if _is_number(value) else repr(value)  # True is no 1, and a list has no hash
            groups.setdefault(key, (value, []))[1].append(config)
    if not groups:
        from trieye.config.base import did_you_mean  # pydantic: 100 ms

        known = sorted({known for of_config in params for known in of_config})
        raise ConfigurationError(
            f"no config has the parameter {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})"
        )
    found = list(groups.values())
    return sorted(found, key=lambda group: group[0]) if all(_is_number(value) for value, _ in found) else found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
