"""RowReader: rows as they are handed out, made of what the ring, the links and the next observations hold."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.rows.batch_memory import BatchMemory
from trieye.replay.rows.dedup import PREFIX, NextRows
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.layout import Layout
from trieye.replay.rows.memory import Memory
from trieye.replay.rows.n_step import NStep
from trieye.replay.rows.ring import Ring
from trieye.replay.rows.schema import check_keys
from trieye.replay.samplers.base import Draw

Ids = NDArray[np.int64]
Data = dict[str, NDArray[Any]]


class RowReader:
    """The arrays of a buffer and how rows are read from them; the same object in the owner and in other processes.

    Args:
        layout: What is stored and what is made of it.
        memory: Where the arrays live.
    """

    def __init__(self, layout: Layout, memory: Memory) -> None:
        self.layout = layout
        self.capacity = layout.capacity
        options = layout.options
        self.ring = Ring(layout.capacity, layout.stored, memory)
        self.links: EpisodeLinks | None = None
        if options.needs_episodes:
            self.links = EpisodeLinks(
                layout.capacity,
                lambda name, count, dtype: memory.allocate(name, (count,), dtype),
                count_steps=options.counts_steps or options.num_earlier > 0,
            )
        self.next_rows = NextRows(layout.paired, layout.capacity, memory) if layout.paired else None
        self._memory = BatchMemory()
        self._n_step = NStep(options.n_step, options.gamma)
        self.is_direct = not (options.n_step > 1 or self.next_rows or layout.stacks)

    def batch(self, draw: Draw, low: int, out: Batch | None, keys: Sequence[str] | None) -> Batch:
        """Copy the rows of a draw.

        Args:
            draw: The rows, none of them below `low`.
            low: Id of the oldest row of the buffer.
            out: An earlier batch of the same size and `keys`, whose memory is written again.
            keys: The keys wanted; all if None.

        Raises:
            ConfigurationError: A key is unknown, or `out` is of another size.
        """
        if keys is None:
            keys = self.layout.keys
        elif not set(keys) <= set(self.layout.keys):
            check_keys([*self.layout.keys, *keys], self.layout.keys)
        if out is not None and (out.ids.shape != draw.ids.shape or list(out) != list(keys)):
            raise ConfigurationError(
                f"sample({len(draw)}): `out` holds {len(out)} rows of {', '.join(out)}; reuse a batch of the same size "
                "and keys"
            )
        if out is not None:
            return self._batch(draw, low, keys, out.records, out.data)
        signature = draw.ids.shape, *keys
        memory = self._memory.arrays(signature)
        batch = self._batch(draw, low, keys, None, memory)
        if memory is None and batch.records is None:
            self._memory.learn(signature, batch.data)
        return batch

    def batches(self, draws: Sequence[Draw], low: int) -> list[Batch]:
        """Copy the rows of several draws of the same size at once."""
        if draws[0].ids.ndim > 1:
            return [self.batch(draw, low, None, None) for draw in draws]
        data, _ = self.read(np.concatenate([draw.ids for draw in draws]), low, self.layout.keys, None, None)
        cuts = [slice(start, start + len(draws[0])) for start in range(0, len(draws) * len(draws[0]), len(draws[0]))]
        return [
            Batch({key: array[cut] for key, array in data.items()}, draw.ids, draw.weights, draw.info)
            for draw, cut in zip(draws, cuts, strict=True)
        ]

    def is_whole(self, draw: Draw, low: int) -> bool:
        """Return whether all rows of a draw, and the earlier frames of their stacks, are there."""
        ids = draw.ids.reshape(-1)
        if draw.mask is not None:
            ids = ids[draw.mask.reshape(-1)]
        return bool(ids.size == 0 or ids.min() >= low) and not self.lacks_history(ids, low).any()

    def _batch(self, draw: Draw, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Batch:
        if draw.ids.ndim > 1:
            return self._sequences(draw, low, keys, out)
        data, block = self.read(draw.ids, low, keys, block, out)
        return Batch(data, draw.ids, draw.weights, draw.info, None, block)

    def _sequences(self, draw: Draw, low: int, keys: Sequence[str], out: Mapping[str, Any] | None) -> Batch:
        ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, draw.ids[:, :1])
        flat = None if out is None else {key: array.reshape(-1, *array.shape[2:]) for key, array in out.items()}
        data, _ = self.read(ids.reshape(-1), low, keys, None, flat)
        data = {key: array.reshape(*ids.shape, *array.shape[1:]) for key, array in data.items()}
        if draw.mask is not None:
            for array in data.values():
                array[~draw.mask] = 0
        return Batch(data, draw.ids, draw.weights, draw.info, draw.mask)

    def read(self, ids: Ids, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        """Copy rows out.

        Args:
            ids: int64 `[n]`, at least `low` and less than `low` plus the capacity.
            low: Id of the oldest row of the buffer.
            keys: The keys wanted.
            block: Records to write into (packed rows only), or None.
            out: Arrays by key to write into, or None.

        Returns:
            Arrays `[n, ...]` by key, and the block of records that they view or None.
        """
        if self.is_direct:
            return self.ring.gather(self._slots(ids, low), keys, block, out)
        return self._made(ids, low, keys, block, out)

    def column(self, key: str, ids: Ids, low: int) -> NDArray[Any]:
        """Return the values `[n, ...]` of one key, as they were added."""
        if key in self.layout.paired:
            return self._next(key, ids, low, None)
        values: NDArray[Any] = self._take(ids, low, [key], None, None)[0][key]
        return values

    def lacks_history(self, ids: Ids, low: int) -> NDArray[np.bool_]:
        """Return for rows `[n]` whether one of the earlier frames of their stacks was overwritten."""
        lacks = np.zeros(len(ids), np.bool_)
        if self.links is None:
            return lacks
        for _ in range(self.layout.num_earlier):
            previous = self.links.previous_ids(ids, low)
            # the first row of an episode has no row before it; any other row lost the one that it had
            lacks |= (previous < 0) & (self.links.steps(ids) > 0)
            ids = np.where(previous < 0, ids, previous)
        return lacks

    def _slots(self, ids: Ids, low: int) -> Ids:
        return ids - (low - low % self.capacity)

    def _made(self, ids: Ids, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        data: Data = {}
        last = ids
        if self.links is not None and self._n_step.n > 1:
            terminated = partial(self._has_terminated, low=low)
            made = self._n_step.returns(ids, self.links, partial(self.column, "reward", low=low), terminated)
            last = made.last
            data = {"reward": made.reward, "discount": made.discount, "n": made.n}
        stacked = [key for key in keys if key in self.layout.stacks]
        near: list[str] = []
        far: list[str] = []
        for key in keys:
            if key in data or key in stacked or key in self.layout.paired:
                continue
            (far if last is not ids and (key in self.layout.ends or key.startswith(PREFIX)) else near).append(key)
        taken, block = self._take(ids, low, near, block, out)
        data |= taken
        data |= self._take(last, low, far, None, out)[0]
        for key in keys:
            if key in stacked:
                data[key] = self._stack(key, ids if key in self.layout.options.frame_stack else last, low, out)
            elif key in self.layout.paired:
                data[key] = self._next(key, last, low, out)
        return {key: data[key] for key in keys}, block

    def _take(self, ids: Ids, low: int, keys: list[str], block: Any, out: Mapping[str, Any] | None) -> tuple[Data, Any]:
        if not keys:
            return {}, block
        data, block = self.ring.gather(self._slots(ids, low), keys, block, out)
        return data, block

    def _next(self, key: str, ids: Ids, low: int, out: Mapping[str, Any] | None) -> NDArray[Any]:
        """Return what `next_<key>` of rows was, from the row that follows or from where it is kept."""
        assert self.links is not None  # noqa: S101 - the layout gave it
        assert self.next_rows is not None  # noqa: S101 - likewise
        source = key.removeprefix(PREFIX)
        while True:
            places = self.next_rows.places(ids)
            following = np.where(places > 0, ids, self.links.next_ids(ids))
            target = None if out is None else {source: out[key]}
            values: NDArray[Any] = self._take(following, low, [source], None, target)[0][source]
            self.next_rows.fill(key, places, values)
            if np.array_equal(places, self.next_rows.places(ids)):  # else the owner's process moved one meanwhile
                return values

    def _stack(self, key: str, ids: Ids, low: int, out: Mapping[str, Any] | None) -> NDArray[Any]:
        """Return the stacks `[n, frames, ...]` of a key, the newest frame last."""
        assert self.links is not None  # noqa: S101 - the layout gave it
        frames = self.layout.stacks[key]
        is_next = key not in self.layout.options.frame_stack
        source = key.removeprefix(PREFIX) if is_next else key
        chain = np.empty((len(ids), frames + is_next), np.int64)
        is_before = np.zeros(chain.shape, np.bool_)
        chain[:, -1] = ids
        for place in range(chain.shape[1] - 2, -1, -1):
            if is_next and place == frames - 1:
                chain[:, place] = ids
                continue
            previous = self.links.previous_ids(chain[:, place + 1], low)
            is_before[:, place] = previous < 0
            chain[:, place] = np.where(previous < 0, chain[:, place + 1], previous)
        wanted = chain[:, 1:] if is_next else chain
        shape = (len(ids) * frames, *self.layout.columns[source].shape)
        target = None if out is None else {source: out[key].reshape(shape)}
        flat = self._take(wanted.reshape(-1), low, [source], None, target)[0][source]
        values = flat.reshape(len(ids), frames, *shape[1:])
        if self.layout.options.padding == "zero":
            values[is_before[:, 1:] if is_next else is_before] = 0
        if is_next:
            values[:, -1] = self._next(key, ids, low, None) if key in self.layout.paired else self.column(key, ids, low)
        return values

    def _has_terminated(self, ids: Ids, low: int) -> NDArray[Any]:
        ends = self.layout.ends
        if "terminated" in ends:
            return self._flags("terminated", ids, low)
        if "done" not in ends:
            return np.zeros(len(ids), np.bool_)
        done = self._flags("done", ids, low)
        # many set `done` at a truncation too; without `terminated` there is no other way to tell
        return np.greater(done, self._flags("truncated", ids, low)) if "truncated" in ends else done

    def _flags(self, key: str, ids: Ids, low: int) -> NDArray[np.bool_]:
        flags = self.column(key, ids, low).reshape(len(ids), -1).astype(np.bool_)
        return np.logical_or.reduce(flags, axis=1)  # type: ignore[no-any-return]  # bool [n]
