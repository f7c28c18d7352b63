"""Payloads: the array schema of fragments, and a reference-counted table of their data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import Fragment
from trieye.replay.rows.schema import Column, check_keys

Array = NDArray[Any]

_ALIGNMENT = 64  # a cache line, and enough for every dtype
_WIDEST_BYTES = 8  # limit of the file format of saved parts
_LARGEST_BYTES = (1 << 31) - 1  # limit of a record field in NumPy


class PayloadSchema:
    """The arrays of a fragment, stored one after another in a block of bytes."""

    def __init__(self, columns: Iterable[Column]) -> None:
        """Compute the layout of the columns.

        Raises:
            ConfigurationError: There are no columns, or one has a dtype that cannot be saved or is 2 GiB or larger.
        """
        self.columns = {column.name: column for column in columns}
        if not self.columns:
            raise ConfigurationError("fragment without arrays; expected at least one key")
        offsets, end = [], 0
        for name, column in self.columns.items():
            if column.dtype.kind == "c" or column.dtype.itemsize > _WIDEST_BYTES:
                raise ConfigurationError(
                    f"fragment key {name!r}: {column.dtype} cannot be stored; split it into arrays of at most 64 bits"
                )
            size_bytes = prod(column.shape) * column.dtype.itemsize
            if size_bytes > _LARGEST_BYTES:
                raise ConfigurationError(
                    f"fragment key {name!r}: an array of {size_bytes} bytes cannot be stored; split it"
                )
            offsets.append(end)
            end += -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
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
        """Infer the schema from a first fragment.

        Raises:
            ConfigurationError: A value is not an array of booleans or numbers.
        """
        return cls(Column.from_value(name, value, rows=False) for name, value in payload.items())

    @classmethod
    def from_spec(cls, spec: Iterable[tuple[str, str, Iterable[int]]]) -> Self:
        """Create a schema from the value of `spec`."""
        return cls(Column(name, tuple(shape), np.dtype(dtype)) for name, dtype, shape in spec)

    @property
    def spec(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Key, dtype and shape of each array, as plain data."""
        return [(name, *column.spec) for name, column in self.columns.items()]

    def conform(self, payload: Mapping[str, Any]) -> dict[str, Array]:
        """Return the payload as arrays of the schema.

        Raises:
            ConfigurationError: A key is missing or unknown, or a shape or dtype differs.
        """
        check_keys(payload, self.columns)
        return {name: column.conform(payload[name]) for name, column in self.columns.items()}

    def pack(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Copy conforming arrays into one new block of memory, and return read-only views of it.

        Raises:
            MemoryError: There is not enough memory.
        """
        record = np.empty(self.size_bytes, np.uint8).view(self._record).reshape(())
        for name, array in arrays.items():
            record[name] = array
        record.flags.writeable = False
        return {name: record[name] for name in self.columns}


@dataclass(slots=True)
class _Row:
    fragment: Fragment
    size_bytes: int
    holders: int


class Payloads:
    """A table of fragments by serial number; a fragment is removed when its last holder drops it.

    Holders are the chunk being filled or stored, the queue of early fragments, and each lease.

    Attributes:
        serials: Serial number of the newest fragment by worker and fragment number.
        size_bytes: Size of all fragments.
    """

    def __init__(self) -> None:
        self._rows: dict[int, _Row] = {}
        self.serials: dict[tuple[str, int], int] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, serial: object) -> bool:
        return serial in self._rows

    def __getitem__(self, serial: int) -> Fragment:
        return self._rows[serial].fragment

    def put(self, serial: int, fragment: Fragment, size_bytes: int) -> None:
        """Add a fragment with one holder."""
        self._rows[serial] = _Row(fragment, size_bytes, 1)
        self.serials[fragment.meta.worker, fragment.meta.fid] = serial
        self.size_bytes += size_bytes

    def hold(self, serials: Iterable[int]) -> None:
        """Add a holder to each fragment."""
        for serial in serials:
            self._rows[serial].holders += 1

    def drop(self, serials: Iterable[int]) -> None:
        """Remove a holder from each fragment, and remove fragments without holders."""
        for serial in serials:
            row = self._rows[serial]
            row.holders -= 1
            if not row.holders:
                del self._rows[serial]
                self.size_bytes -= row.size_bytes
                key = row.fragment.meta.worker, row.fragment.meta.fid
                if self.serials.get(key) == serial:
                    del self.serials[key]
