"""Payloads: the fragments that are held, and how many hold each of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trieye.replay.fragments.fragment import Fragment

Array = NDArray[Any]


class BlockStore(Protocol):
    """Where the blocks of memory come from."""

    def allocate(self, size_bytes: int) -> Array:
        """Return a writable block, uint8 `[size_bytes]`, aligned to 16 bytes at least.

        Raises:
            MemoryError: There is no room now.
        """

    def free(self, block: Array) -> None:
        """Take back a block that `allocate` returned; the buffer does not touch it any more."""


class HeapBlocks:
    """Blocks in ordinary memory; one that is freed lives on for as long as a reader has a view of it."""

    def allocate(self, size_bytes: int) -> Array:
        """Return a block of its own."""
        return np.empty(size_bytes, np.uint8)

    def free(self, block: Array) -> None:
        """Do nothing: the memory goes with the last view."""


@dataclass(slots=True)
class _Row:
    fragment: Fragment
    block: Array
    holders: int


class Payloads:
    """A table of fragments by serial number; one leaves, and its block is freed, when the last holder drops it.

    Holders are: the chunk that is being filled or kept, the place of early fragments, and each lease.
    """

    def __init__(self, blocks: BlockStore) -> None:
        self._blocks = blocks
        self._rows: dict[int, _Row] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, serial: object) -> bool:
        return serial in self._rows

    def __getitem__(self, serial: int) -> Fragment:
        return self._rows[serial].fragment

    def allocate(self, size_bytes: int) -> Array:
        """Return a block for a new fragment; raises MemoryError where there is no room."""
        return self._blocks.allocate(size_bytes)

    def put(self, serial: int, fragment: Fragment, block: Array) -> None:
        """Take a fragment in, with one holder."""
        self._rows[serial] = _Row(fragment, block, 1)
        self.size_bytes += block.nbytes

    def hold(self, serials: Iterable[int]) -> None:
        """Add a holder to each."""
        for serial in serials:
            self._rows[serial].holders += 1

    def drop(self, serials: Iterable[int]) -> None:
        """Take a holder from each; what has none left is freed."""
        for serial in serials:
            row = self._rows[serial]
            row.holders -= 1
            if not row.holders:
                del self._rows[serial]
                self.size_bytes -= row.block.nbytes
                self._blocks.free(row.block)
