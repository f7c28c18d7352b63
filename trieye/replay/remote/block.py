"""Block: the rows that a writer collects for one batch."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.remote.messages import Rows
from trieye.replay.rows.memory import RamMemory
from trieye.replay.rows.ring import Ring
from trieye.replay.rows.schema import Column
from trieye.replay.samplers.base import Ids


class Block:
    """Memory for `capacity` rows, filled from the front.

    Args:
        capacity: Rows.
        columns: The keys of a row.
    """

    def __init__(self, capacity: int, columns: Iterable[Column]) -> None:
        self.capacity = capacity
        self.count = 0
        self._ring = Ring(capacity, columns, RamMemory(prefault=False))
        self._env_ids: Ids | None = None
        self._priorities: NDArray[np.float64] | None = None
        self._versions: NDArray[np.int64] | None = None

    @property
    def columns(self) -> Mapping[str, Column]:
        """The keys of a row."""
        return self._ring.columns

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.capacity - self.count

    def add(self, row: Mapping[str, Any], env_id: int, version: int | None) -> None:
        """Copy one row in; nothing is written if one of its values is refused."""
        self._ring.write_row(self.count, row)
        if env_id or self._env_ids is not None:
            self._envs()[self.count] = env_id
        if version is not None:
            self._note_version(1, version)
        self.count += 1

    def extend(
        self, rows: Mapping[str, NDArray[Any]], env_ids: Ids | None, priorities: Any, version: int | None
    ) -> None:
        """Copy rows in, arrays `[n, ...]` with `n` not above `room`; nothing is written if one of them is refused."""
        arrays, count = self._ring.conform(rows)
        self._ring.write_rows(self.count, arrays, count)
        if env_ids is not None:
            self._envs()[self.count : self.count + count] = env_ids
        if priorities is not None:
            if self._priorities is None:
                self._priorities = np.full(self.capacity, np.nan)
            self._priorities[self.count : self.count + count] = priorities
        if version is not None:
            self._note_version(count, version)
        self.count += count

    def reuse(self) -> None:
        """Forget the rows."""
        self.count, self._env_ids, self._priorities, self._versions = 0, None, None, None

    def rows(self) -> Rows:
        """Return the rows in it, as views of this memory."""
        ring = self._ring
        columns: Any = {name: cells[: self.count] for name, cells in ring.cells.items()}
        if ring.records is not None:
            columns = ring.records[: self.count]
        envs, priorities, versions = self._env_ids, self._priorities, self._versions
        return Rows(
            columns,
            None if envs is None else envs[: self.count],
            None if priorities is None else priorities[: self.count],
            None if versions is None else versions[: self.count],
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of memory."""
        ring = self._ring
        return ring.records.nbytes if ring.records is not None else sum(cells.nbytes for cells in ring.cells.values())

    def _envs(self) -> Ids:
        if self._env_ids is None:
            self._env_ids = np.zeros(self.capacity, np.int64)
        return self._env_ids

    def _note_version(self, count: int, version: int) -> None:
        if self._versions is None:
            self._versions = np.full(self.capacity, -1)
        self._versions[self.count : self.count + count] = version
