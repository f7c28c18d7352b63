"""Batch: what a replay buffer hands out; BatchMemory: where the next ones are written."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError

Array = NDArray[np.generic]

MIN_BYTES = 1 << 20
"""Smaller batches are left to the allocator, which keeps such blocks at hand."""

MAX_HELD = 3
"""One that is held, one that is drawn meanwhile, and one for a program that keeps a batch a little longer."""

Signature = tuple[Any, ...]


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class Batch:
    """Rows drawn from a buffer; `batch["obs"]` is `batch.data["obs"]`.

    All arrays can be written to, and `torch.from_numpy` takes them as they are; so do those of small rows, which are
    strided views of one block of memory. With a `device` they are tensors, all but `ids`.

    Attributes:
        data: One array `[n, ...]` for each key, `[n, length, ...]` for sequences, in the dtype of the buffer's schema.
            `discount`, float32, is always among them: the factor of the value of the next observation, that is gamma to
            the power of the rows in the window (gamma itself unless `n_step` is above 1), or 0 where the episode
            terminated there; 0, too, where a sequence is padded. Rows that have a `discount` of their own keep it.
        ids: int64, the row ids that `add` and `extend` returned: `[n]`, or `[n, length]` for sequences.
        weights: float32 `[n]`, importance weights; all 1 with uniform sampling.
        info: What the sampler tells about the draw, such as the size of the buffer.
        mask: bool `[n, length]`, False where a sequence is padded, with zeros; None if nothing can be.
    """

    data: dict[str, Array]
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    info: Mapping[str, float] = field(default_factory=dict)
    mask: NDArray[np.bool_] | None = None
    records: Array | None = field(default=None, repr=False, compare=False)
    """The block that `data` views, if it is one; kept so that a later call can write into it."""

    def __getitem__(self, key: str) -> Array:
        return self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __len__(self) -> int:
        return len(self.ids)

    def keys(self) -> list[str]:
        """Return the keys, so that `dict(batch)` works."""
        return list(self.data)

    def check(self, n: int, shape: tuple[int, ...], keys: Iterable[str]) -> None:
        """Check that a batch of `n` rows, with ids of this shape and these keys, can be written into this one.

        Raises:
            ConfigurationError: It has another size, or other keys.
        """
        if self.ids.shape != shape or list(self) != list(keys):
            raise ConfigurationError(
                f"sample({n}): `out` holds {len(self)} rows of {', '.join(self)}; reuse a batch of the same size and "
                "keys"
            )


class BatchMemory:
    """Arrays for batches of one size, given out again when no one has a reference to them.

    Drawing images into new memory costs up to three times as much as drawing them: the system clears every page first,
    unless the allocator happens to have that much at hand. Several threads may ask.
    """

    def __init__(self) -> None:
        self._signature: Signature | None = None
        self._specs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._held: deque[dict[str, NDArray[Any]]] = deque(maxlen=MAX_HELD)

    def arrays(self, signature: Signature) -> dict[str, NDArray[Any]] | None:
        """Return arrays to write a batch into, None if no batch like it was learned.

        Args:
            signature: What tells batches of different sizes apart.
        """
        if signature != self._signature:
            return None
        for _ in range(len(self._held)):
            try:
                owners = self._held.popleft()  # so no other thread looks at it
            except IndexError:
                break
            views = {key: owner.view() for key, owner in owners.items()} if _are_alone(owners) else None
            self._held.append(owners)
            if views is not None:
                return views
        owners = {key: np.empty(shape, dtype) for key, (shape, dtype) in self._specs.items()}
        views = {key: owner.view() for key, owner in owners.items()}
        self._held.append(owners)  # the one that was used first is forgotten: whoever has it keeps it
        return views

    def learn(self, signature: Signature, data: Mapping[str, NDArray[Any]]) -> None:
        """Take note of what a batch consists of, if that is much; only batches like the last one are given memory."""
        if sum(array.nbytes for array in data.values()) < MIN_BYTES:
            return
        self._specs = {key: (array.shape, array.dtype) for key, array in data.items()}
        self._held.clear()
        self._signature = signature


def _most_references(owners: Mapping[str, NDArray[Any]]) -> int:
    return max([sys.getrefcount(owner) for owner in owners.values()])


def _are_alone(owners: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether nobody else has a reference; a view of a view refers to the owner, as NumPy has it."""
    return _most_references(owners) <= _ALONE


_ALONE = _most_references({"": np.empty(0)})  # the dictionary, and what counting takes, which depends on the Python
