"""Batch: rows drawn from a replay buffer; BatchMemory: reuses the arrays of released batches."""

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
"""Smaller batches are left to the allocator, which caches blocks of that size."""

MAX_POOLED = 3
"""The batch in use, the batch being drawn, and one for a program that keeps a batch a little longer."""

Signature = tuple[Any, ...]


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class Batch:
    """Rows drawn from a buffer; `batch["obs"]` is `batch.data["obs"]`.

    All arrays are writable and accepted by `torch.from_numpy`. Small rows share one block of memory, and their arrays
    are strided views of it. With a `device`, all arrays except `ids` are tensors.

    Attributes:
        data: One array `[n, ...]` per key, `[n, length, ...]` for sequences, in the dtype of the buffer's schema.
            Always includes `discount`, float32, the factor of the next observation's value: gamma to the power of the
            number of rows in the window (gamma itself unless `n_step` is above 1), or 0 where the episode terminated in
            it or a sequence is padded. A `discount` key in the rows themselves takes precedence.
        ids: int64, the row ids that `add` and `extend` returned: `[n]`, or `[n, length]` for sequences.
        weights: float32 `[n]`, importance weights; all 1 with uniform sampling.
        info: Statistics of the draw from the sampler, such as the size of the buffer.
        mask: bool `[n, length]`, False where a sequence is padded with zeros; None if padding is impossible.
    """

    data: dict[str, Array]
    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    info: Mapping[str, float] = field(default_factory=dict)
    mask: NDArray[np.bool_] | None = None
    records: Array | None = field(default=None, repr=False, compare=False)
    """The block that `data` views, if any; kept so that a later call can write into it."""

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
        """Check that `n` rows, with ids of this shape and these keys, can be written into this batch.

        Raises:
            ConfigurationError: This batch has another size or other keys.
        """
        if self.ids.shape != shape or list(self) != list(keys):
            raise ConfigurationError(
                f"sample({n}): `out` has {len(self)} rows of {', '.join(self)}; pass a batch of the same size and keys"
            )


class BatchMemory:
    """Arrays for batches of one size, reused once their last user releases them.

    Writing images into newly allocated memory costs up to three times as much as drawing them: the system clears
    every page first, unless the allocator has that much memory cached. Thread-safe.
    """

    def __init__(self) -> None:
        self._signature: Signature | None = None
        self._specs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._pool: deque[dict[str, NDArray[Any]]] = deque(maxlen=MAX_POOLED)

    def arrays(self, signature: Signature) -> dict[str, NDArray[Any]] | None:
        """Return arrays to write a batch into, or None if no batch with this signature was learned.

        Args:
            signature: Identifies the size and keys of a batch.
        """
        if signature != self._signature:
            return None
        for _ in range(len(self._pool)):
            try:
                owners = self._pool.popleft()  # hidden from other threads
            except IndexError:
                break
            views = {key: owner.view() for key, owner in owners.items()} if _are_alone(owners) else None
            self._pool.append(owners)
            if views is not None:
                return views
        owners = {key: np.empty(shape, dtype) for key, (shape, dtype) in self._specs.items()}
        views = {key: owner.view() for key, owner in owners.items()}
        self._pool.append(owners)  # drops the oldest arrays, which their user keeps
        return views

    def learn(self, signature: Signature, data: Mapping[str, NDArray[Any]]) -> None:
        """Record the arrays of a batch if they are large; only batches with the latest signature are given memory."""
        if sum(array.nbytes for array in data.values()) < MIN_BYTES:
            return
        self._specs = {key: (array.shape, array.dtype) for key, array in data.items()}
        self._pool.clear()
        self._signature = signature


def _most_references(owners: Mapping[str, NDArray[Any]]) -> int:
    return max([sys.getrefcount(owner) for owner in owners.values()])


def _are_alone(owners: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether only the pool holds references; a view of a view references the owner in NumPy."""
    return _most_references(owners) <= _ALONE


_ALONE = _most_references({"": np.empty(0)})  # the dictionary and the counting itself, which varies with Python
