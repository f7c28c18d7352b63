"""NextRows: the observation after each row, read from the row that follows, and kept only where none does."""

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.rows.memory import Memory
from trieye.replay.rows.schema import PREFIX, Column

Ids = NDArray[np.int64]


class NextRows:
    """The values of `next_<key>` that no later row holds as its `<key>`.

    A row's next observation is a copy of the observation of the row that follows it in its environment. It is kept
    here while that row is not there, and for good where the episode ended or the two differ, bit by bit; so what is
    read is always what was added. Memory is used for as many values as are kept at the same time.

    Args:
        columns: The columns `next_<key>`, by that name.
        capacity: Rows of the ring.
        memory: Where the values live.
    """

    def __init__(self, columns: Mapping[str, Column], capacity: int, memory: Memory) -> None:
        self.columns = dict(columns)
        self.capacity = capacity
        self._place = memory.allocate("next.place", (capacity,), np.int32 if capacity < 1 << 31 else np.int64)
        # of a full capacity's size, of which only the pages in use cost memory: the lowest free place comes first
        self._values = {
            name: memory.allocate(f"next.{name}", (capacity, *column.shape), column.dtype, prefault=False)
            for name, column in self.columns.items()
        }
        self._free: list[int] = []
        self._end = 0
        self._newest: dict[int, int] = {}  # environment -> its newest row, if that has a value here and may lose it

    def conform(self, row: Mapping[str, Any], *, rows: int | None) -> dict[str, NDArray[Any]]:
        """Return the values of the columns in `row` as arrays; see `Column.conform`."""
        return {name: column.conform(row[name], rows=rows) for name, column in self.columns.items()}

    def release(self, slots: NDArray[np.int64]) -> None:
        """Take note that the rows in `slots` are about to be overwritten."""
        for place in self._place[slots][self._place[slots] > 0].tolist():
            heapq.heappush(self._free, place)
        self._place[slots] = 0

    def add_one(self, row_id: int, env_id: int, row: Mapping[str, Any], values: Mapping[str, Any], ended: bool) -> None:
        """Keep the next observation of one row, which lies in the ring by now.

        Args:
            row_id: Id of the row.
            env_id: The environment that it comes from.
            row: The observations of the row by `next_<key>`: arrays of the columns' dtypes.
            values: The next observations by `next_<key>`, as `conform` returned them.
            ended: Whether the episode ended with this row.
        """
        self._join(row_id, env_id, row)
        self._keep(row_id, values)
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
        """Keep the next observations of rows `[n]`, not more than the capacity; arguments as those of `add_one`.

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
        kept: list[int] = []
        newest: dict[int, int] = {}
        for index in reversed(range(len(envs))):
            after = following.get(envs[index])
            following[envs[index]] = index
            if after is None and not ends[index]:
                newest[envs[index]] = row_ids[index]
            if after is None or ends[index] or not self._is_next(values, index, partners, after):
                kept.append(index)
        for env_id, index in following.items():
            self._join(row_ids[index], env_id, {name: array[index] for name, array in partners.items()})
        for index in reversed(kept):
            self._keep(row_ids[index], {name: array[index] for name, array in values.items()})
        self._newest |= newest

    def places(self, ids: Ids) -> NDArray[np.signedinteger[Any]]:
        """Return where the values of rows are kept, `[n]`, 0 for those that the next row holds."""
        return self._place[ids % self.capacity]

    def fill(self, name: str, places: NDArray[np.signedinteger[Any]], out: NDArray[Any]) -> None:
        """Write the values that are kept into those of `[n, ...]` that have a place."""
        here = np.flatnonzero(places)
        if here.size:
            out[here] = self._values[name][places[here] - 1]

    def interrupt(self, env_id: int | None = None) -> None:
        """Take note that no row follows the newest one of an environment, or of all."""
        if env_id is None:
            self._newest.clear()
        else:
            self._newest.pop(env_id, None)

    def clear(self) -> None:
        """Forget all rows, after `interrupt`."""
        self._place[:] = 0
        self._free.clear()
        self._end = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes of memory that would be in use if every row had a value here."""
        return self._place.nbytes + sum(kept.nbytes for kept in self._values.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of memory in use."""
        return self._place.nbytes + self._end * sum(kept[:1].nbytes for kept in self._values.values())

    def kept_for_good(self, first_id: int, count: int, ended: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Return what is kept of rows whose episode ended: values by name, and under `""` which rows, from 0 on."""
        places = self.places(np.arange(first_id, first_id + count))
        rows = np.flatnonzero((places > 0) & ended)
        return {"": rows, **{name: kept[places[rows] - 1] for name, kept in self._values.items()}}

    def _is_next(
        self, values: Mapping[str, NDArray[Any]], index: int, rows: Mapping[str, NDArray[Any]], after: int
    ) -> bool:
        return all(_is_same(values[name][index], rows[name][after]) for name in self.columns)

    def _join(self, row_id: int, env_id: int, row: Mapping[str, Any]) -> None:
        """Let go of what is kept of the row before, if this one holds it."""
        last_id = self._newest.pop(env_id, -1)
        if last_id < 0 or last_id <= row_id - self.capacity:
            return
        slot = last_id % self.capacity
        place = int(self._place[slot])
        if place and all(_is_same(self._values[name][place - 1], row[name]) for name in self.columns):
            self._place[slot] = 0  # before its value is overwritten: a reader in another process looks twice
            heapq.heappush(self._free, place)

    def _keep(self, row_id: int, values: Mapping[str, Any]) -> None:
        place = heapq.heappop(self._free) if self._free else self._end + 1
        self._end = max(self._end, place)
        for name, kept in self._values.items():
            kept[place - 1] = values[name]
        self._place[row_id % self.capacity] = place

    def state_dict(self, low: int, total: int, ended: NDArray[np.bool_]) -> dict[str, Any]:
        """Return what is kept of the other rows, and which rows are the newest.

        Args:
            low: Id of the oldest row.
            total: Id after the newest row.
            ended: bool `[total - low]`, whether the episode ended with the row.
        """
        places = self.places(np.arange(low, total))
        rows = np.flatnonzero((places > 0) & ~ended)
        newest = np.array(list(self._newest.items()), np.int64).reshape(-1, 2)
        values = {name: kept[places[rows] - 1] for name, kept in self._values.items()}
        return {"ids": rows + low, "values": values, "newest": newest}

    def restore(self, ids: Ids, values: Mapping[str, NDArray[Any]]) -> None:
        """Put values back that were kept of rows of a ring without any."""
        places = np.arange(self._end + 1, self._end + 1 + len(ids))
        self._place[ids % self.capacity] = places
        for name, kept in self._values.items():
            kept[self._end : self._end + len(ids)] = values[name]
        self._end += len(ids)

    def load_state_dict(self, state: Mapping[str, Any], low: int) -> None:
        """Take over what `state_dict` returned, of the rows from `low` on, after `restore`."""
        ids = np.asarray(state["ids"])
        here = np.flatnonzero(ids >= low)
        self.restore(ids[here], {name: np.asarray(values)[here] for name, values in state["values"].items()})
        self._newest = dict(np.asarray(state["newest"]).tolist())


def _is_same(one: Any, other: Any) -> bool:
    # as bytes: a comparison of floats would take -0.0 for 0.0
    return bool(one.tobytes() == other.tobytes())
