"""Ring: the memory of a replay buffer, one preallocated array for each key."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.schema import Column, check_keys

# One gather of 48-byte records is twice as fast as five gathers of columns (43 against 22 M rows/s); the gain is gone
# at about this size.
MAX_PACKED_BYTES = 512

# Values of these exact types fit any column of single floats without a closer look; other kinds have a range to check.
_FLOAT_SCALARS = frozenset({float, int, bool, np.float64, np.float32, np.float16})


class Ring:
    """`capacity` rows with their columns; which slots are filled is the buffer's business.

    Small rows lie packed, one record after the other, so that a draw touches each row once.
    """

    def __init__(self, capacity: int, columns: Iterable[Column]) -> None:
        self.columns = {column.name: column for column in columns}
        self.capacity = capacity
        if not self.columns:
            raise ConfigurationError("replay schema is empty; a row needs at least one key")
        layout = {name: (column.dtype, column.shape) for name, column in self.columns.items()}
        record = np.dtype({"names": list(layout), "formats": list(layout.values())}, align=True)
        self.is_packed = record.itemsize <= MAX_PACKED_BYTES
        try:
            self.records = np.empty(capacity, record) if self.is_packed else None
            self.cells = {name: self._allocate(column) for name, column in self.columns.items()}
        except MemoryError as error:
            raise ConfigurationError(
                f"replay capacity {capacity:_} rows of {record.itemsize} bytes needs "
                f"{capacity * record.itemsize / 2**30:.1f} GiB, more than there is; lower replay.capacity"
            ) from error
        self._lanes = [_fast_lane(column) for column in self.columns.values()]

    def write_row(self, slot: int, row: Mapping[str, Any]) -> None:
        """Copy one row into a slot; nothing is written if one of its values is refused."""
        values = []
        try:
            for name, dtype, shape, scalars, low, high in self._lanes:
                value = row[name]
                kind = type(value)
                if kind is np.ndarray:
                    # the same object, not an equal one: half the price, and the rest goes through `conform`
                    fits = value.dtype is dtype and value.shape == shape
                else:
                    fits = kind in scalars or (kind is int and low <= value <= high)
                values.append(value if fits else self.columns[name].conform(value))
        except KeyError:
            check_keys(row, self.columns)
            raise
        if len(values) != len(row):
            check_keys(row, self.columns)
        if self.records is not None:
            self.records[slot] = tuple(values)
            return
        for cells, value in zip(self.cells.values(), values, strict=True):
            cells[slot] = value

    def write_rows(self, first: int, rows: Mapping[str, Any]) -> int:
        """Copy rows, arrays `[n, ...]`, into the slots from `first` on, around the end of the ring, and return `n`."""
        check_keys(rows, self.columns)
        arrays = {name: np.asarray(rows[name]) for name in self.columns}
        count = _row_count(arrays)
        for name, dtype, shape, *_ in self._lanes:
            if arrays[name].dtype is not dtype or arrays[name].shape[1:] != shape:
                arrays[name] = self.columns[name].conform(arrays[name], rows=count)
        kept = min(count, self.capacity)
        start = (first + count - kept) % self.capacity
        before_end = min(kept, self.capacity - start)
        for name, array in arrays.items():
            newest = array if kept == count else array[count - kept :]
            self.cells[name][start : start + before_end] = newest[:before_end]
            if before_end < kept:
                self.cells[name][: kept - before_end] = newest[before_end:]
        return count

    def rows(self, first_id: int, count: int) -> dict[str, NDArray[Any]]:
        """Return rows in the order of their ids, as views of this memory unless they go around its end."""
        start = first_id % self.capacity
        around = max(start + count - self.capacity, 0)
        if not around:
            return {name: cells[start : start + count] for name, cells in self.cells.items()}
        return {name: np.concatenate((cells[start:], cells[:around])) for name, cells in self.cells.items()}

    def restore(self, end_id: int, rows: Mapping[str, NDArray[Any]]) -> int:
        """Put rows, which end before `end_id`, back into their slots; return how many of them fit."""
        kept = min(len(next(iter(rows.values()))), self.capacity)
        for name, cells in self.cells.items():
            cells[np.arange(end_id - kept, end_id) % self.capacity] = rows[name][len(rows[name]) - kept :]
        return kept

    def gather(self, slots: NDArray[np.int64], keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        """Copy rows out; slots beyond the capacity wrap around once.

        Args:
            slots: int64 `[n]`, below twice the capacity.
            keys: The keys wanted.
            block: Records to write into (packed rows only), or None.
            out: Arrays to write into (rows that are not packed), or None.

        Returns:
            The data by key, and the block of records that it views or None.
        """
        if self.records is not None:  # mode="wrap" also spares NumPy the buffering that mode="raise" does with `out`
            block = self.records.take(slots, out=block, mode="wrap")
            return {name: block[name] for name in keys}, block
        take = {name: None if out is None else out[name] for name in keys}
        return {name: self.cells[name].take(slots, axis=0, out=take[name], mode="wrap") for name in keys}, None

    @property
    def size_bytes(self) -> int:
        """Bytes of memory of all columns."""
        return self.records.nbytes if self.records is not None else sum(cells.nbytes for cells in self.cells.values())

    def _allocate(self, column: Column) -> NDArray[Any]:
        if self.records is not None:
            return self.records[column.name]
        return np.empty((self.capacity, *column.shape), column.dtype)


def _row_count(arrays: Mapping[str, NDArray[Any]]) -> int:
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) != 1 or () in counts:
        found = ", ".join(f"{name} {list(array.shape[:1])}" for name, array in arrays.items())
        raise ConfigurationError(f"extend: every array must have the same number of rows, found {found}")
    return int(counts.pop()[0])


def _fast_lane(column: Column) -> tuple[str, np.dtype[Any], tuple[int, ...], frozenset[type], int, int]:
    """Return what a value must be to need no closer look: dtype and shape, or one of the types, or a range of int."""
    dtype, scalars, low, high = column.dtype, frozenset[type](), 1, 0
    if not column.shape:
        scalars = _FLOAT_SCALARS if dtype.kind == "f" else frozenset({dtype.type})
        if dtype.kind == "b":
            scalars |= {bool}
        if dtype.kind in "iu":
            low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return column.name, dtype, column.shape, scalars, low, high
