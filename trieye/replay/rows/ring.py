"""Ring: preallocated memory for the newest rows, an array per key, or a single array of packed records."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct, error
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.memory import Memory
from trieye.replay.rows.schema import Column, as_array, check_keys

# One gather of 48-byte records is twice as fast as five gathers of columns (43 against 22 M rows/s); the advantage
# disappears at about this size.
MAX_PACKED_BYTES = 512

FLOAT_SCALARS = frozenset({float, int, bool, np.float64, np.float32, np.float16})
"""Values of exactly these types fit any float column without a check; other kinds have a range."""

_CODES = {"f2": "e", "f4": "f", "f8": "d", "b1": "?"} | {
    f"{kind}{2**log}": code.upper() if kind == "u" else code for kind in "iu" for log, code in enumerate("bhiq")
}


class Ring:
    """`capacity` rows and their columns; the buffer tracks which slots are filled.

    Small rows are packed as consecutive records, so that a draw touches each row once.
    """

    def __init__(self, capacity: int, columns: Iterable[Column], memory: Memory) -> None:
        self.columns = {column.name: column for column in columns}
        self.capacity = capacity
        if not self.columns:
            raise ConfigurationError("replay schema is empty; a row needs at least one key")
        order = sorted(self.columns.values(), key=lambda column: not column.shape)  # arrays first, for `RowPacker`
        record = _record(order)
        self.is_packed = record.itemsize <= MAX_PACKED_BYTES
        self.records = memory.allocate("rows", (capacity,), record) if self.is_packed else None
        self.cells = {
            name: memory.allocate(f"key.{name}", (capacity, *column.shape), column.dtype)
            if self.records is None
            else self.records[name]
            for name, column in self.columns.items()
        }
        self.unread: UnreadRows | None = None
        """Rows that are still in a file; each is read on first access."""
        # in the field order of a record, which is assigned as a tuple
        self._lanes = [_fast_lane(column) for column in (order if self.is_packed else self.columns.values())]
        self._block_lanes: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self._block_rows = 0
        self.pack: Callable[[int, Mapping[str, Any]], bool] = _never
        """Copies a row into a slot if its values need no checks, and returns whether it did."""
        if self.records is not None and self.records.flags.writeable:
            self.pack = RowPacker(order, self.records).write

    def write_row(self, slot: int, row: Mapping[str, Any]) -> None:
        """Copy one row into a slot; nothing is written if a value is invalid."""
        if self.unread is not None or not self.pack(slot, row):
            self.write_checked(slot, row)

    def write_checked(self, slot: int, row: Mapping[str, Any]) -> None:
        """Implement `write_row` with a check of every value."""
        values = []
        try:
            for name, dtype, shape, scalars, low, high in self._lanes:
                value = row[name]
                kind = type(value)
                if kind is ndarray:
                    # identity instead of equality: half the cost, and other arrays go through `conform`
                    fits = value.dtype is dtype and value.shape == shape
                else:
                    fits = kind in scalars and (kind is not int or low <= value <= high)
                values.append(value if fits else self.columns[name].conform(value))
        except KeyError:
            check_keys(row, self.columns)
            raise
        if len(values) != len(row):
            check_keys(row, self.columns)
        if self.unread is not None:
            self.unread.forget(slot, 1)
        if self.records is not None:
            self.records[slot] = tuple(values)
            return
        for cells, value in zip(self.cells.values(), values, strict=True):
            cells[slot] = value

    def conform(self, rows: Mapping[str, Any]) -> tuple[Mapping[str, NDArray[Any]], int]:
        """Return rows as arrays `[n, ...]` of the columns' dtypes, and `n`; arrays that fit are not copied.

        Raises:
            ConfigurationError: A key is unknown or missing, or an array has another length, shape or kind.
        """
        if count := self.num_like_previous(rows):
            return rows, count
        if rows.keys() != self.columns.keys():
            check_keys(rows, self.columns)
        arrays = {
            name: value if type(value := rows[name]) is np.ndarray else as_array(name, value) for name in self.columns
        }
        count = row_count(arrays)
        for name, dtype, shape, *_ in self._lanes:
            if arrays[name].dtype != dtype or arrays[name].shape[1:] != shape:
                arrays[name] = self.columns[name].conform(arrays[name], rows=count)
        self._block_lanes = [(name, dtype, (count, *shape)) for name, dtype, shape, *_ in self._lanes]
        self._block_rows = count
        return arrays, count

    def num_like_previous(self, rows: Mapping[str, Any]) -> int:
        """Return the number of rows if their types and shapes equal those of the last `conform`, else 0."""
        if len(rows) != len(self._block_lanes):
            return 0
        for name, dtype, shape in self._block_lanes:
            array = rows.get(name)
            if type(array) is not ndarray or array.shape != shape:
                return 0
            # identity is faster, but unpickled arrays have copies of their dtypes
            if array.dtype is not dtype and array.dtype != dtype:
                return 0
        return self._block_rows

    def write_rows(self, first_slot: int, rows: Mapping[str, NDArray[Any]], count: int) -> None:
        """Copy at most `capacity` conforming rows into the slots from `first_slot` on, wrapping around the end."""
        if self.unread is not None:
            self.unread.forget(first_slot, count)
        before_end = self.capacity - first_slot
        if count <= before_end:
            slots = slice(first_slot, first_slot + count)
            for name, array in rows.items():
                self.cells[name][slots] = array
            return
        for name, array in rows.items():
            self.cells[name][first_slot:] = array[:before_end]
            self.cells[name][: count - before_end] = array[before_end:]

    def rows(self, first_id: int, count: int) -> dict[str, NDArray[Any]]:
        """Return copies of rows in id order, by column."""
        start = first_id % self.capacity
        if (unread := self.unread) is not None:  # a prefetch thread may clear the attribute
            unread.read_into(self.cells, np.arange(start, start + count))
        num_wrapped = max(start + count - self.capacity, 0)
        if not num_wrapped:
            return {name: np.array(cells[start : start + count], order="C") for name, cells in self.cells.items()}
        return {name: np.concatenate((cells[start:], cells[:num_wrapped])) for name, cells in self.cells.items()}

    def gather(self, slots: NDArray[np.int64], keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        """Copy rows; slots beyond the capacity wrap around once.

        Args:
            slots: int64 `[n]`, below twice the capacity.
            keys: The keys to return.
            block: Records to write into (packed rows only), or None.
            out: Arrays to write into (unpacked rows only), or None.

        Returns:
            The data by key, and the block of records that it views, if any.
        """
        if (unread := self.unread) is not None:
            unread.read_into(self.cells, slots)
            self.unread = unread if unread.count else None
        if self.records is not None:  # mode="wrap" also avoids the buffering of mode="raise" with `out`
            block = self.records.take(slots, out=block, mode="wrap")
            return {name: block[name] for name in keys}, block
        take = {name: None if out is None else out[name] for name in keys}
        return {name: self.cells[name].take(slots, axis=0, out=take[name], mode="wrap") for name in keys}, None


class UnreadRows:
    """Rows of saved parts that have not been copied into a ring yet.

    Args:
        capacity: Capacity of the ring in rows.
        low: Id of the oldest row of the ring.
        parts: First id and arrays by key of each part, ascending; the arrays are memory-mapped files.
    """

    def __init__(self, capacity: int, low: int, parts: Sequence[tuple[int, Mapping[str, NDArray[Any]]]]) -> None:
        self._capacity, self._low = capacity, low
        self._starts = np.array([first for first, _ in parts], np.int64)
        self._parts = [rows for _, rows in parts]
        self._is_unread = np.zeros(capacity, np.bool_)
        for first, rows in parts:
            ids = np.arange(max(first, low), first + row_count(rows))
            self._is_unread[ids % capacity] = True
        self.count = int(np.count_nonzero(self._is_unread))
        # guards `_is_unread` and `count`, and the slots being filled, since a prefetch thread reads too
        self._lock = threading.Lock()

    def forget(self, first_slot: int, count: int) -> None:
        """Record that slots, wrapping around the end of the ring, are overwritten."""
        slots = np.arange(first_slot, first_slot + count) % self._capacity
        with self._lock:
            self.count -= int(np.count_nonzero(self._is_unread[slots]))
            self._is_unread[slots] = False

    def read_into(self, cells: Mapping[str, NDArray[Any]], slots: NDArray[np.int64]) -> None:
        """Copy the unread rows among these slots, `[n]`, below twice the capacity."""
        slots = slots % self._capacity
        with self._lock:
            slots = np.unique(slots[self._is_unread[slots]])
            if slots.size:
                self._copy(cells, slots)
            self._is_unread[slots] = False
            self.count -= slots.size

    def _copy(self, cells: Mapping[str, NDArray[Any]], slots: NDArray[np.int64]) -> None:
        ids = self._low + (slots - self._low) % self._capacity
        part_indices = np.searchsorted(self._starts, ids, side="right") - 1
        for index in np.unique(part_indices).tolist():
            is_in_part = part_indices == index
            for name, rows in self._parts[index].items():
                cells[name][slots[is_in_part]] = rows[ids[is_in_part] - self._starts[index]]


def _record(columns: Sequence[Column]) -> np.dtype[Any]:
    """Return the dtype of a packed row, aligned so that torch, whose strides are whole elements, accepts its fields."""
    offsets, end = [], 0
    for column in columns:
        start = -(-end // column.dtype.itemsize) * column.dtype.itemsize
        offsets.append(start)
        end = start + column.dtype.itemsize * math.prod(column.shape)
    widest = max(column.dtype.itemsize for column in columns)
    fields = {
        "names": [column.name for column in columns],
        "formats": [(column.dtype, column.shape) for column in columns],
        "offsets": offsets,
        "itemsize": -(-end // widest) * widest,
    }
    return np.dtype(fields, align=True)  # type: ignore[call-overload, no-any-return]  # of such a dictionary


def row_count(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the common length of all arrays.

    Raises:
        ConfigurationError: The lengths differ, or an array has no row axis.
    """
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) != 1 or () in counts:
        lengths = ", ".join(f"{name} {list(array.shape[:1])}" for name, array in arrays.items())
        raise ConfigurationError(f"extend: every array must have the same number of rows, got {lengths}")
    return int(counts.pop()[0])


