# ruff: noqa: B027  # the empty methods of Sampler are those that a sampler may leave out
"""Sampler: base class of samplers, which choose the rows that a replay buffer draws; and UniformSampler."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, TrieyeError

Ids = NDArray[np.int64]

_PROPOSAL_ATTEMPTS, _DRAW_ATTEMPTS = 8, 100


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class SampledIds:
    """The row ids that a sampler chose; the rows themselves are not copied yet.

    It is small and can be pickled, so that one process can draw and another copy the rows.

    Attributes:
        ids: int64 `[n]`, or `[n, length]` for sequences; -1 marks a padding step of a sequence.
        weights: float32 `[n]`, importance weights; all 1 without priorities.
        info: Statistics of the draw, as plain numbers.
        mask: bool `[n, length]`, False where a sequence is padded; None if padding is impossible.
        scale: The largest weight before normalization, so that two draws can be merged.
    """

    ids: Ids
    weights: NDArray[np.float32]
    info: Mapping[str, float] = field(default_factory=dict)
    mask: NDArray[np.bool_] | None = None
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.ids)


class Sampler(ABC):
    """Chooses the rows to draw; it handles ids and never accesses the rows.

    Ids count all rows over the lifetime of the buffer. Not thread-safe.

    Attributes:
        version: Version of the learner's model.
    """

    version = 0

    def added(self, first_id: int, count: int) -> None:
        """Register new rows `[first_id, first_id + count)`, which overwrite the rows whose ids are lower by `capacity`.

        Called for every row in id order, after its `EpisodeLinks` were added. This is on the hot path: it is not called
        at all for samplers that do not override it.
        """

    def forgot(self, low_id: int) -> None:
        """Register that rows below `low_id` were removed other than by being overwritten, as by `clear`."""

    @abstractmethod
    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        """Draw `n` times from the rows `[low, high)`, which must be all rows in the buffer.

        The rows may be sorted, so a subset of a draw is not a valid draw. One batch may take several draws and discard
        some of their rows; `handed_out` counts what must be counted once per batch.

        Raises:
            ConfigurationError: No row can be drawn.
        """

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Register that rows `[n]`, just drawn, are not returned to the user; for sequences, their first rows.

        Args:
            ids: The rows.
            for_good: The rows can never be returned and need not be drawn again.
        """

    def handed_out(self, draw: SampledIds) -> None:
        """Register the final draw of a batch, and add statistics of its rows to `draw.info`."""

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set the priorities, float `[n]`, of rows in the buffer; the last of equal ids wins."""

    def set_version(self, version: int) -> None:
        """Set the version of the learner's model, at least the previous one."""
        self.version = version

    def set_row_versions(self, ids: Ids, versions: Ids) -> None:
        """Set versions of rows `[n]`, just added, that differ from the current one."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for an exact resume, as plain data and copied arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; the next draw equals the next draw of the saved sampler."""


class RowSampler(Sampler):
    """A sampler of single rows that other samplers build on: they propose rows, reject some, and weight the rest."""

    @abstractmethod
    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:
        """Draw `n` ids from `[low, high)` independently, so that any subset of them is a valid draw."""

    @abstractmethod
    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of `ids`, at least one id, independently, with their chances; takes time proportional to `len(ids)`.

        Raises:
            ConfigurationError: None of the ids can be drawn.
        """

    @abstractmethod
    def judge(self, ids: Ids, low: int, high: int) -> SampledIds:
        """Return a draw of ids from `[low, high)` with their weights."""


def spliced(draw: SampledIds, replaced_rows: NDArray[Any], fresh_draw: SampledIds) -> SampledIds:
    """Return a copy of a draw with some rows replaced by another draw, rescaled to a largest weight of 1.

    Args:
        draw: The draw, which is not modified.
        replaced_rows: bool `[n]` mask, or int64 `[m]` indices, of the rows or sequences to replace.
        fresh_draw: A draw of `m` rows or sequences from the same sampler.
    """
    ids, mask = draw.ids.copy(), draw.mask
    ids[replaced_rows] = fresh_draw.ids
    # each draw was normalized by its own largest weight
    importance_weights = draw.weights * np.float64(draw.scale)
    importance_weights[replaced_rows] = fresh_draw.weights * np.float64(fresh_draw.scale)
    if mask is not None and fresh_draw.mask is not None:
        mask = mask.copy()
        mask[replaced_rows] = fresh_draw.mask
    scale = float(importance_weights.max())
    return SampledIds(ids, (importance_weights / scale).astype(np.float32), draw.info, mask, scale)


def below(draw: SampledIds, low: int) -> NDArray[np.bool_]:
    """Return bool `[n]`, True for rows or sequences with an id below `low`."""
    ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, low)
    return ids < low if ids.ndim == 1 else ids.min(axis=1) < low


def paired(
    ids: ArrayLike, priorities: ArrayLike, *, label: str = "update_priorities"
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return ids `[n]` and their priorities `[n]` as float64; `label` names the caller in messages.

    Raises:
        ConfigurationError: The lengths differ, or the values cannot be converted.
    """
    try:
        row_ids, values = np.asarray(ids), np.asarray(priorities, np.float64)
    except (RuntimeError, TypeError, ValueError) as error:  # of torch: a gradient, a GPU, a dtype unknown to NumPy
        raise ConfigurationError(
            f"{label}: pass numbers, of a tensor `priorities.detach().float().cpu()`: {error}"
        ) from error
    if row_ids.shape != values.shape or row_ids.ndim != 1:
        raise ConfigurationError(f"{label}: {row_ids.shape} ids and {values.shape} priorities; both must be [n]")
    return row_ids, values


