"""Stratified bootstrap: resampling of runs within each task, and percentile intervals."""

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
"""Maps counts `[resample, run]`, how often each run was drawn, to values `[resample, ...]`."""

RESAMPLES = 10_000
"""Number of resamples. The same for all tables and plots, so that the same runs always have the same interval."""

_CHUNK = 1 << 14
"""Draws per chunk: arrays of 128 KiB, which stay in the cache; with 1 << 17 a bootstrap takes twice as long."""


@dataclass(frozen=True)
class Strata:
    """Scores of runs, stratified by task; the order of the seeds is not retained.

    Attributes:
        scores: float64 `[run]`, grouped by task, ascending within each task.
        sizes: int64 `[task]`, number of runs of each task.
        num_missing: Number of (seed, task) pairs without a score.
    """

    scores: Floats
    sizes: NDArray[np.int64]
    num_missing: int

    @classmethod
    def of(cls, scores: ArrayLike, name: str = "scores") -> Self:
        """Stratify a table of scores.

        Args:
            scores: `[seed, task]`, or `[seed]` for one task; NaN where a seed is missing for a task.
            name: Name of the scores in errors.

        Raises:
            ConfigurationError: The scores have another shape, no task, or an infinite value.
        """
        table = finite(scores, name)
        table = table[:, np.newaxis] if table.ndim == 1 else table
        if table.ndim != 2 or not table.shape[1]:  # noqa: PLR2004
            raise ConfigurationError(
                f"{name} have shape {np.shape(scores)}; allowed: [seed, task], or [seed] for one task"
            )
        columns = np.sort(table.T, axis=1)  # NaN come last
        is_present = ~np.isnan(columns)
        return cls(columns[is_present], is_present.sum(axis=1), int((~is_present).sum()))

    @classmethod
    def joined(cls, tables: Sequence[Self]) -> Self:
        """Concatenate the strata of several tables, so that they are resampled independently."""
        scores, sizes = (np.concatenate(arrays) for arrays in zip(*((t.scores, t.sizes) for t in tables), strict=True))
        return cls(scores, sizes, sum(table.num_missing for table in tables))

    @property
    def order(self) -> tuple[list[float], list[int]]:
        """Sort key, so that a comparison of two tables draws the same resamples in both directions."""
        return self.scores.tolist(), self.sizes.tolist()

    @property
    def is_complete(self) -> bool:
        """Whether every task has a run; otherwise aggregates are NaN."""
        return bool(self.sizes.all())

    @property
    def has_spread(self) -> bool:
        """Whether every task has two runs; otherwise a spread is unknown, and intervals would be too narrow."""
        return bool((self.sizes > 1).all())

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of the first run of each task, `[task]`."""
        starts: NDArray[np.int64] = np.cumsum(self.sizes) - self.sizes
        return starts

    def task_means(self, counts: Counts, scores: Floats | None = None) -> Floats:
        """Return the mean of each task in each resample, `[resample, task]`; `scores` `[run]` replaces the scores."""
        weighted_scores = counts * (self.scores if scores is None else scores)
        means: Floats = np.add.reduceat(weighted_scores, self.starts, axis=1) / self.sizes
        return means


def finite(values: ArrayLike, name: str) -> Floats:
    """Convert values to float64; NaN marks missing values.

    Raises:
        ConfigurationError: A value is infinite or no number.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name}: expected an array of numbers: {error}") from error
    if np.isinf(array).any():
        index = [int(number) for number in np.argwhere(np.isinf(array))[0]]
        raise ConfigurationError(f"{name}{index} is {array[tuple(index)]}; use NaN where a run has no finite score")
    return array


def resampled(sizes: NDArray[np.int64], *, resamples: int, rng: np.random.Generator) -> Iterator[Counts]:
    """Draw runs with replacement within each task; yield chunks of counts `[resample, run]`.

    Stratified bootstrap: Agarwal et al., Deep RL at the Edge of the Statistical Precipice (2021), section 4.1. Each
    resample has as many runs of each task as the task has.

    Args:
        sizes: `[task]`, number of runs of each task.
        resamples: Total number of resamples.
        rng: Draws the runs; its final state does not depend on the chunk size.
    """
    num_runs = int(sizes.sum())
    num_rows = max(1, _CHUNK // max(1, num_runs))
    size_of_run = np.repeat(sizes, sizes).astype(np.float32)
    first_index = np.repeat(np.cumsum(sizes) - sizes, sizes) + num_runs * np.arange(num_rows)[:, np.newaxis]
    for done in range(0, resamples, num_rows):
        shape = min(num_rows, resamples - done), num_runs
        # 24 random bits for each draw: below 2**24 runs, a product never rounds up to the size itself
        draws = rng.random(shape, dtype=np.float32)
        draws *= size_of_run
        indices = draws.astype(np.intp)
        indices += first_index[: shape[0]]
        yield np.bincount(indices.ravel(), minlength=indices.size).reshape(shape)


@np.errstate(over="ignore", invalid="ignore")  # scores near the largest number have infinite sums
def interval_of(
    runs: Strata, statistic: Statistic, *, confidence: float, resamples: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    """Return a statistic and the bounds of its percentile interval.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), equation 13.5.

    Returns:
        The value, the lower and the upper bound, each `[...]`; or scalar NaN: all three if a task has no run, both
        bounds if a task has a single run.

    Raises:
        ConfigurationError: The confidence is not between 0 and 1, or `resamples` is below 1.
    """
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence={confidence!r} is not between 0 and 1, such as 0.95")
    if resamples < 1:
        raise ConfigurationError(f"resamples={resamples!r} is less than 1; use 2000 or more for stable intervals")
    nan = np.array(np.nan)
    if not runs.is_complete:
        return nan, nan, nan
    value: Floats = statistic(np.ones((1, runs.scores.size), dtype=np.intp))[0]  # each run counts once
    if not runs.has_spread:
        return value, nan, nan
    draws = draws_of(runs, statistic, resamples=resamples, rng=np.random.default_rng(seed))
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return value, low, high


def draws_of(runs: Strata, statistic: Statistic, *, resamples: int, rng: np.random.Generator) -> Floats:
    """Return the statistic of each resample, float64 `[resample, ...]`."""
    return np.concatenate([statistic(counts) for counts in resampled(runs.sizes, resamples=resamples, rng=rng)])
