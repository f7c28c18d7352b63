"""AttachedReplay: the rows of a buffer that another process of this machine owns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.rows.layout import Layout, RowOptions
from trieye.replay.rows.memory import AttachedMemory, MemoryHandle
from trieye.replay.rows.reader import RowReader
from trieye.replay.rows.schema import Column
from trieye.replay.rows.store import COUNTERS, RowStore, shared_counters
from trieye.replay.samplers.base import Draw


@dataclass(frozen=True)
class ReplayHandle:
    """What another process needs to read the rows of a buffer; can be pickled.

    Attributes:
        memory: The arrays.
        capacity: Rows of the ring.
        columns: What a row holds.
        options: What is made of it.
    """

    memory: MemoryHandle
    capacity: int
    columns: tuple[Column, ...]
    options: RowOptions

    @classmethod
    def of(cls, store: RowStore | None, storage: str) -> Self:
        """Return the handle of a buffer's rows.

        Raises:
            ConfigurationError: They are not in memory that others can read, or there is no schema yet.
        """
        memory = None if store is None else store.memory.handle
        if store is None or memory is None:
            raise ConfigurationError(
                f"a replay buffer with storage {storage!r} and {'no' if store is None else 'a'} schema cannot be "
                "attached to; use storage='shm', and give the schema or add a row first"
            )
        return cls(memory, store.capacity, tuple(store.layout.columns.values()), store.layout.options)


class AttachedReplay:
    """Reads rows that the owner of the buffer decided about; it cannot change them.

    The owner may go on adding rows meanwhile, and may die: the memory stays until this object is gone.

    Args:
        handle: What `ReplayBuffer.handle` was in the owner's process.

    Raises:
        ConfigurationError: The owner is gone, or its buffer was closed.
    """

    def __init__(self, handle: ReplayHandle) -> None:
        memory = AttachedMemory(handle.memory)
        self.capacity = handle.capacity
        self._reader = RowReader(Layout(handle.capacity, handle.columns, handle.options), memory)
        self._header = shared_counters(memory)

    def __len__(self) -> int:
        counters = self.counters()
        return max(counters["total"] - counters["low"], 0)

    def counters(self) -> dict[str, int]:
        """Return `total`, `low`, `writing_until` and `generation`, as they are now."""
        return dict(zip(COUNTERS, self._header.tolist(), strict=True))

    def rows(self, draw: Draw, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch | None:
        """Copy the rows of a draw that the owner made.

        Args:
            draw: What `ReplayBuffer.draw` returned.
            out: An earlier batch of the same size and `keys`, whose memory is written again.
            keys: The keys wanted; all if None.

        Returns:
            The rows, or None if one of them is not here: the owner overwrote or forgot it by now, closed the buffer, or
            loaded another content into memory of its own. Ask it for another draw, or for a new handle.

        Raises:
            ConfigurationError: A key is unknown, or `out` is of another size.
        """
        low = self._low()
        if draw.ids.size and draw.ids.max() >= self.counters()["total"]:
            return None
        if not self._reader.is_whole(draw, low):
            return None
        batch = self._reader.batch(draw, low, out, keys)
        return batch if self._reader.is_whole(draw, self._low()) else None

    def _low(self) -> int:
        counters = self.counters()
        return max(counters["low"], counters["writing_until"] - self.capacity)