def _never(slot: int, row: Mapping[str, Any]) -> bool:  # noqa: ARG001 - same signature as `RowPacker.write`
    return False


def _fast_lane(column: Column) -> tuple[str, np.dtype[Any], tuple[int, ...], frozenset[type], float, float]:
    """Return which values need no check: those with this dtype and shape, of some types, or in a range of int."""
    dtype = column.dtype
    scalars = frozenset[type]() if column.shape else _fitting_types(dtype)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-math.inf, math.inf)
    return column.name, dtype, column.shape, scalars, low, high


class RowPacker:
    """Writes rows whose values have exactly the types of their columns.

    `struct` takes half the time that NumPy needs to assign a tuple to a record (0.2 against 0.45 us for 5 values).

    Args:
        columns: The columns, arrays first, as in the records.
        records: The records to write into.
    """

    def __init__(self, columns: Iterable[Column], records: NDArray[Any]) -> None:
        self._arrays = [(column.name, column.dtype, column.shape) for column in columns if column.shape]
        self._singles = [(column.name, _fitting_types(column.dtype)) for column in columns if not column.shape]
        self._num_keys = len(self._arrays) + len(self._singles)
        self._pack = _struct_of(records.dtype).pack
        self._bytes = records.view(np.uint8).data
        self._record_bytes = records.itemsize

    def write(self, slot: int, row: Mapping[str, Any]) -> bool:
        """Copy a row into a slot and return True; return False and write nothing if a value needs a check."""
        if len(row) != self._num_keys:
            return False
        values = []
        try:
            for name, dtype, shape in self._arrays:
                value = row[name]
                # identity instead of equality: half the cost
                if type(value) is not ndarray or value.dtype is not dtype or value.shape != shape:
                    return False
                values.append(value.tobytes())
            for name, types in self._singles:
                value = row[name]
                if type(value) not in types:
                    return False
                values.append(value)
            record = self._pack(*values)  # not pack_into, which would write part of an invalid row
        except (KeyError, error, OverflowError):  # OverflowError: a number out of range of its column
            return False
        start = slot * self._record_bytes
        self._bytes[start : start + self._record_bytes] = record
        return True


def _fitting_types(dtype: np.dtype[Any]) -> frozenset[type]:
    if dtype.kind == "f":
        return FLOAT_SCALARS
    return frozenset({dtype.type, bool if dtype.kind == "b" else int})


def _struct_of(record: np.dtype[Any]) -> Struct:
    codes, end = ["="], 0
    for name in record.names or ():
        dtype, offset = record.fields[name][:2]  # type: ignore[index]  # it has fields
        codes.append("x" * (offset - end))
        codes.append(f"{dtype.itemsize}s" if dtype.shape else _CODES[dtype.str[1:]])
        end = offset + dtype.itemsize
    return Struct("".join(codes) + "x" * (record.itemsize - end))