def checked_priorities(
    ids: ArrayLike, priorities: ArrayLike, total: int = 1 << 63, *, label: str = "update_priorities"
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return ids `[n]` below `total` and their priorities `[n]`; `label` names the caller in messages.

    Raises:
        ConfigurationError: The lengths differ, an id was never returned, or a priority is negative or not finite.
    """
    row_ids, values = paired(ids, priorities, label=label)
    if values.size and not (values.min() >= 0 and values.max() < np.inf):  # NaN is neither
        raise ConfigurationError(f"{label}: priorities must be finite and at least 0")
    if row_ids.size and (row_ids.dtype.kind not in "iu" or row_ids.min() < 0 or row_ids.max() >= total):
        raise ConfigurationError(f"{label}: ids must be integers in [0, {total}), as the buffer returned")
    return row_ids.astype(np.int64, copy=False), values


@lru_cache(maxsize=64)
def ones(n: int) -> NDArray[np.float32]:
    """Return read-only weights, float32 `[n]`, all 1."""
    weights = np.ones(n, np.float32)
    weights.flags.writeable = False
    return weights


def with_history(
    draw: SampledIds,
    lacks: Callable[[Ids], NDArray[np.bool_]],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    low: int,
    high: int,
) -> SampledIds:
    """Replace the drawn rows or sequences whose frame stacks begin with overwritten frames.

    Args:
        draw: A draw of the sampler from the rows `[low, high)`.
        lacks: Returns for rows `[n]` whether one of their earlier frames was overwritten.
        sampler: Draws the replacements.
        rng: Random generator.
        low: Id of the oldest row.
        high: Id after the newest row.

    Raises:
        ConfigurationError: No row has all its frames.
        ReplayTimeoutError: The bounds of the rows that have them permit too few draws; nothing was drawn.
    """
    for attempt in range(_DRAW_ATTEMPTS):
        first_ids = draw.ids.reshape(len(draw), -1)[:, 0]
        is_lacking = lacks(first_ids)
        count = int(np.count_nonzero(is_lacking))
        if not count:
            return draw
        if isinstance(sampler, RowSampler) and attempt >= _PROPOSAL_ATTEMPTS:
            all_ids = np.arange(low, high)
            whole_ids = all_ids[~lacks(all_ids)]
            if not whole_ids.size:
                break
            fresh_draw = sampler.judge(sampler.pick(count, whole_ids, rng), low, high)
        elif isinstance(sampler, RowSampler):
            fresh_draw = sampler.judge(sampler.propose(count, low, high, rng), low, high)
        else:
            sampler.discarded(first_ids[is_lacking], for_good=True)
            try:
                fresh_draw = sampler.draw(count, low, high, rng)
            except TrieyeError:
                sampler.discarded(first_ids[~is_lacking], for_good=False)
                raise
        draw = spliced(draw, is_lacking, fresh_draw)
    raise ConfigurationError("no row of the replay buffer has all frames of its stack; raise replay.capacity")


class UniformSampler(RowSampler):
    """Draws rows independently, with replacement; it has no state, and ignores priorities."""

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        """Draw `n` rows from `[low, high)`."""
        return self.judge(rng.integers(low, high, n), low, high)

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:
        """Draw `n` ids from `[low, high)`."""
        return rng.integers(low, high, n)

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of the ids."""
        return ids[rng.integers(0, len(ids), n)]

    def judge(self, ids: Ids, low: int, high: int) -> SampledIds:
        """Return a draw of the ids with weights of 1."""
        return SampledIds(ids, ones(len(ids)).copy(), {"size": high - low})  # users and torch need writable weights
