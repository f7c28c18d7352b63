"""NextRows: the observation after each row, stored only where the following row does not contain it."""

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.rows.memory import Memory
from trieye.replay.rows.schema import PREFIX, Column

Ids = NDArray[np.int64]


class NextRows:
    """The values of `next_<key>` that no later row contains as its `<key>`.

    A row's next observation equals the observation of the following row of its environment. It is stored here until
    that row arrives, and permanently where the episode ended or the two differ bitwise, so reads always return the
    added value. Memory use is proportional to the number of values stored at the same time.

    Args:
        columns: The columns `next_<key>`, by that name.
        capacity: Capacity of the ring in rows.
        memory: Allocator of the arrays.
    """

    def __init__(self, columns: Mapping[str, Column], capacity: int, memory: Memory) -> None:
        self.columns = dict(columns)
        self.capacity = capacity
        self._value_slots = memory.allocate("next.place", (capacity,), np.int32 if capacity < 1 << 31 else np.int64)
        # allocated at full capacity, but only the pages in use cost memory: the lowest free slot is used first
        self._values = {
            name: memory.allocate(f"next.{name}", (capacity, *column.shape), column.dtype, prefault=False)
            for name, column in self.columns.items()
        }
        self._free: list[int] = []
        self._end = 0
        self._newest: dict[int, int] = {}  # environment -> its newest row, if its stored value may become redundant

    def conform(self, row: Mapping[str, Any], *, rows: int | None) -> dict[str, NDArray[Any]]:
        """Return the values of the columns in `row` as arrays; see `Column.conform`."""
        return {name: column.conform(row[name], rows=rows) for name, column in self.columns.items()}

    def release(self, ring_slots: NDArray[np.int64]) -> None:
        """Release the values of rows in these ring slots, which are about to be overwritten."""
        value_slots = self._value_slots[ring_slots]
        for value_slot in value_slots[value_slots > 0].tolist():
            heapq.heappush(self._free, value_slot)
        self._value_slots[ring_slots] = 0

    def add_one(self, row_id: int, env_id: int, row: Mapping[str, Any], values: Mapping[str, Any], ended: bool) -> None:
        """Store the next observation of one row, which is already in the ring.

        Args:
            row_id: Id of the row.
            env_id: The row's environment.
            row: The observations of the row by `next_<key>`: arrays of the columns' dtypes.
            values: The next observations by `next_<key>`, as returned by `conform`.
            ended: Whether the row ended its episode.
        """
        self._join(row_id, env_id, row)
        self._store(row_id, values)
        if not ended:
            self._newest[env_id] = row_id

    def add(
        self,
        ids: Ids,
        env_ids: NDArray[np.int64],
        rows: Mapping[str, NDArray[Any]],
        values: Mapping[str, NDArray[Any]],
        ended: NDArray[np.bool_],
    ) -> None:
        """Store the next observations of rows `[n]`, at most `capacity`; arguments as in `add_one`.

        Args:
            ids: int64 `[n]`.
            env_ids: int64 `[n]`.
            rows: All columns of the ring, arrays `[n, ...]` by key.
            values: Arrays `[n, ...]` by `next_<key>`.
            ended: bool `[n]`.
        """
        self.release(ids % self.capacity)
        partners = {name: rows[name.removeprefix(PREFIX)] for name in self.columns}
        envs, row_ids, ends = env_ids.tolist(), ids.tolist(), ended.tolist()
        following: dict[int, int] = {}  # environment -> its next row
        stored_indices: list[int] = []
        newest: dict[int, int] = {}
        for index in reversed(range(len(envs))):
            next_index = following.get(envs[index])
            following[envs[index]] = index
            if next_index is None and not ends[index]:
                newest[envs[index]] = row_ids[index]
            is_last = next_index is None or ends[index]
            if is_last or not all(_is_same(values[name][index], partners[name][next_index]) for name in self.columns):
                stored_indices.append(index)
        for env_id, index in following.items():
            self._join(row_ids[index], env_id, {name: array[index] for name, array in partners.items()})
        for index in reversed(stored_indices):
            self._store(row_ids[index], {name: array[index] for name, array in values.items()})
        self._newest |= newest

    def value_slots(self, ids: Ids) -> NDArray[np.signedinteger[Any]]:
        """Return the slots of the rows' values, counted from 1, `[n]`; 0 if the next row contains the value."""
        return self._value_slots[ids % self.capacity]

    def fill(self, name: str, slots: NDArray[np.signedinteger[Any]], out: NDArray[Any]) -> None:
        """Write the stored values into the entries of `out`, `[n, ...]`, that have a slot."""
        indices = np.flatnonzero(slots)
        if indices.size:
            out[indices] = self._values[name][slots[indices] - 1]

    def interrupt(self, env_id: int | None = None) -> None:
        """Record that no row follows the newest row of an environment, or of all."""
        if env_id is None:
            self._newest.clear()
        else:
            self._newest.pop(env_id, None)

    def clear(self) -> None:
        """Remove all values, after `interrupt`."""
        self._value_slots[:] = 0
        self._free.clear()
        self._end = 0

    @property
    def size_bytes(self) -> int:
        """Size of the values in use, in bytes."""
        return self._end * sum(values[:1].nbytes for values in self._values.values())

    def permanent(self, first_id: int, count: int, ended: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return by name the values of rows that ended their episode, and under `""` these rows, counted from 0."""
        slots = self.value_slots(np.arange(first_id, first_id + count))
        rows = np.flatnonzero((slots > 0) & ended)
        return {"": rows, **{name: values[slots[rows] - 1] for name, values in self._values.items()}}

    def _join(self, row_id: int, env_id: int, row: Mapping[str, Any]) -> None:
        """Release the value of the previous row if this row contains it."""
        last_id = self._newest.pop(env_id, -1)
        if last_id < 0 or last_id <= row_id - self.capacity:
            return
        ring_slot = last_id % self.capacity
        slot = int(self._value_slots[ring_slot])
        if slot and all(_is_same(self._values[name][slot - 1], row[name]) for name in self.columns):
            # before its value is overwritten: a reader in another process checks it twice
            self._value_slots[ring_slot] = 0
            heapq.heappush(self._free, slot)

    def _store(self, row_id: int, values: Mapping[str, Any]) -> None:
        slot = heapq.heappop(self._free) if self._free else self._end + 1
        self._end = max(self._end, slot)
        for name, array in self._values.items():
            array[slot - 1] = values[name]
        self._value_slots[row_id % self.capacity] = slot

    def state_dict(self, low: int, total: int, ended: NDArray[np.bool_]) -> dict[str, Any]:
        """Return the values of rows in open episodes, and the newest rows.

        Args:
            low: Id of the oldest row.
            total: Id after the newest row.
            ended: bool `[total - low]`, True where the row ended its episode.
        """
        slots = self.value_slots(np.arange(low, total))
        rows = np.flatnonzero((slots > 0) & ~ended)
        newest = np.array(list(self._newest.items()), np.int64).reshape(-1, 2)
        values = {name: array[slots[rows] - 1] for name, array in self._values.items()}
        return {"ids": rows + low, "values": values, "newest": newest}

    def restore(self, ids: Ids, values: Mapping[str, NDArray[Any]]) -> None:
        """Restore stored values of rows of a ring without any."""
        slots = np.arange(self._end + 1, self._end + 1 + len(ids))
        self._value_slots[ids % self.capacity] = slots
        for name, array in self._values.items():
            array[self._end : self._end + len(ids)] = values[name]
        self._end += len(ids)

    def load_state_dict(self, state: Mapping[str, Any], low: int) -> None:
        """Restore a state for the rows from `low` on, after `restore`."""
        ids = np.asarray(state["ids"])
        present = np.flatnonzero(ids >= low)
        self.restore(ids[present], {name: np.asarray(values)[present] for name, values in state["values"].items()})
        self._newest = dict(np.asarray(state["newest"]).tolist())


def _is_same(one: Any, other: Any) -> bool:
    # as bytes, since a float comparison treats -0.0 and 0.0 as equal
    return bool(one.tobytes() == other.tobytes())
