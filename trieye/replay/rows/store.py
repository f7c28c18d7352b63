"""RowStore: rows with their links and their sampler; AttachedReplay: a read-only view of another process's rows."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.batch import Batch
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.memory import AttachedMemory, Memory, MemoryHandle
from trieye.replay.rows.next_rows import NextRows
from trieye.replay.rows.reader import RowReader
from trieye.replay.rows.ring import Ring
from trieye.replay.rows.schema import PREFIX, Column, Layout, RowOptions, check_keys
from trieye.replay.samplers.base import SampledIds, Sampler, below, spliced, with_history

COUNTERS = ("total", "low", "writing_until", "generation")
"""The int64 fields of the shared header, in this order; `generation` counts loaded states."""

_NO_ROWS = 1 << 62
_MAX_REDRAWS = 5


def _shared_counters(memory: Memory) -> NDArray[np.int64]:
    """Return the header: counters that the owner of shared memory updates for readers in other processes.

    `writing_until` is raised before rows are overwritten, `total` and `low` after rows were written. A reader's copies
    are intact if afterwards all their ids are at least `low` and at least `writing_until` minus the capacity.
    Processors that reorder writes (ARM) need the memory ordering of Python's own locks between two such steps.
    """
    return memory.allocate("header", (len(COUNTERS),), np.int64)


def _arrays_in(memory: Memory, layout: Layout) -> tuple[Ring, EpisodeLinks | None, NextRows | None]:
    """Return the rows and their links in a memory; owner and readers get the same arrays."""
    options, links = layout.options, None
    ring = Ring(layout.capacity, layout.stored, memory)
    if options.needs_episodes:
        links = EpisodeLinks(layout.capacity, memory, count_steps=options.walks or options.num_earlier > 0)
    return ring, links, NextRows(layout.paired, layout.capacity, memory) if layout.paired else None


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Validated rows that fit a store.

    Attributes:
        rows: Arrays `[count, ...]` by key, in the dtypes of the columns.
        count: Number of rows.
        env_ids: int64 `[count]`, the environment of each row.
        next_values: Arrays `[count, ...]` by `next_<key>`, for `NextRows`.
    """

    rows: Mapping[str, NDArray[Any]]
    count: int
    env_ids: NDArray[np.int64]
    next_values: Mapping[str, NDArray[Any]]


