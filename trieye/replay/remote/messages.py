"""Messages between writers, readers and a replay server."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.replay.rows.memory import RamMemory
from trieye.replay.rows.ring import Ring, row_count
from trieye.replay.rows.schema import Column
from trieye.replay.samplers.base import Ids

INTERRUPTION = 1 << 40
"""Added to a writer's environment numbers by each interruption, so that later rows start new episodes."""

LOST_ROWS = 1 << 62
"""Set in a writer's environment numbers after an interruption by lost rows, so that later rows lack earlier frames."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows sent to a server.

    Attributes:
        columns: Arrays `[n, ...]` by key, or one array `[n]` of records whose fields are the keys.
        env_ids: int64 `[n]`, the writer's number of each row's environment; None if the writer has only one.
        priorities: float64 `[n]`, NaN for rows with the default priority; None if all rows have it.
        versions: int64 `[n]`, the model version of each row, -1 for the server's version; None if all rows have that.
    """

    columns: Mapping[str, NDArray[Any]] | NDArray[Any]
    env_ids: Ids | None = None
    priorities: NDArray[np.float64] | None = None
    versions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if isinstance(self.columns, np.ndarray):
            return len(self.columns)
        return len(next(iter(self.columns.values())))

    def by_key(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays by key, as views."""
        if isinstance(self.columns, np.ndarray):
            return {name: self.columns[name] for name in self.columns.dtype.names or ()}
        return self.columns


@dataclass(frozen=True, slots=True)
class Ack:
    """A server's progress with the rows of one writer.

    Attributes:
        end: Number of its rows added to the buffer so far.
        saved: Number of its rows in a snapshot.
        refused: Why the batch was not added; empty if it was.
        lost: Number of its rows that were lost with the server and that the writer no longer had.
    """

    end: int
    saved: int = 0
    refused: str = ""
    lost: int = 0


Item = TypeVar("Item")
Drawn: TypeAlias = tuple[str, list[Item]]
"""The generation of the memory that row ids refer to, and several draws or batches of these rows."""


_OPTIONAL_ARRAYS: Mapping[str, tuple[DTypeLike, float]] = {
    "env_ids": (np.int64, 0), "priorities": (np.float64, np.nan), "versions": (np.int64, -1)
}  # fmt: skip
"""The optional arrays of `RowBatch`: dtype, and the value of rows without one."""


class Block:
    """Memory for `capacity` rows, filled from the front.

    Args:
        capacity: Maximum number of rows.
        columns: The keys of a row.
    """

    def __init__(self, capacity: int, columns: Iterable[Column]) -> None:
        self.capacity = capacity
        self.count = 0
        self._memory = RamMemory(prefault=False)
        self._ring = Ring(capacity, columns, self._memory)
        self._optional: dict[str, NDArray[Any]] = {}  # arrays of `_OPTIONAL_ARRAYS` with at least one explicit value

    @property
    def columns(self) -> Mapping[str, Column]:
        """The keys of a row."""
        return self._ring.columns

    @property
    def room(self) -> int:
        """Number of rows that still fit."""
        return self.capacity - self.count

    def add(self, row: Mapping[str, Any], env_id: int, version: int | None) -> None:
        """Copy one row into the block; nothing is written if a value is invalid."""
        self._ring.write_row(self.count, row)
        if env_id:
            self._write_optional("env_ids", 1, env_id)
        if version is not None:
            self._write_optional("versions", 1, version)
        self.count += 1

    def conform(self, rows: Mapping[str, Any]) -> Mapping[str, NDArray[Any]]:
        """Validate and convert rows, arrays `[n, ...]`, for `extend`; see `Ring.conform`."""
        return self._ring.conform(rows)[0]

    def extend(
        self, rows: Mapping[str, NDArray[Any]], env_ids: Ids | None, priorities: Any, version: int | None
    ) -> None:
        """Copy at most `room` conforming rows into the block."""
        count = row_count(rows)
        self._ring.write_rows(self.count, rows, count)
        for name, values in (("env_ids", env_ids), ("priorities", priorities), ("versions", version)):
            if values is not None:
                self._write_optional(name, count, values)
        self.count += count

    def reuse(self) -> None:
        """Remove all rows."""
        self.count, self._optional = 0, {}

    def rows(self) -> RowBatch:
        """Return the rows as views of this memory."""
        ring = self._ring
        columns: Any = {name: cells[: self.count] for name, cells in ring.cells.items()}
        if ring.records is not None:
            columns = ring.records[: self.count]
        return RowBatch(columns, **{name: values[: self.count] for name, values in self._optional.items()})

    @property
    def size_bytes(self) -> int:
        """Size of the memory in bytes."""
        return self._memory.size_bytes

    def _write_optional(self, name: str, count: int, values: Any) -> None:
        """Write explicit values of the next rows."""
        if name not in self._optional:
            dtype, default = _OPTIONAL_ARRAYS[name]
            self._optional[name] = np.full(self.capacity, default, dtype)
        self._optional[name][self.count : self.count + count] = values
