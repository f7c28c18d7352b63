"""PayloadSchema: which arrays a fragment has, and how they lie in one block of memory."""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
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