class RowStore:
    """The newest `capacity` rows, with global ids, and the sampler that chooses among them.

    Args:
        layout: How rows are stored and combined.
        memory: Allocator of the rows and links.
        make_sampler: Creates the sampler for the links.

    Attributes:
        sampler: Chooses among the rows.
        ring: The rows.
        links: Successor links, if the layout needs them.
        next_rows: The values of `next_<key>` that no row contains, with `dedup_next`.
        reader: Reads rows.
        total: Rows added over the lifetime of the buffer; the id of the next row.
    """

    def __init__(self, layout: Layout, memory: Memory, make_sampler: Callable[[EpisodeLinks | None], Sampler]) -> None:
        self.layout, self.memory = layout, memory
        self.capacity = layout.capacity
        self.ring, self.links, self.next_rows = _arrays_in(memory, layout)
        self.reader = RowReader(layout, self.ring, self.links, self.next_rows)
        self.sampler = make_sampler(self.links)
        is_told = type(self.sampler).added is not Sampler.added
        self._register = self.sampler.added if is_told else None
        self.total = 0
        self._forgotten = 0
        self._header = _shared_counters(memory).data if memory.handle is not None else None
        self._pid = os.getpid()
        self._is_plain = self._header is None and self.links is None

    @property
    def low(self) -> int:
        """Id of the oldest row."""
        return max(self._forgotten, self.total - self.capacity)

    def add(self, row: Mapping[str, Any], env_id: int) -> int:
        """Copy one row into the store and return its id.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value has the wrong shape or kind; no row was added.
        """
        row_id = self.total
        if self._is_plain:
            ring, slot = self.ring, row_id % self.capacity
            if ring.unread is not None or not ring.pack(slot, row):  # `ring.write_row`, without the cost of a call
                ring.write_checked(slot, row)
            self.total = row_id + 1
        else:
            self._announce(1)
            try:
                self._add_linked(row_id, row, env_id)
            finally:
                self._publish()
        if self._register is not None:
            self._register(row_id, 1)
        return row_id

    def extend(self, rows: Mapping[str, Any], env_ids: ArrayLike | None) -> NDArray[np.int64]:
        """Copy rows, arrays `[n, ...]` by key, into the store and return their ids, int64 `[n]`.

        Of more rows than the capacity, only the last `capacity` are stored.

        Raises:
            ConfigurationError: As for `add`, or the arrays differ in length; no row was added.
        """
        first_id = self.total
        count = self.ring.num_like_previous(rows) if self._is_plain and env_ids is None else 0
        if 0 < count <= self.capacity:
            self.ring.write_rows(first_id % self.capacity, rows, count)
            self.total = first_id + count
            if self._register is not None:
                self._register(first_id, count)
            return np.arange(first_id, first_id + count)
        return self.write(self.conform(rows, env_ids))

    def conform(self, rows: Mapping[str, ArrayLike], env_ids: ArrayLike | None) -> RowBlock:
        """Validate and convert rows for `write`; raises what `extend` raises."""
        own_columns, next_columns = self._split(rows)
        arrays, count = self.ring.conform(own_columns)
        values = {} if self.next_rows is None else self.next_rows.conform(next_columns, rows=count)
        return RowBlock(arrays, count, row_integers("env_ids", env_ids, count), values)

    def write(self, block: RowBlock, versions: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Copy rows into the store and return their ids, int64 `[n]`.

        Args:
            block: The rows.
            versions: int64 `[n]`, the model version of each row; the sampler's version if None.
        """
        first_id, count = self.total, block.count
        ids = np.arange(first_id, first_id + count)
        if not count:  # for example after a step that only reset environments
            return ids
        stored_slice = slice(max(count - self.capacity, 0), None)
        newest = {name: array[stored_slice] for name, array in block.rows.items()} if stored_slice.start else block.rows
        self._announce(count)
        self.ring.write_rows((first_id + stored_slice.start) % self.capacity, newest, count - stored_slice.start)
        if self.links is not None:
            is_end = self.ends_in(block.rows, count)
            self.links.add(ids, block.env_ids, is_end)
            if self.next_rows is not None:
                next_values = {name: array[stored_slice] for name, array in block.next_values.items()}
                self.next_rows.add(
                    ids[stored_slice], block.env_ids[stored_slice], newest, next_values, is_end[stored_slice]
                )
        self.total = first_id + count
        self._publish()
        if self._register is not None:
            self._register(first_id, count)
        if versions is not None:
            self.sampler.set_row_versions(ids[stored_slice], versions[stored_slice])
        return ids

    def draw(self, n: int, rng: np.random.Generator, *, above: int = 0) -> SampledIds:
        """Choose `n` rows or sequences, below the id `above` only if a few attempts find no others."""
        draw = self._draw(n, rng)
        for _ in range(_MAX_REDRAWS if above else 0):
            is_late = below(draw, above)
            if not is_late.any():
                break
            self.sampler.discarded(draw.ids.reshape(len(draw), -1)[is_late, 0], for_good=False)
            draw = spliced(draw, is_late, self._draw(int(np.count_nonzero(is_late)), rng))
        return draw

    def _draw(self, n: int, rng: np.random.Generator) -> SampledIds:
        low, total = self.low, self.total
        if not self.layout.num_earlier:
            return self.sampler.draw(n, low, total, rng)
        try:
            draw = self.sampler.draw(n, low, total, rng)
            lacks = partial(self.reader.lacks_history, low=low)
            return with_history(draw, lacks, self.sampler, rng, low=low, high=total)
        except ReplayTimeoutError as error:
            raise ReplayTimeoutError(
                f"{error}, or raise replay.capacity: rows that lack frames of their stack are not drawn"
            ) from error

    def interrupt(self, env_id: int | None = None, *, lost_rows: bool = False) -> None:
        """Start a new episode with the next row of an environment, or of all; see `ReplayBuffer.interrupt`."""
        if self.links is not None:
            self.links.interrupt(env_id, lost_rows=lost_rows and self.layout.num_earlier > 0)
        if self.next_rows is not None:
            self.next_rows.interrupt(env_id)

    def clear(self) -> None:
        """Remove all rows; ids continue."""
        self._forgotten = self.total
        self.interrupt()
        if self.next_rows is not None:
            self.next_rows.clear()
        self._publish()
        self.sampler.forgot(self.low)

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides the rows: columns, counters, open episodes, next observations that may change."""
        links, next_rows, low = self.links, self.next_rows, self.low
        next_values = None
        if links is not None and next_rows is not None:
            next_values = next_rows.state_dict(low, self.total, links.has_ended(np.arange(low, self.total)))
        return {
            "columns": {name: column.spec for name, column in self.layout.columns.items()},
            "options": self.layout.options.spec,
            "total": self.total,
            "low": low,
            "links": None if links is None else links.state_dict(),
            "next_rows": next_values,
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], low: int) -> None:
        """Restore a state after the rows from `low` on were written to their slots."""
        self.total, self._forgotten = int(state["total"]), low
        if self.links is not None and state["links"] is not None:
            self.links.load_state_dict(state["links"])
        if self.next_rows is not None:
            self.next_rows.load_state_dict(state["next_rows"], low)
        if self._header is not None:
            self._header[3] += 1
        self._publish()
        self.sampler.load_state_dict(state["sampler"])
        self.sampler.forgot(low)

    def close(self) -> None:
        """Release the memory; readers in other processes then see no rows. A forked child does not affect readers."""
        if self._header is not None and self._pid == os.getpid():
            self._header[1] = _NO_ROWS
        self.memory.close()

    def check_process(self) -> None:
        """Reject a forked child, which could write to its parent's rows or read rows during a write.

        Raises:
            ReplayClosedError: This process is a forked child.
        """
        if self._header is not None and self._pid != os.getpid():
            raise ReplayClosedError(
                f"this process was forked by the owner of the replay buffer ({self._pid}) and shares its rows: "
                "take buffer.handle there before the fork, and read the rows here through ReplayBuffer.attach(handle)"
            )

    @property
    def size_bytes(self) -> int:
        """Size of the rows and their links in bytes; of stored next observations, only the memory in use."""
        return self.memory.size_bytes + (self.next_rows.size_bytes if self.next_rows else 0)

    def _split(self, row: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
        paired = self.layout.paired
        if not paired:
            return row, {}
        if row.keys() != self.layout.columns.keys():
            check_keys(row, self.layout.columns)
        return {key: value for key, value in row.items() if key not in paired}, {key: row[key] for key in paired}

    def _add_linked(self, row_id: int, row: Mapping[str, Any], env_id: int) -> None:
        if type(env_id) is not int or not -(1 << 63) <= env_id < 1 << 63:
            env_id = int(row_integers("env_ids", [env_id], 1)[0])
        own_columns, next_columns = self._split(row)
        links, next_rows, cells, slot = self.links, self.next_rows, self.ring.cells, row_id % self.capacity
        next_values = {} if next_rows is None else next_rows.conform(next_columns, rows=None)
        self.ring.write_row(slot, own_columns)  # the first change, and the last step that can fail
        if next_rows is not None:
            next_rows.release(np.array([slot]))
        if links is not None:
            has_ended = any(cells[name][slot].any() for name in self.layout.ends)
            links.add_one(row_id, env_id, has_ended)
            if next_rows is not None:
                own_values = {name: cells[name.removeprefix(PREFIX)][slot] for name in self.layout.paired}
                next_rows.add_one(row_id, env_id, own_values, next_values, has_ended)
        self.total = row_id + 1

    def ends_in(self, arrays: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.bool_]:
        """Return bool `[count]`, True for rows that end an episode."""
        is_end = np.zeros(count, np.bool_)
        for name in self.layout.ends:
            is_end |= arrays[name].reshape(count, -1).any(axis=1)
        return is_end

    def _announce(self, count: int) -> None:
        if self._header is not None:
            self.check_process()
            self._header[2] = self.total + count

    def _publish(self) -> None:
        if self._header is not None:
            self._header[0] = self.total
            self._header[1] = self.low
            self._header[2] = self.total


@dataclass(frozen=True)
class ReplayHandle:
    """Gives another process access to the rows of a buffer; can be pickled.

    Attributes:
        memory: The arrays.
        capacity: Capacity of the ring in rows.
        columns: Columns of a row.
        options: How rows are stored and combined.
    """

    memory: MemoryHandle
    capacity: int
    columns: tuple[Column, ...]
    options: RowOptions

    @classmethod
    def of(cls, store: RowStore | None, storage: str) -> Self:
        """Return the handle of a buffer's rows.

        Raises:
            ConfigurationError: The rows are not in shared memory, or there is no schema yet.
        """
        memory = None if store is None else store.memory.handle
        if store is None or memory is None:
            raise ConfigurationError(
                f"cannot attach to a replay buffer with storage {storage!r} and {'no' if store is None else 'a'} "
                "schema; use storage='shm', and pass the schema or add a row first"
            )
        return cls(memory, store.capacity, tuple(store.layout.columns.values()), store.layout.options)


class AttachedReplay:
    """Reads rows drawn by the owner of the buffer; read-only.

    The owner may add rows during reads, and may die: the memory remains until this object is garbage-collected.

    Args:
        handle: The value of `ReplayBuffer.handle` in the owner's process.

    Raises:
        ConfigurationError: The owner has exited, or its buffer was closed.
    """

    def __init__(self, handle: ReplayHandle) -> None:
        memory = AttachedMemory(handle.memory)
        self.capacity = handle.capacity
        layout = Layout(handle.capacity, handle.columns, handle.options)
        self._reader = RowReader(layout, *_arrays_in(memory, layout))
        self._header = _shared_counters(memory)

    def __len__(self) -> int:
        counters = self.counters()
        return max(counters["total"] - counters["low"], 0)

    def counters(self) -> dict[str, int]:
        """Return the current `total`, `low`, `writing_until` and `generation`."""
        return dict(zip(COUNTERS, self._header.tolist(), strict=True))

    def rows(self, draw: SampledIds, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch | None:
        """Copy the rows of a draw made by the owner.

        Args:
            draw: The result of `ReplayBuffer.draw`.
            out: An earlier batch of the same size and `keys`, whose memory is overwritten.
            keys: The keys to return; all if None.

        Returns:
            The rows, or None if a row is missing: the owner has overwritten or removed it, closed the buffer, or loaded
            a state into other memory. Request another draw or a new handle from the owner.

        Raises:
            ConfigurationError: A key is unknown, or `out` has another size.
        """
        low = self._low()
        if draw.ids.size and draw.ids.max() >= self.counters()["total"]:
            return None
        if self._reader.lost(draw, low).any():
            return None
        batch = self._reader.batch(draw, low, out, keys)
        return None if self._reader.lost(draw, self._low()).any() else batch

    def lost(self, draw: SampledIds) -> NDArray[np.bool_]:
        """Return bool `[n]`, True for rows or sequences of a draw that are missing or incomplete.

        All of them are if the memory was replaced.
        """
        lost = self._reader.lost(draw, self._low())
        return lost if lost.any() else np.ones(len(draw), np.bool_)

    def _low(self) -> int:
        counters = self.counters()
        return max(counters["low"], counters["writing_until"] - self.capacity)


def row_integers(name: str, values: ArrayLike | None, count: int) -> NDArray[np.int64]:
    """Return an integer for each of `count` rows, 0 for None; raise a ConfigurationError for anything else."""
    if values is None:
        return np.zeros(count, np.int64)
    array = np.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iu" or (array > np.iinfo(np.int64).max).any():
        raise ConfigurationError(
            f"{name} are {array.dtype}{list(array.shape)}; expected an integer for each of {count} rows, within int64"
        )
    return array.astype(np.int64, copy=False)
