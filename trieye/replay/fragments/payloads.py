"""PayloadSchema: the arrays of a fragment; Holders: counts what holds each fragment."""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.fragments.fragment import Fragment
from trieye.replay.rows.schema import Column, check_keys

Array = NDArray[Any]

Key = TypeVar("Key")


class PayloadSchema:
    """The arrays of a fragment."""

    def __init__(self, columns: Iterable[Column]) -> None:
        """Check the columns.

        Raises:
            ConfigurationError: There are no columns, or one has a key that cannot be saved.
        """
        self.columns = {column.name: column for column in columns}
        if not self.columns:
            raise ConfigurationError("fragment without arrays; expected at least one key")
        if "__metadata__" in self.columns:
            raise ConfigurationError("fragment key '__metadata__' is reserved by the file format of saves; rename it")
        sizes = [prod(column.shape) * column.dtype.itemsize for column in self.columns.values()]
        self.size_bytes = max(sum(sizes), 1)

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

    def copied(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Copy conforming arrays into new read-only ones.

        Raises:
            MemoryError: There is not enough memory.
        """
        copies = {name: np.array(arrays[name], order="C") for name in self.columns}
        for array in copies.values():
            array.flags.writeable = False
        return copies


class Holders:
    """Counts the holders of each fragment: the chunk being filled or stored, the queue of early fragments, each lease.

    Attributes:
        keys: Number of held fragments by worker and fragment number.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # by fragment id
        self.keys: Counter[tuple[str, int]] = Counter()

    def __len__(self) -> int:
        """Return the number of fragments with a holder."""
        return len(self._counts)

    def hold(self, fragments: Iterable[Fragment]) -> None:
        """Add a holder to each fragment."""
        for fragment in fragments:
            self.keys[fragment.meta.worker, fragment.meta.fid] += not self._counts[fragment.id]
            self._counts[fragment.id] += 1

    def drop(self, fragments: Iterable[Fragment]) -> None:
        """Remove a holder from each fragment."""
        for fragment in fragments:
            if uncount(self._counts, fragment.id):
                uncount(self.keys, (fragment.meta.worker, fragment.meta.fid))


def uncount(counts: Counter[Key], key: Key) -> bool:
    """Lower a count by 1, and return whether it was removed because it is 0 now."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
        return True
    return False
