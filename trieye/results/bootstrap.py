"""Bootstrap: runs drawn anew within each task, many resamples at once, and the interval that they give."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError

Floats = NDArray[np.float64]
Counts = NDArray[np.intp]
Statistic = Callable[[Counts], Floats]
"""From counts `[resample, run]`, how often each run was drawn, to values `[resample, ...]`."""

RESAMPLES = 10_000
"""Resamples of a figure of runs. Wherever the same runs are shown, they have the same interval."""

_CHUNK = 1 << 14
"""Draws at once: 128 KiB for each array, so that those of one step stay in the cache; 1 << 17 takes twice as long."""


@dataclass(frozen=True)
class Strata:
    """The runs of a table of scores, a stratum for each task; in which order the seeds came is forgotten.

    Attributes:
        scores: float64 `[run]`, task after task, ascending within each.
        sizes: int64 `[task]`, how many runs each task has.
        num_missing: How many seeds have no score, all tasks together.
    """

    scores: Floats
    sizes: NDArray[np.int64]
    num_missing: int

    @classmethod
    def of(cls, scores: ArrayLike, name: str = "scores") -> Self:
        """Take a table apart.

        Args:
            scores: `[seed, task]`, or `[seed]` of one task; NaN where a seed is missing for a task.
            name: What an error calls them.

        Raises:
            ConfigurationError: They have another shape, have no task, or one of them is infinite.
        """
        table = finite(scores, name)
        table = table[:, np.newaxis] if table.ndim == 1 else table
        if table.ndim != 2 or not table.shape[1]:  # noqa: PLR2004
            raise ConfigurationError(
                f"{name} have shape {np.shape(scores)}; allowed: [seed, task], or [seed] of one task"
            )
        columns = np.sort(table.T, axis=1)  # NaN come last
        present = ~np.isnan(columns)
        return cls(columns[present], present.sum(axis=1), int((~present).sum()))

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """Return the strata of several tables one after another, which are resampled independently then."""
        scores, sizes = (np.concatenate(arrays) for arrays in zip(*((t.scores, t.sizes) for t in tables), strict=True))
        return cls(scores, sizes, sum(table.num_missing for table in tables))

    @property
    def is_complete(self) -> bool:
        """Every task has a run; otherwise the table has no value."""
        return bool(self.sizes.all())

    @property
    def has_spread(self) -> bool:
        """Every task has two runs; otherwise the spread of one is unknown, and an interval would be too narrow."""
        return bool((self.sizes > 1).all())

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where the runs of each task begin, `[task]`."""
        starts: NDArray[np.int64] = np.cumsum(self.sizes) - self.sizes
        return starts

    def task_means(self, counts: Counts, scores: Floats | None = None) -> Floats:
        """Return the mean of each task in each resample, `[resample, task]`; of other scores `[run]` if given."""
        weighted = counts * (self.scores if scores is None else scores)
        means: Floats = np.add.reduceat(weighted, self.starts, axis=1) / self.sizes
        return means


def finite(values: ArrayLike, name: str) -> Floats:
    """Return values as float64, in which NaN stands for what is missing.

    Raises:
        ConfigurationError: One is infinite, or is no number.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} are no array of numbers: {error}") from error
    if np.isinf(array).any():
        place = [int(index) for index in np.argwhere(np.isinf(array))[0]]
        raise ConfigurationError(f"{name}{place} is {array[tuple(place)]}; put NaN where a run has no finite score")
    return array


def resampled(sizes: NDArray[np.int64], *, resamples: int, rng: np.random.Generator) -> Iterator[Counts]:
    """Yield how often each run was drawn, `[resample, run]`, some resamples at a time: runs with replacement, by task.

    Stratified bootstrap: Agarwal et al., Deep RL at the Edge of the Statistical Precipice (2021), section 4.1. Each
    task gives as many runs as it has.

    Args:
        sizes: `[task]`, how many runs each task has.
        resamples: How many there are in all.
        rng: Draws the runs; its state after all of them does not depend on how many come at a time.
    """
    num_runs = int(sizes.sum())
    num_rows = max(1, _CHUNK // max(1, num_runs))
    size_of_run = np.repeat(sizes, sizes).astype(np.float32)
    first_place = np.repeat(np.cumsum(sizes) - sizes, sizes) + num_runs * np.arange(num_rows)[:, np.newaxis]
    for done in range(0, resamples, num_rows):
        shape = min(num_rows, resamples - done), num_runs
        # 24 random bits for each draw: below 2**24 runs, a product never rounds up to the size itself
        draws = rng.random(shape, dtype=np.float32)
        draws *= size_of_run
        places = draws.astype(np.intp)
        places += first_place[: shape[0]]
        yield np.bincount(places.ravel(), minlength=places.size).reshape(shape)


def interval_of(
    runs: Strata, statistic: Statistic, *, confidence: float, resamples: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Return the value of a statistic and both ends of its percentile interval.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), equation 13.5.

    Returns:
        The value, the lower and the upper end, each `[...]`; or NaN without shape: all three if a task has no run, both
        ends if a task has fewer than two.

    Raises:
        ConfigurationError: The confidence is not between 0 and 1, or there are no resamples.
    """
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence={confidence!r} is not between 0 and 1, such as 0.95")
    if resamples < 1:
        raise ConfigurationError(f"resamples={resamples!r} is less than 1; 2000 and more give steady intervals")
    unknown = np.array(np.nan)
    if not runs.is_complete:
        return unknown, unknown, unknown
    value = value_of(runs, statistic)
    if not runs.has_spread:
        return value, unknown, unknown
    draws = draws_of(runs, statistic, resamples=resamples, rng=np.random.default_rng(seed))
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return value, low, high


def value_of(runs: Strata, statistic: Statistic) -> Floats:
    """Return the statistic of the runs themselves: of the resample that has each of them once."""
    value: Floats = statistic(np.ones((1, runs.scores.size), dtype=np.intp))[0]
    return value


def draws_of(runs: Strata, statistic: Statistic, *, resamples: int, rng: np.random.Generator) -> Floats:
    """Return the statistic of each resample, float64 `[resample, ...]`."""
    return np.concatenate([statistic(counts) for counts in resampled(runs.sizes, resamples=resamples, rng=rng)])
