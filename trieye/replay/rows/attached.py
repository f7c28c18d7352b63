"""AttachedReplay: a read-only view of another process's rows; ReplayHandle: where those rows are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.rows.memory import AttachedMemory, MemoryHandle
from trieye.replay.rows.reader import RowReader
from trieye.replay.rows.schema import Column, Layout, RowOptions
from trieye.replay.rows.store import COUNTERS, RowStore, arrays_in, shared_counters
from trieye.replay.samplers.base import SampledIds


@dataclass(frozen=True)
class ReplayHandle:
    """Gives another process access to the rows of a buffer; can be pickled.

    Attributes:
        memory: The arrays.
        capacity: Capacity of the ring in rows.
        columns: Columns of a row.
        options: How rows are stored and combined.
    """

    memory: MemoryHandle
    capacity: int
    columns: tuple[Column, ...]
    options: RowOptions

    @classmethod
    def of(cls, store: RowStore | None, storage: str) -> Self:
        """Return the handle of a buffer's rows.

        Raises:
            ConfigurationError: The rows are not in shared memory, or there is no schema yet.
        """
        memory = None if store is None else store.memory.handle
        if store is None or memory is None:
            raise ConfigurationError(
                f"cannot attach to a replay buffer with storage {storage!r} and {'no' if store is None else 'a'} "
                "schema; use storage='shm', and pass the schema or add a row first"
            )
        return cls(memory, store.capacity, tuple(store.layout.columns.values()), store.layout.options)


class AttachedReplay:
    """Reads rows drawn by the owner of the buffer; read-only.

    The owner may add rows during reads, and may die: the memory remains until this object is garbage-collected.

    Args:
        handle: The value of `ReplayBuffer.handle` in the owner's process.

    Raises:
        ConfigurationError: The owner has exited, or its buffer was closed.
    """

    def __init__(self, handle: ReplayHandle) -> None:
        memory = AttachedMemory(handle.memory)
        self.capacity = handle.capacity
        layout = Layout(handle.capacity, handle.columns, handle.options)
        self._reader = RowReader(layout, *arrays_in(memory, layout))
        self._header = shared_counters(memory)

    def __len__(self) -> int:
        counters = self.counters()
        return max(counters["total"] - counters["low"], 0)

    def counters(self) -> dict[str, int]:
        """Return the current `total`, `low`, `writing_until` and `generation`."""
        return dict(zip(COUNTERS, self._header.tolist(), strict=True))

    def rows(self, draw: SampledIds, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch | None:
        """Copy the rows of a draw made by the owner.

        Args:
            draw: The result of `ReplayBuffer.draw`.
            out: An earlier batch of the same size and `keys`, whose memory is overwritten.
            keys: The keys to return; all if None.

        Returns:
            The rows, or None if a row is missing: the owner has overwritten or removed it, closed the buffer, or loaded
            a state into other memory. Request another draw or a new handle from the owner.

        Raises:
            ConfigurationError: A key is unknown, or `out` has another size.
        """
        low = self._low()
        if draw.ids.size and draw.ids.max() >= self.counters()["total"]:
            return None
        if self._reader.lost(draw, low).any():
            return None
        batch = self._reader.batch(draw, low, out, keys)
        return None if self._reader.lost(draw, self._low()).any() else batch

    def lost(self, draw: SampledIds) -> NDArray[np.bool_]:
        """Return bool `[n]`, True for rows or sequences of a draw that are missing or incomplete.

        All of them are if the memory was replaced.
        """
        lost = self._reader.lost(draw, self._low())
        return lost if lost.any() else np.ones(len(draw), np.bool_)

    def _low(self) -> int:
        counters = self.counters()
        return max(counters["low"], counters["writing_until"] - self.capacity)
