"""Sampler: the protocol that decides which rows of a replay buffer are drawn, and the plain one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, TrieyeError

Ids = NDArray[np.int64]

_TRIES, _MORE_TRIES = 8, 100
_NONE_WHOLE = "no row of the replay buffer has all frames of its stack; raise replay.capacity"


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class Draw:
    """What a sampler decided: row ids, not yet the rows themselves.

    It is small and can be pickled, so that one process can decide and another one copy the rows.

    Attributes:
        ids: int64 `[n]`, or `[n, length]` for sequences; -1 marks a step that only pads a sequence.
        weights: float32 `[n]`, importance weights; all 1 without priorities.
        info: What the sampler tells about the draw, as plain numbers.
        mask: bool `[n, length]`, False where a sequence is padded; None if nothing can be.
        scale: The largest weight before all were divided by it, so that two draws can become one.
    """

    ids: Ids
    weights: NDArray[np.float32]
    info: Mapping[str, float] = field(default_factory=dict)
    mask: NDArray[np.bool_] | None = None
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.ids)


@runtime_checkable
class Sampler(Protocol):
    """Decides which rows are drawn; it knows ids and never sees the rows.

    Ids count every row over the life of the buffer. A sampler is used by one thread at a time.
    """

    def added(self, first_id: int, count: int) -> None:
        """Take note of new rows `[first_id, first_id + count)`, which overwrite those that are `capacity` older.

        Called for every row in the order of the ids, after its `EpisodeLinks` were added; it is on the hot path.
        """

    def forgot(self, low_id: int) -> None:
        """Take note that rows below `low_id` were removed other than by being overwritten, as by `clear`."""

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> Draw:
        """Draw `n` times from the rows `[low, high)`, which are all that the buffer holds.

        The rows may come sorted, so a part of one draw is no draw. One batch may take several draws, of which a part is
        discarded; what is counted once for each batch, `handed_out` counts.

        Raises:
            ConfigurationError: No row can be drawn.
        """

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Take note that rows `[n]`, just drawn, are not handed out; of sequences, their first rows.

        Args:
            ids: The rows.
            for_good: They never can be, and need not be drawn again.
        """

    def handed_out(self, draw: Draw) -> None:
        """Take note of what a batch is made of in the end, and add to its `info` what follows from its rows."""

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set the priorities, float `[n]`, of rows that are still in the buffer; of equal ids the last one counts."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on exactly here, as plain data and arrays of its own."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; the next draw is the one that would have been made."""


@runtime_checkable
class RowSampler(Sampler, Protocol):
    """A sampler of single rows, on which others build: they propose rows, refuse some, and judge what is left."""

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:
        """Draw `n` ids from `[low, high)`, each independently of the others, so that any part of them is a draw."""

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` ids independently, with the chances they have, from no others than `ids`; it looks at all of them.

        Raises:
            ConfigurationError: None of them can be drawn.
        """

    def judge(self, ids: Ids, low: int, high: int) -> Draw:
        """Return ids that were drawn from `[low, high)` together with their weights."""


def spliced(draw: Draw, where: NDArray[Any], fresh: Draw) -> Draw:
    """Return a draw some of whose rows are replaced by those of another draw; the largest weight is 1 again.

    Args:
        draw: The draw, which is not changed.
        where: bool `[n]`, or int64 `[m]` places, which rows or sequences are replaced.
        fresh: A draw of `m` rows or sequences from the same sampler.
    """
    ids, mask = draw.ids.copy(), draw.mask
    ids[where] = fresh.ids
    # each draw was divided by its own largest weight
    weights = draw.weights * np.float64(draw.scale)
    weights[where] = fresh.weights * np.float64(fresh.scale)
    if mask is not None and fresh.mask is not None:
        mask = mask.copy()
        mask[where] = fresh.mask
    scale = float(weights.max())
    return Draw(ids, (weights / scale).astype(np.float32), draw.info, mask, scale)


def below(draw: Draw, low: int) -> NDArray[np.bool_]:
    """Return bool `[n]`, which rows or sequences have an id below `low`."""
    ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, low)
    found: NDArray[np.bool_] = ids < low if ids.ndim == 1 else ids.min(axis=1) < low
    return found


