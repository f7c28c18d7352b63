"""EpisodeLinks: the order of rows within each episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.replay.rows.memory import Memory, RamMemory

Ids = NDArray[np.int64]

NO_ROW = -(1 << 31)
"""Replaces the first row of an episode that began in a gap or before it: no row is that far away."""

# Instead of a distance to the next row: there is none yet. Distances to a row of another episode are negative.
_OPEN = 0


class EpisodeLinks:
    """Successor and predecessor links of rows within episodes, for a ring of rows with global ids.

    Stored as distances in ids to the next and the previous row of the same environment, 4 bytes each. Environments may
    be interleaved in any order. The distance to the next row is set when that row arrives; all else is immutable.

    With `across`, links also lead from the last row of an episode to the first row of the next.

    Another process may read the same arrays through its own object. Its view is consistent if rows are written before
    they are linked, and if the rows of a draw were not overwritten during the read.
    """

    def __init__(self, capacity: int, memory: Memory | None = None, *, count_steps: bool = False) -> None:
        """Create links without rows, or open the links of another object in the same memory.

        Args:
            capacity: Capacity of the ring in rows.
            memory: Allocator of the arrays; ordinary memory if None.
            count_steps: Also store each row's position in its episode, and the distance to its first row, 4 bytes each.
        """
        arrays: Memory = memory or RamMemory(prefault=False)
        shape, dtype = (capacity,), np.int32 if capacity < 1 << 31 else np.int64
        self.capacity = capacity
        self._next = arrays.allocate("next_row", shape, dtype)
        self._previous = arrays.allocate("previous_row", shape, dtype)
        self._counts_steps = count_steps
        self._steps: NDArray[Any] = arrays.allocate("step", shape, dtype) if count_steps else np.empty(0, dtype)
        self._starts: NDArray[Any] = arrays.allocate("start", shape, dtype) if count_steps else np.empty(0, dtype)
        self._most = int(np.iinfo(dtype).max)  # cap of steps and distances, for episodes without end
        self._ended_mark = np.iinfo(dtype).min  # instead of a distance: the episode ended, and the next has not begun
        self._end = 0  # id after the newest row
        # environment -> its newest row, that row's step (-1 if the episode ended there), and the episode's first row
        self._last: dict[int, tuple[int, int, int]] = {}

    def add_one(self, row_id: int, env_id: int, has_ended: bool) -> None:
        """Link one row; equivalent to `add` with arrays of length 1, at a tenth of the cost."""
        slot = row_id % self.capacity
        last_id, step, start = self._last.get(env_id, (-1, -1, row_id))
        start = start if step >= 0 else row_id
        distance = row_id - last_id
        if last_id < 0 or distance >= self.capacity:
            distance = 0
        else:
            distance = distance if step >= 0 else -distance
            self._next[last_id % self.capacity] = distance
        self._previous[slot] = distance
        self._next[slot] = self._ended_mark if has_ended else _OPEN
        if self._counts_steps:
            self._steps[slot] = min(step + 1, self._most)
            self._starts[slot] = min(row_id - start, self._most)
        self._end = row_id + 1
        self._last[env_id] = (row_id, -1 if has_ended else step + 1, start)

    def add(self, ids: Ids, env_ids: ArrayLike, ended: ArrayLike) -> None:
        """Link rows that were written.

        Args:
            ids: int64 `[n]`, ascending, all new.
            env_ids: int64 `[n]`, the environment of each row.
            ended: bool `[n]`, True where the row ended its episode, by termination or truncation.
        """
        if not len(ids):
            return
        envs, ends = np.asarray(env_ids, np.int64), np.asarray(ended, np.bool_)
        order = np.argsort(envs, kind="stable")
        rows, envs, ends = ids[order], envs[order], ends[order]
        first = np.append(True, envs[1:] != envs[:-1])  # first row of its environment in this call
        before, follows = np.append(-1, np.where(first[1:], -1, rows[:-1])), np.append(False, ~(first[1:] | ends[:-1]))
        steps, starts = self._join(first, before, follows, rows, envs, ends)
        low = int(ids[-1]) + 1 - self.capacity
        alive = rows >= low
        distance = np.where(before >= max(low, 0), rows - before, 0)
        self._write(rows[alive], np.where(follows, distance, -distance)[alive], ends[alive])
        if self._counts_steps:
            self._steps[rows[alive] % self.capacity] = np.minimum(steps, self._most)[alive]
            self._starts[rows[alive] % self.capacity] = np.minimum(rows - starts, self._most)[alive]
        self._end = int(ids[-1]) + 1

    def next_ids(self, ids: Ids, *, across: bool = False) -> Ids:
        """Return each row's successor, in the shape of `ids`: -1 if the episode ended or the successor has not arrived.

        An id of -1 stays -1, so that calls can be chained.
        """
        distance = self._next[ids % self.capacity]
        if across:
            distance = np.where(distance == self._ended_mark, 0, np.abs(distance))
        return np.where((distance > 0) & (ids >= 0), ids + distance, -1)

    def previous_ids(self, ids: Ids, low: int = 0, *, across: bool = False) -> Ids:
        """Return each row's predecessor, in the shape of `ids`: -1 at the start of an episode, or if it is below `low`.

        An id of -1 stays -1.
        """
        distance = self._previous[ids % self.capacity]
        previous = ids - (np.abs(distance) if across else distance)
        return np.where((previous < ids) & (previous >= low), previous, -1)

    def following(self, ids: Ids, length: int, *, across: bool = False) -> Ids:
        """Return int64 `[n, length]`: each of the rows `[n]` and its successors in the episode, padded with -1."""
        chain = np.empty((length, len(ids)), np.int64)
        chain[0] = ids
        for index in range(1, length):
            chain[index] = self.next_ids(chain[index - 1], across=across)
        return chain.T

    def travel(self, ids: Ids, limit: Ids, *, low: int, backwards: bool = False) -> tuple[Ids, Ids]:
        """Move from rows to other rows of the same episode.

        With `count_steps`, rows of regularly interleaved environments are reached in a few leaps. Otherwise it moves
        row by row.

        Args:
            ids: int64 `[n]`, the start rows.
            limit: int64 `[n]`, number of rows to move; fewer if the episode is shorter.
            low: Id of the oldest row in the buffer.
            backwards: Move towards the start of the episode.

        Returns:
            The rows reached, and the number of rows moved, both int64 `[n]`.
        """
        current_ids, num_moved = ids.copy(), np.zeros(len(ids), np.int64)
        max_moves = min(int(limit.max(initial=0)), self._end - low) if self._counts_steps else 0
        for power in range(max_moves.bit_length() - 1, -1, -1):
            candidates = np.flatnonzero(limit - num_moved >= 1 << power)
            target = self._leap(current_ids[candidates], 1 << power, low, backwards=backwards)
            arrived_indices = candidates[target >= 0]
            current_ids[arrived_indices] = target[target >= 0]
            num_moved[arrived_indices] += 1 << power
        moving_indices = np.flatnonzero(num_moved < limit)
        while moving_indices.size:
            target = (
                self.previous_ids(current_ids[moving_indices], low)
                if backwards
                else self.next_ids(current_ids[moving_indices])
            )
            moving_indices, target = moving_indices[target >= 0], target[target >= 0]
            current_ids[moving_indices] = target
            num_moved[moving_indices] += 1
            moving_indices = moving_indices[num_moved[moving_indices] < limit[moving_indices]]
        return current_ids, num_moved

    def has_ended(self, ids: Ids) -> NDArray[np.bool_]:
        """Return whether each row ended its episode; False as well for an open row that has no successor yet."""
        return self._next[ids % self.capacity] < 0

    def steps(self, ids: Ids) -> Ids:
        """Return each row's position in its episode, from 0; requires `count_steps`."""
        assert self._counts_steps, "create EpisodeLinks with count_steps=True"  # noqa: S101 - the caller's mistake
        return self._steps[ids % self.capacity].astype(np.int64)

    def interrupt(self, env_id: int | None = None, *, lost_rows: bool = False) -> None:
        """Start a new episode with the next row of an environment, or of all, as after a worker restart.

        With `lost_rows`, that row has no predecessor but a position above 0, like a row whose predecessor was lost.
        """
        for env in list(self._last) if env_id is None else [env_id]:
            step = self._last.pop(env, (-1, -1, -1))[1]
            if lost_rows:
                self._last[env] = (-1, max(step, 0), NO_ROW)

    def rows(self, first_id: int, count: int) -> dict[str, NDArray[Any]]:
        """Return copies of the immutable data of rows, for `restore_rows`: arrays `[count]` by name."""
        slots = np.arange(first_id, first_id + count) % self.capacity
        rows = {"previous": self._previous[slots], "ended": self._next[slots] < 0}
        if self._counts_steps:
            rows |= {"step": self._steps[slots], "start": self._starts[slots]}
        return rows

    def restore_rows(
        self, first_id: int, rows: Mapping[str, NDArray[Any]], low: int = 0, *, is_cut: bool = False
    ) -> None:
        """Restore the result of `rows`, oldest first, before the next `add`.

        Args:
            first_id: Id of the first row.
            rows: Arrays `[n]` by name.
            low: Id of the oldest row in the buffer; earlier rows are skipped.
            is_cut: Whether there are rows below `low`, all of other episodes.
        """
        ids = np.arange(first_id, first_id + len(rows["previous"]))
        is_alive = ids >= max(low, first_id + len(ids) - self.capacity)
        ids, distance = ids[is_alive], rows["previous"][is_alive].astype(np.int64)
        self._write(ids, np.where(ids - np.abs(distance) >= low, distance, 0), rows["ended"][is_alive])
        if self._counts_steps:
            self._steps[ids % self.capacity] = rows["step"][is_alive]
            starts = rows["start"][is_alive]
            # two rows whose episodes began below `low` may belong to different episodes, so the start is unknown
            self._starts[ids % self.capacity] = np.where(ids - starts < low, self._most, starts) if is_cut else starts
        self._end = max(self._end, first_id + len(rows["previous"]))

    def state_dict(self) -> dict[str, Any]:
        """Return the newest row of each environment, as arrays by name; `rows` returns the rows themselves."""
        newest_rows = [(env_id, *newest) for env_id, newest in self._last.items()]
        return {"last": np.array(newest_rows, np.int64).reshape(-1, 4)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, in addition to `restore_rows`."""
        self._last = {env_id: (row, step, start) for env_id, row, step, start in np.asarray(state["last"]).tolist()}

    def _leap(self, ids: Ids, length: int, low: int, *, backwards: bool) -> Ids:
        """Return the row `length` rows away if all distances on the way equal the first one; otherwise -1."""
        slots = ids % self.capacity
        sign = -1 if backwards else 1
        distance = (self._previous if backwards else self._next)[slots].astype(np.int64)
        target = ids + sign * distance * length
        is_valid = (distance > 0) & (target >= low) & (target < self._end)
        goals = np.where(is_valid, target, ids) % self.capacity
        # the target is in the same episode if it has the same first row and the right position
        is_valid &= target - self._starts[goals] == ids - self._starts[slots]
        is_valid &= self._steps[goals] == self._steps[slots].astype(np.int64) + sign * length
        return np.where(is_valid, target, -1)

    def _join(
        self,
        is_first: NDArray[np.bool_],
        previous_rows: Ids,
        follows: NDArray[np.bool_],
        rows: Ids,
        envs: Ids,
        ends: NDArray[np.bool_],
    ) -> tuple[Ids, Ids]:
        """Join the rows, sorted by environment, to rows of earlier calls; return their steps and starts."""
        indices = np.arange(len(rows))
        begin_indices = np.maximum.accumulate(np.where(follows, 0, indices))
        steps, starts = indices - begin_indices, rows[begin_indices]
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(rows)) - 1
        for start, end, env_id in zip(firsts.tolist(), lasts.tolist(), envs[firsts].tolist(), strict=True):
            previous_rows[start], step, first_row = self._last.get(env_id, (-1, -1, -1))
            if step >= 0:
                follows[start] = True
                break_offsets = np.flatnonzero(~follows[start : end + 1])
                joined_slice = slice(start, start + int(break_offsets[0]) if break_offsets.size else end + 1)
                steps[joined_slice] += step + 1
                starts[joined_slice] = first_row
            self._last[env_id] = (int(rows[end]), -1 if ends[end] else int(steps[end]), int(starts[end]))
        return steps, starts

    def _write(self, rows: Ids, distance: Ids, ended: NDArray[np.bool_]) -> None:
        """Write the links of rows; `distance` to the previous row: negative if of another episode, 0 without one."""
        slots = rows % self.capacity
        self._next[slots] = np.where(ended, self._ended_mark, _OPEN)
        self._previous[slots] = distance
        is_linked = distance != 0
        self._next[(rows[is_linked] - np.abs(distance[is_linked])) % self.capacity] = distance[is_linked]
