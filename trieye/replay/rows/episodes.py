"""EpisodeLinks: which row follows which in the same episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.replay.rows.memory import Memory, RamMemory

Ids = NDArray[np.int64]

# In place of a distance to the next row: not there yet. Distances to a row of another episode are negative.
_OPEN = 0


class EpisodeLinks:
    """Which row follows which in the same episode, for a ring of rows with global ids.

    Kept as distances in ids to the next and to the previous row of the same environment, 4 bytes each. Environments may
    be interleaved in any order. The distance to the next row becomes known when that row comes; everything else about
    a row never changes.

    Asked for rows `across` episodes, it also steps from the last row of an episode to the first one of the next.

    Another process may read the same arrays through an object of its own. It sees a consistent picture if rows are
    written before they are linked, and the rows of a draw were not overwritten meanwhile.
    """

    def __init__(self, capacity: int, memory: Memory | None = None, *, count_steps: bool = False) -> None:
        """Make links without rows, or look at those that another object keeps in the same memory.

        Args:
            capacity: Rows of the ring.
            memory: Where the arrays lie; ordinary memory if None.
            count_steps: Keep also the place of each row in its episode, and the distance to the episode's first row; 4
                bytes more each.
        """
        arrays: Memory = memory or RamMemory(prefault=False)
        shape, dtype = (capacity,), np.int32 if capacity < 1 << 31 else np.int64
        self.capacity = capacity
        self._next = arrays.allocate("next_row", shape, dtype)
        self._previous = arrays.allocate("previous_row", shape, dtype)
        self._steps = arrays.allocate("step", shape, dtype) if count_steps else None
        self._starts = arrays.allocate("start", shape, dtype) if count_steps else None
        self._most = int(np.iinfo(dtype).max)  # steps and distances beyond it, of an episode without end, stay there
        self._ended = np.iinfo(dtype).min  # in place of a distance: ended, and the next episode has not begun
        self._end = 0  # id after the newest row
        # environment -> its newest row, the step of that, or -1 if the episode ended there, and its first row
        self._last: dict[int, tuple[int, int, int]] = {}

    def add_one(self, row_id: int, env_id: int, ended: bool) -> None:
        """Link one row; the same as `add` with arrays of length 1, at a tenth of the price."""
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
        self._next[slot] = self._ended if ended else _OPEN
        if self._steps is not None and self._starts is not None:
            self._steps[slot] = min(step + 1, self._most)
            self._starts[slot] = min(row_id - start, self._most)
        self._end = row_id + 1
        self._last[env_id] = (row_id, -1 if ended else step + 1, start)

    def add(self, ids: Ids, env_ids: ArrayLike, ended: ArrayLike) -> None:
        """Link rows that were written.

        Args:
            ids: int64 `[n]`, ascending, each one new.
            env_ids: int64 `[n]`, the environment that each row comes from.
            ended: bool `[n]`, whether the episode ended with this row, terminated or truncated.
        """
        if not len(ids):
            return
        envs, ends = np.asarray(env_ids, np.int64), np.asarray(ended, np.bool_)
        order = np.argsort(envs, kind="stable")
        rows, envs, ends = ids[order], envs[order], ends[order]
        first = np.append(True, envs[1:] != envs[:-1])  # of its environment in this call
        before, follows = np.append(-1, np.where(first[1:], -1, rows[:-1])), np.append(False, ~(first[1:] | ends[:-1]))
        steps, starts = self._join(first, before, follows, rows, envs, ends)
        low = int(ids[-1]) + 1 - self.capacity
        alive = rows >= low
        distance = np.where(before >= max(low, 0), rows - before, 0)
        self._write(rows[alive], np.where(follows, distance, -distance)[alive], ends[alive])
        if self._steps is not None and self._starts is not None:
            self._steps[rows[alive] % self.capacity] = np.minimum(steps, self._most)[alive]
            self._starts[rows[alive] % self.capacity] = np.minimum(rows - starts, self._most)[alive]
        self._end = int(ids[-1]) + 1

    def next_ids(self, ids: Ids, *, across: bool = False) -> Ids:
        """Return the row that follows each row, of any shape: -1 if the episode ended, or the row is not there yet.

        An id of -1 stays -1, so that calls can be chained.
        """
        distance = self._next[ids % self.capacity]
        if across:
            distance = np.where(distance == self._ended, 0, np.abs(distance))
        return np.where((distance > 0) & (ids >= 0), ids + distance, -1)

    def previous_ids(self, ids: Ids, low: int = 0, *, across: bool = False) -> Ids:
        """Return the row before each row, of any shape: -1 if the episode began, or it is below `low`, thus gone.

        An id of -1 stays -1.
        """
        distance = self._previous[ids % self.capacity]
        before = ids - (np.abs(distance) if across else distance)
        return np.where((before < ids) & (before >= low), before, -1)

    def following(self, ids: Ids, length: int, *, across: bool = False) -> Ids:
        """Return int64 `[n, length]`: each of the rows `[n]`, then those after it in its episode, then -1."""
        chain = np.empty((length, len(ids)), np.int64)
        chain[0] = ids
        for place in range(1, length):
            chain[place] = self.next_ids(chain[place - 1], across=across)
        return chain.T

    def travel(self, ids: Ids, limit: Ids, *, low: int, backwards: bool = False) -> tuple[Ids, Ids]:
        """Go from rows to others of the same episode.

        With `count_steps`, rows of environments that take regular turns are reached in a few leaps; only where they do
        not, or without the steps, it goes from row to row.

        Args:
            ids: int64 `[n]`, where to begin.
            limit: int64 `[n]`, rows to go; as far as there are any if so many are not there.
            low: Id of the oldest row of the buffer.
            backwards: Towards the beginning of the episode.

        Returns:
            The rows reached, and how many rows they are away, both int64 `[n]`.
        """
        at, gone = ids.copy(), np.zeros(len(ids), np.int64)
        most = min(int(limit.max(initial=0)), self._end - low) if self._steps is not None else 0
        for power in range(most.bit_length() - 1, -1, -1):
            wanted = np.flatnonzero(limit - gone >= 1 << power)
            target = self._leap(at[wanted], 1 << power, low, backwards=backwards)
            reached = wanted[target >= 0]
            at[reached] = target[target >= 0]
            gone[reached] += 1 << power
        going = np.flatnonzero(gone < limit)
        while going.size:
            target = self.previous_ids(at[going], low) if backwards else self.next_ids(at[going])
            going, target = going[target >= 0], target[target >= 0]
            at[going] = target
            gone[going] += 1
            going = going[gone[going] < limit[going]]
        return at, gone

    def has_ended(self, ids: Ids) -> NDArray[np.bool_]:
        """Return whether an episode ended with each row; False too while the next row is not there yet."""
        ended: NDArray[np.bool_] = self._next[ids % self.capacity] < 0
        return ended

    def steps(self, ids: Ids) -> Ids:
        """Return the place of each row in its episode, from 0 on; only with `count_steps`."""
        if self._steps is None:
            raise AssertionError("these links were made without count_steps")
        return self._steps[ids % self.capacity].astype(np.int64)

    def interrupt(self, env_id: int | None = None) -> None:
        """Let the next row of an environment, or of all, begin an episode, as after the restart of a worker."""
        if env_id is None:
            self._last.clear()
        else:
            self._last.pop(env_id, None)

    def rows(self, first_id: int, count: int) -> dict[str, NDArray[Any]]:
        """Return copies of what never changes about rows, which `restore_rows` takes: arrays `[count]` by name."""
        slots = np.arange(first_id, first_id + count) % self.capacity
        rows = {"previous": self._previous[slots], "ended": self._next[slots] < 0}
        if self._steps is not None and self._starts is not None:
            rows |= {"step": self._steps[slots], "start": self._starts[slots]}
        return rows

    def restore_rows(
        self, first_id: int, rows: Mapping[str, NDArray[Any]], low: int = 0, *, is_cut: bool = False
    ) -> None:
        """Put rows back that `rows` returned; oldest first, and before the next `add`.

        Args:
            first_id: Id of the first one.
            rows: Arrays `[n]` by name.
            low: Id of the oldest row of the buffer; those before it are left out.
            is_cut: There are other rows below `low`, and none of them is of the same episode.
        """
        ids = np.arange(first_id, first_id + len(rows["previous"]))
        kept = ids >= max(low, first_id + len(ids) - self.capacity)
        ids, distance = ids[kept], rows["previous"][kept].astype(np.int64)
        self._write(ids, np.where(ids - np.abs(distance) >= low, distance, 0), rows["ended"][kept])
        if self._steps is not None and self._starts is not None:
            self._steps[ids % self.capacity] = rows["step"][kept]
            starts = rows["start"][kept]
            # of two rows of episodes that began elsewhere, nobody knows whether that was one episode
            self._starts[ids % self.capacity] = np.where(ids - starts < low, self._most, starts) if is_cut else starts
        self._end = max(self._end, first_id + len(rows["previous"]))

    def state_dict(self) -> dict[str, Any]:
        """Return the newest row of each environment, as arrays by name; the rows themselves come from `rows`."""
        last = [(env_id, *newest) for env_id, newest in self._last.items()]
        return {"last": np.array(last, np.int64).reshape(-1, 4)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, in addition to `restore_rows`."""
        self._last = {env_id: (row, step, start) for env_id, row, step, start in np.asarray(state["last"]).tolist()}

    def _leap(self, ids: Ids, length: int, low: int, *, backwards: bool) -> Ids:
        """Return the row `length` rows away if rows lie as far apart as the first two on the way; -1 if not."""
        if self._steps is None or self._starts is None:
            raise AssertionError("these links were made without count_steps")
        slots = ids % self.capacity
        sign = -1 if backwards else 1
        distance = (self._previous if backwards else self._next)[slots].astype(np.int64)
        target = ids + sign * distance * length
        there = (distance > 0) & (target >= low) & (target < self._end)
        goals = np.where(there, target, ids) % self.capacity
        # the same episode, as that has one first row, and so many rows of it lie between
        there &= target - self._starts[goals] == ids - self._starts[slots]
        there &= self._steps[goals] == self._steps[slots].astype(np.int64) + sign * length
        return np.where(there, target, -1)

    def _join(
        self,
        first: NDArray[np.bool_],
        before: Ids,
        follows: NDArray[np.bool_],
        rows: Ids,
        envs: Ids,
        ends: NDArray[np.bool_],
    ) -> tuple[Ids, Ids]:
        """Tie the rows, which are sorted by environment, to those of earlier calls; return their steps and starts."""
        places = np.arange(len(rows))
        begins = np.maximum.accumulate(np.where(follows, 0, places))
        steps, starts = places - begins, rows[begins]
        firsts = np.flatnonzero(first)
        lasts = np.append(firsts[1:], len(rows)) - 1
        for start, end, env_id in zip(firsts.tolist(), lasts.tolist(), envs[firsts].tolist(), strict=True):
            before[start], step, first_row = self._last.get(env_id, (-1, -1, -1))
            if step >= 0:
                follows[start] = True
                others = np.flatnonzero(~follows[start : end + 1])
                joined = slice(start, start + int(others[0]) if others.size else end + 1)
                steps[joined] += step + 1
                starts[joined] = first_row
            self._last[env_id] = (int(rows[end]), -1 if ends[end] else int(steps[end]), int(starts[end]))
        return steps, starts

    def _write(self, rows: Ids, distance: Ids, ended: NDArray[np.bool_]) -> None:
        """Write what is known of rows; `distance` to the one before, negative from another episode, or 0."""
        slots = rows % self.capacity
        self._next[slots] = np.where(ended, self._ended, _OPEN)
        self._previous[slots] = distance
        linked = distance != 0
        self._next[(rows[linked] - np.abs(distance[linked])) % self.capacity] = distance[linked]