def paired(ids: ArrayLike, priorities: ArrayLike) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return ids `[n]` and, as float64, their priorities `[n]`.

    Raises:
        ConfigurationError: The lengths differ.
    """
    known, values = np.asarray(ids), np.asarray(priorities, np.float64)
    if known.shape != values.shape or known.ndim != 1:
        raise ConfigurationError(
            f"update_priorities: {known.shape} ids and {values.shape} priorities; both must be [n]"
        )
    return known, values


def checked_priorities(
    ids: ArrayLike, priorities: ArrayLike, total: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return ids `[n]` below `total` and their priorities `[n]`.

    Raises:
        ConfigurationError: The lengths differ, an id was never given out, or a priority is negative or not finite.
    """
    known, values = paired(ids, priorities)
    if values.size and not (values.min() >= 0 and values.max() < np.inf):  # NaN is neither
        raise ConfigurationError("update_priorities: priorities must be finite and at least 0")
    if known.size and (known.dtype.kind not in "iu" or known.min() < 0 or known.max() >= total):
        raise ConfigurationError(f"update_priorities: ids must be whole numbers in [0, {total}), as add() returned")
    return known.astype(np.int64, copy=False), values


@lru_cache(maxsize=64)
def ones(n: int) -> NDArray[np.float32]:
    """Return read-only weights float32 `[n]` that are all 1."""
    weights = np.ones(n, np.float32)
    weights.flags.writeable = False
    return weights


class UniformSampler:
    """Draws rows independently of each other, with replacement; it remembers nothing."""

    def added(self, first_id: int, count: int) -> None:
        """Do nothing: every row is like the others."""

    def forgot(self, low_id: int) -> None:
        """Do nothing: a draw is told which rows there are."""

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> Draw:
        """Draw `n` rows of `[low, high)`."""
        return self.judge(rng.integers(low, high, n), low, high)

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Do nothing: no draw depends on others."""

    def handed_out(self, draw: Draw) -> None:
        """Do nothing, likewise."""

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:
        """Draw `n` ids of `[low, high)`."""
        return rng.integers(low, high, n)

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of the ids."""
        if not len(ids):
            raise ConfigurationError("none of the rows can be drawn")
        return ids[rng.integers(0, len(ids), n)]

    def judge(self, ids: Ids, low: int, high: int) -> Draw:
        """Return the ids with weights that are all 1."""
        return Draw(ids, ones(len(ids)).copy(), {"size": high - low})  # a batch is the user's, and torch wants to write

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Do nothing, so that an algorithm with priorities runs unchanged."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the generator is the buffer's."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


def with_history(
    draw: Draw,
    lacks: Callable[[Ids], NDArray[np.bool_]],
    sampler: Sampler,
    rng: np.random.Generator,
    *,
    low: int,
    high: int,
) -> Draw:
    """Replace those of the drawn rows, or sequences, whose stacks begin with frames that were overwritten by now.

    Args:
        draw: What the sampler drew from the rows `[low, high)`.
        lacks: Tells for rows `[n]` whether one of their earlier frames was overwritten.
        sampler: Draws others.
        rng: Decides.
        low: Id of the oldest row.
        high: Id after the newest one.

    Raises:
        ConfigurationError: No row has all its frames.
        ReplayTimeoutError: Those that have may not be drawn so often any more; nothing was drawn.
    """
    lacking = lacks(draw.ids.reshape(len(draw), -1)[:, 0])
    if not lacking.any():
        return draw
    if not isinstance(sampler, RowSampler):
        for _ in range(_MORE_TRIES):
            draw = _redrawn(draw, lacking, sampler, rng, low=low, high=high)
            lacking = lacks(draw.ids.reshape(len(draw), -1)[:, 0])
            if not lacking.any():
                return draw
        raise ConfigurationError(_NONE_WHOLE)
    ids = draw.ids.copy()
    for _ in range(_TRIES):
        ids[lacking] = sampler.propose(int(np.count_nonzero(lacking)), low, high, rng)
        lacking = lacks(ids)
        if not lacking.any():
            return sampler.judge(ids, low, high)
    every = np.arange(low, high)
    whole = every[~lacks(every)]
    if not whole.size:
        raise ConfigurationError(_NONE_WHOLE)
    ids[lacking] = sampler.pick(int(np.count_nonzero(lacking)), whole, rng)
    return sampler.judge(ids, low, high)


def _redrawn(
    draw: Draw, where: NDArray[np.bool_], sampler: Sampler, rng: np.random.Generator, *, low: int, high: int
) -> Draw:
    """Replace rows, bool `[n]`, that can never be handed out; if there are no others, discard the whole draw."""
    firsts = draw.ids.reshape(len(draw), -1)[:, 0]
    sampler.discarded(firsts[where], for_good=True)
    try:
        fresh = sampler.draw(int(np.count_nonzero(where)), low, high, rng)
    except TrieyeError:
        sampler.discarded(firsts[~where], for_good=False)
        raise
    return spliced(draw, where, fresh)
