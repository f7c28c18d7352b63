"""Column: name, shape and dtype of one key of a replay buffer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

_PYTHON_SCALARS: dict[type, DTypeLike] = {bool: np.bool_, int: np.int64, float: np.float32}
_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


@dataclass(frozen=True, slots=True)
class Column:
    """One key of a row.

    Attributes:
        name: The key.
        shape: Shape of one value, without the row axis.
        dtype: Type of its elements: boolean, integer, float or complex.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def from_dtype(cls, name: str, spec: DTypeLike) -> Self:
        """Make a column from a NumPy dtype: `np.int64`, or `(np.float32, (4,))` for an array.

        Raises:
            ConfigurationError: It is no dtype, or one that holds neither booleans nor numbers.
        """
        try:
            dtype = np.dtype(spec)
        except TypeError as error:
            raise ConfigurationError(
                f"replay key {name!r}: {spec!r} is no dtype; write np.int64, or (np.float32, (4,)) for an array"
            ) from error
        return cls(name, dtype.shape, _numeric(name, dtype.base))

    @classmethod
    def from_value(cls, name: str, value: Any, *, rows: bool) -> Self:
        """Make the column that takes values like this one.

        A Python float becomes float32, an int int64; arrays keep their dtype.

        Args:
            name: The key.
            value: One value, or an array `[n, ...]` of them.
            rows: Whether `value` has a leading row axis.
        """
        array = as_array(name, value)
        dtype = _numeric(name, np.dtype(_PYTHON_SCALARS.get(type(value), array.dtype)))
        if rows and not array.ndim:
            raise ConfigurationError(
                f"replay key {name!r}: extend() takes arrays [n, ...], found the single value {value!r}"
            )
        return cls(name, array.shape[1:] if rows else array.shape, dtype)

    @property
    def spec(self) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape as plain data; `from_dtype` takes it."""
        return self.dtype.str, self.shape

    def conform(self, value: Any, *, rows: int | None = None) -> NDArray[Any]:
        """Return the value as an array of the column's dtype.

        Args:
            value: One value `shape`, or `[rows, *shape]`.
            rows: Length of the row axis, None without one.

        Raises:
            ConfigurationError: The shape differs, the kind of number differs, or an integer is out of range.
        """
        array = as_array(self.name, value)
        shape = self.shape if rows is None else (rows, *self.shape)
        if array.shape != shape:
            raise ConfigurationError(f"replay key {self.name!r}: shape {shape} is expected, found {array.shape}")
        if array.dtype == self.dtype:
            return array
        if _RANKS.get(array.dtype.kind, 9) > _RANKS[self.dtype.kind]:
            raise ConfigurationError(
                f"replay key {self.name!r}: {self.dtype} is expected, found {array.dtype}; the first row or the schema "
                "decides on the dtype of all rows: change it there, or convert this value"
            )
        return self._cast(array)

    def _cast(self, array: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):  # a float beyond the range of float32 becomes inf, as everywhere in NumPy
            cast = array.astype(self.dtype)
        if self.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise ConfigurationError(
                f"replay key {self.name!r}: a value of {array.tolist()!r:.80} is out of range of {self.dtype}"
            )
        return cast


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return the value of a key as an array.

    Raises:
        ConfigurationError: No array can be made of it, as of lists of different lengths.
    """
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"replay key {name!r}: no array can be made of the value: {error}") from error


def check_keys(found: Iterable[str], expected: Mapping[str, Any] | Iterable[str]) -> None:
    """Check that a row has the keys of the schema.

    Raises:
        ConfigurationError: A key is missing or unknown.
    """
    found, known = set(found), list(expected)
    if found == set(known):
        return
    if unknown := sorted(found - set(known)):
        raise ConfigurationError(
            f"replay key {unknown[0]!r} is unknown{did_you_mean(unknown[0], known)} (known: {', '.join(known)})"
        )
    if missing := [name for name in known if name not in found]:
        raise ConfigurationError(
            f"replay row without {', '.join(map(repr, missing))}; every row needs: {', '.join(known)}"
        )


def describe(columns: Mapping[str, Column]) -> str:
    """Return the columns as one line: `obs float32[4], action int64[]`."""
    return ", ".join(f"{name} {column.dtype}{list(column.shape)}" for name, column in columns.items())


def _numeric(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in _RANKS:
        raise ConfigurationError(
            f"replay key {name!r}: dtype {dtype} cannot be kept; encode it as numbers (bool, integer, float, complex)"
        )
    return np.dtype(dtype.newbyteorder("=").str)  # through the name: the one object that NumPy's own arrays carry
