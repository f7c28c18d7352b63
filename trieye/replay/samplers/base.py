"""Sampler: the protocol that decides which rows of a replay buffer are drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ids = NDArray[np.int64]


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class Draw:
    """What a sampler decided: row ids, not yet the rows themselves.

    It is small and can be pickled, so that one process can decide and another one copy the rows.

    Attributes:
        ids: int64 `[n]`, or `[n, length]` for sequences; -1 marks a step that only pads a sequence.
        weights: float32 `[n]`, importance weights; all 1 without priorities. May be read-only.
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

        The rows may come sorted, so a part of one draw is no draw.

        Raises:
            ConfigurationError: No row can be drawn.
        """

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


@lru_cache(maxsize=64)
def ones(n: int) -> NDArray[np.float32]:
    """Return read-only weights float32 `[n]` that are all 1."""
    weights = np.ones(n, np.float32)
    weights.flags.writeable = False
    return weights
