"""Payloads: which arrays a fragment has, its memory, and how many hold it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import Fragment
from trieye.replay.rows.schema import Column, check_keys

Array = NDArray[Any]
_Made = TypeVar("_Made")

_ALIGNMENT = 64  # a cache line, and enough for every dtype
_NO_ARRAY = (ValueError, TypeError, RuntimeError, ArithmeticError, AttributeError, LookupError)
_WIDEST_BYTES = 8  # what the file format of saved parts knows


class PayloadSchema:
    """The arrays of a fragment, one after the other in a block of bytes."""

    def __init__(self, columns: Iterable[Column]) -> None:
        """Lay out the columns.

        Raises:
            ConfigurationError: There is none, or one has a dtype that cannot be saved.
        """
        self.columns = {column.name: column for column in columns}
        if not self.columns:
            raise ConfigurationError("fragment without arrays; at least one key is needed")
        offsets, end = [], 0
        for name, column in self.columns.items():
            if column.dtype.kind == "c" or column.dtype.itemsize > _WIDEST_BYTES:
                raise ConfigurationError(
                    f"fragment key {name!r}: {column.dtype} cannot be kept; split it into arrays of at most 64 bits"
                )
            offsets.append(end)
            end += -(-prod(column.shape) * column.dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self.size_bytes = max(end, _ALIGNMENT)
        self._record = np.dtype(
            {
                "names": list(self.columns),
                "formats": [(column.dtype, column.shape) for column in self.columns.values()],
                "offsets": offsets,
                "itemsize": self.size_bytes,
            }
        )

    @classmethod
    def of(cls, payload: Mapping[str, Any]) -> Self:
        """Make the schema of a first fragment.

        Raises:
            ConfigurationError: A key is no text, or a value is no array of booleans or numbers.
        """
        _check_text(payload)
        return cls(_try(name, Column.from_value, name, value, rows=False) for name, value in payload.items())

    @classmethod
    def from_spec(cls, spec: Iterable[tuple[str, str, Iterable[int]]]) -> Self:
        """Make a schema of what `spec` says."""
        return cls(Column(name, tuple(shape), np.dtype(dtype)) for name, dtype, shape in spec)

    @property
    def spec(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Key, dtype and shape of each array, as plain data."""
        return [(name, *column.spec) for name, column in self.columns.items()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PayloadSchema) and self.columns == other.columns

    def __hash__(self) -> int:
        return hash(tuple(self.columns.items()))

    def conform(self, payload: Mapping[str, Any]) -> dict[str, Array]:
        """Return the payload as arrays of the schema.

        Raises:
            ConfigurationError: A key is missing or unknown, or a shape or dtype differs.
        """
        _check_text(payload)
        check_keys(payload, self.columns)
        return {name: _try(name, column.conform, payload[name]) for name, column in self.columns.items()}

    def pack(self, arrays: Mapping[str, Array], block: Array) -> dict[str, Array]:
        """Copy arrays that conform into a block, uint8 `[size_bytes]`, and return read-only views of it."""
        record = block.view(self._record).reshape(())
        for name, array in arrays.items():
            record[name] = array
        record.flags.writeable = False
        return {name: record[name] for name in self.columns}


def _check_text(payload: Mapping[str, Any]) -> None:
    for name in payload:
        if not isinstance(name, str):
            raise ConfigurationError(f"fragment key {name!r}: keys must be text")


def _try(name: str, make: Callable[..., _Made], *values: Any, **options: Any) -> _Made:
    """Call what takes the value of a key, and name the key in whatever NumPy and other libraries raise for it."""
    try:
        return make(*values, **options)
    except ConfigurationError:
        raise
    except _NO_ARRAY as error:
        raise ConfigurationError(f"fragment key {name!r}: {error}") from error


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
