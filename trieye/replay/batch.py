"""Batch: what a replay buffer hands out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


@dataclass(slots=True)  # frozen would cost a tenth of the draw
class Batch:
    """Rows drawn from a buffer; `batch["obs"]` is `batch.data["obs"]`.

    The arrays of small rows are strided views of one block of memory: `torch.from_numpy` takes them as they are.

    Attributes:
        data: One array `[n, ...]` for each key, `[n, length, ...]` for sequences, in the dtype of the buffer's schema.
        ids: int64, the row ids that `add` and `extend` returned: `[n]`, or `[n, length]` for sequences.
        weights: float32 `[n]`, importance weights; all 1 with uniform sampling. May be read-only.
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
