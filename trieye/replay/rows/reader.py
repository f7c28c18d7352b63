"""RowReader: reads rows in the form of a batch, including frame stacks and n-step returns."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.replay.batch import Batch, BatchMemory
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.next_rows import NextRows
from trieye.replay.rows.ring import Ring
from trieye.replay.rows.schema import PREFIX, Layout, check_keys
from trieye.replay.samplers.base import SampledIds, below

Ids = NDArray[np.int64]
Data = dict[str, NDArray[Any]]


class RowReader:
    """Reads rows, in the process that owns them and in others.

    Args:
        layout: How rows are stored and combined.
        ring: The rows.
        links: Successor links; required if the layout's options need episodes.
        next_rows: The values of `next_<key>` that no row contains; required if the layout has pairs.
    """

    def __init__(self, layout: Layout, ring: Ring, links: EpisodeLinks | None, next_rows: NextRows | None) -> None:
        self._layout, self._ring, self._links, self._next_rows = layout, ring, links, next_rows
        self._memory = BatchMemory()
        self._powers = layout.options.gamma ** np.arange(layout.options.n_step + 1, dtype=np.float64)
        self._discounts = np.array([layout.options.gamma, 0], np.float32)  # indexed by termination
        self._is_direct = not (layout.options.n_step > 1 or next_rows or layout.stacks)
        self._stored_keys = [key for key in layout.keys if key not in layout.derived]
        # many environments set `done` at a truncation too; without `terminated` nothing else distinguishes the two
        end_keys = [key for key in ("done", "truncated") if key in layout.ends] if "done" in layout.ends else []
        self._terminal = ["terminated"] if "terminated" in layout.ends else end_keys
        is_plain = len(self._terminal) == 1 and layout.columns[self._terminal[0]].spec == ("|b1", ())
        self._flag = self._terminal[0] if is_plain else ""

    def batch(self, draw: SampledIds, low: int, out: Batch | None, keys: Sequence[str] | None) -> Batch:
        """Copy the rows of a draw.

        Args:
            draw: The rows, none of them below `low`.
            low: Id of the oldest row in the buffer.
            out: An earlier batch of the same size and `keys`, whose memory is overwritten.
            keys: The keys to return; all if None.

        Raises:
            ConfigurationError: A key is unknown, or `out` has another size.
        """
        if keys is None:
            keys = self._layout.keys
        elif not set(keys) <= set(self._layout.keys):
            check_keys([*self._layout.keys, *keys], self._layout.keys)
        if out is not None:
            out.check(len(draw), draw.ids.shape, keys)
            return self._batch(draw, low, keys, out.records, out.data)
        signature = draw.ids.shape, *keys
        memory = self._memory.arrays(signature)
        batch = self._batch(draw, low, keys, None, memory)
        if memory is None and batch.records is None:
            self._memory.learn(signature, batch.data)
        return batch

    def lost(self, draw: SampledIds, low: int) -> NDArray[np.bool_]:
        """Return bool `[n]`, True for rows or sequences of a draw that are gone or lost earlier stack frames."""
        is_gone = below(draw, low)
        if is_gone.any() or not self._layout.num_earlier:
            return is_gone
        ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, draw.ids[:, :1])
        lacks = self.lacks_history(ids.reshape(-1), low)
        return np.logical_or.reduce(lacks.reshape(len(draw), -1), axis=1)  # type: ignore[no-any-return]  # bool [n]

    def _batch(
        self, draw: SampledIds, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None
    ) -> Batch:
        if draw.ids.ndim > 1:
            return self._sequences(draw, low, keys, out)
        data, block = self._read(draw.ids, low, keys, block, out)
        return Batch(data, draw.ids, draw.weights, draw.info, None, block)

    def _sequences(self, draw: SampledIds, low: int, keys: Sequence[str], out: Mapping[str, Any] | None) -> Batch:
        ids = draw.ids if draw.mask is None else np.where(draw.mask, draw.ids, draw.ids[:, :1])
        flat = None if out is None else {key: array.reshape(-1, *array.shape[2:]) for key, array in out.items()}
        data, _ = self._read(ids.reshape(-1), low, keys, None, flat)
        data = {key: array.reshape(*ids.shape, *array.shape[1:]) for key, array in data.items()}
        if draw.mask is not None:
            for array in data.values():
                array[~draw.mask] = 0
        return Batch(data, draw.ids, draw.weights, draw.info, draw.mask)

    def _read(self, ids: Ids, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        """Copy rows.

        Args:
            ids: int64 `[n]`, at least `low` and less than `low` plus the capacity.
            low: Id of the oldest row in the buffer.
            keys: The keys to return.
            block: Records to write into (packed rows only), or None.
            out: Arrays by key to write into, or None.

        Returns:
            Arrays `[n, ...]` by key, and the block of records that they view or None.
        """
        if not self._is_direct:
            return self._combined(ids, low, keys, block, out)
        slots, layout = self._slots(ids, low), self._layout
        if not layout.derived or "discount" not in keys:
            return self._ring.gather(slots, keys, block, out)
        has_all = keys is layout.keys
        stored_keys = self._stored_keys if has_all else [key for key in keys if key != "discount"]
        data, block = self._ring.gather(slots, stored_keys, block, out)
        columns = data if has_all or block is None else {key: block[key] for key in self._terminal}
        data["discount"] = self._discount(ids, low, columns, out)
        return data if has_all else {key: data[key] for key in keys}, block

    def column(self, key: str, ids: Ids, low: int) -> NDArray[Any]:
        """Return the values `[n, ...]` of one key in their original form."""
        if key in self._layout.paired:
            return self._next(key, ids, low, None)
        return self._gather(ids, low, [key], None, None)[0][key]

    def iter_rows(self, low: int, total: int, chunk: int) -> Iterator[tuple[Data, Ids]]:
        """Yield the rows `[low, total)` in their original form, and the episode number of each.

        Args:
            low: Id of the oldest row.
            total: Id after the newest row.
            chunk: Rows per chunk.
        """
        episodes = self._episodes(low, total)
        for first_id in range(low, total, chunk):
            ids = np.arange(first_id, min(first_id + chunk, total))
            rows = {key: self.column(key, ids, low) for key in self._layout.columns}
            yield rows, episodes[first_id - low : first_id - low + len(ids)]

    def lacks_history(self, ids: Ids, low: int) -> NDArray[np.bool_]:
        """Return for rows `[n]` whether an earlier frame of their stacks was overwritten."""
        lacks = np.zeros(len(ids), np.bool_)
        assert self._links is not None  # noqa: S101 - the layout requires it
        for _ in range(self._layout.num_earlier):
            previous_ids = self._links.previous_ids(ids, low)
            # only the first row of an episode has no predecessor; any other row lost its predecessor
            lacks |= (previous_ids < 0) & (self._links.steps(ids) > 0)
            ids = np.where(previous_ids < 0, ids, previous_ids)
        return lacks

    def _episodes(self, low: int, total: int) -> Ids:
        if self._links is None:
            return np.arange(total - low)  # joined rows might belong to different environments
        episode_numbers: list[int] = []
        count = 0
        for previous_index in (self._links.previous_ids(np.arange(low, total), low) - low).tolist():
            episode_numbers.append(episode_numbers[previous_index] if previous_index >= 0 else count)
            count += previous_index < 0
        return np.array(episode_numbers, np.int64)

    def _slots(self, ids: Ids, low: int) -> Ids:
        return ids - (low - low % self._layout.capacity)

    def _combined(self, ids: Ids, low: int, keys: Sequence[str], block: Any, out: Mapping[str, Any] | None) -> Any:
        data: Data = {}
        last_ids = ids
        if self._layout.options.n_step > 1:
            last_ids, data = self._returns(ids, low)
        stacked_keys = [key for key in keys if key in self._layout.stacks]
        first_keys: list[str] = []  # read from the first row of the window
        last_keys: list[str] = []  # read from the last one
        for key in keys:
            if key in data or key in stacked_keys or key in self._layout.paired or key in self._layout.derived:
                continue
            is_last = last_ids is not ids and (key in self._layout.ends or key.startswith(PREFIX))
            (last_keys if is_last else first_keys).append(key)
        columns, block = self._gather(ids, low, first_keys, block, out)
        data |= columns
        data |= self._gather(last_ids, low, last_keys, None, out)[0]
        for key in keys:
            if key in stacked_keys:
                data[key] = self._stack(key, ids if key in self._layout.options.frame_stack else last_ids, low, out)
            elif key in self._layout.paired:
                data[key] = self._next(key, last_ids, low, out)
        if "discount" in keys and "discount" not in data:
            data["discount"] = self._discount(ids, low, data, out)
        return {key: data[key] for key in keys}, block

    def _returns(self, ids: Ids, low: int) -> tuple[Ids, Data]:
        """Return the last row of each row's window, int64 `[n]`, and the values of the windows by key.

        The window of row t has m <= n_step rows: R = sum of gamma^k r_(t+k) for k < m, and the target is R + discount
        V(next), where discount is gamma^m, or 0 if the last row terminated (Sutton and Barto 2018, equation 7.1).
        A window is shorter at the end of an episode, terminated or truncated, and at the newest rows of an open
        episode: bootstrapping from the newest row's next observation is equally valid, and rows can be drawn
        immediately.

        `reward` `[n, ...]` is R in the dtype of the rewards, float32 for integers; `discount` is float32 `[n]`; `n`,
        int64 `[n]`, is the number of rows in the window. The last row provides the `next_*` values to bootstrap from,
        and the episode-end flags.
        """
        assert self._links is not None  # noqa: S101 - the layout requires it
        windows = self._links.following(ids, self._layout.options.n_step)
        is_in_window = windows >= 0
        lengths = is_in_window.sum(axis=1)
        last_ids = windows[np.arange(len(ids)), lengths - 1]
        rewards = self.column("reward", np.where(is_in_window, windows, ids[:, None]).reshape(-1), low)
        dtype = rewards.dtype if rewards.dtype.kind == "f" else np.dtype(np.float32)
        shape = rewards.shape[1:]
        rewards = rewards.reshape(*windows.shape, -1)
        terms = np.zeros(rewards.shape)
        # rewards beyond the window are skipped rather than multiplied by 0, since they may be infinite
        np.multiply(rewards, self._powers[:-1, None], where=is_in_window[:, :, None], out=terms)
        returns = terms.sum(axis=1).astype(dtype).reshape(len(ids), *shape)
        terminated = self._has_terminated(last_ids, low, {})
        discount = np.where(terminated, 0, self._powers[lengths]).astype(np.float32)
        return last_ids, {"reward": returns, "discount": discount, "n": lengths}

    def _discount(
        self, ids: Ids, low: int, columns: Mapping[str, NDArray[Any]], out: Mapping[str, Any] | None
    ) -> NDArray[Any]:
        """Return the `discount` of `_returns` for windows of a single row.

        Args:
            ids: int64 `[n]`.
            low: Id of the oldest row in the buffer.
            columns: Columns of these rows that were already read.
            out: Arrays by key to write into, or None.
        """
        terminated = columns.get(self._flag)
        if terminated is None:
            terminated = self._has_terminated(ids, low, columns)
        if out is None:
            return self._discounts.take(terminated)  # a third of the cost of boolean arithmetic
        return self._discounts.take(terminated, out=out["discount"], mode="clip")  # `raise` would buffer

    def _gather(
        self, ids: Ids, low: int, keys: list[str], block: Any, out: Mapping[str, Any] | None
    ) -> tuple[Data, Any]:
        if not keys:
            return {}, block
        data, block = self._ring.gather(self._slots(ids, low), keys, block, out)
        return data, block

    def _next(self, key: str, ids: Ids, low: int, out: Mapping[str, Any] | None) -> NDArray[Any]:
        """Return the `next_<key>` of rows, from the following row or from `NextRows`."""
        assert self._links is not None  # noqa: S101 - the layout requires it
        assert self._next_rows is not None  # noqa: S101 - likewise
        source = key.removeprefix(PREFIX)
        while True:
            value_slots = self._next_rows.value_slots(ids)
            following = np.where(value_slots > 0, ids, self._links.next_ids(ids))
            target = None if out is None else {source: out[key]}
            values: NDArray[Any] = self._gather(following, low, [source], None, target)[0][source]
            self._next_rows.fill(key, value_slots, values)
            if np.array_equal(value_slots, self._next_rows.value_slots(ids)):  # otherwise the owner moved a value
                return values

    def _stack(self, key: str, ids: Ids, low: int, out: Mapping[str, Any] | None) -> NDArray[Any]:
        """Return the stacks `[n, frames, ...]` of a key, the newest frame last."""
        assert self._links is not None  # noqa: S101 - the layout requires it
        frames = self._layout.stacks[key]
        is_next = key not in self._layout.options.frame_stack
        source = key.removeprefix(PREFIX) if is_next else key
        chain = np.empty((len(ids), frames + is_next), np.int64)
        is_before = np.zeros(chain.shape, np.bool_)
        chain[:, -1] = ids
        for index in range(chain.shape[1] - 2, -1, -1):
            if is_next and index == frames - 1:
                chain[:, index] = ids
                continue
            previous_ids = self._links.previous_ids(chain[:, index + 1], low)
            is_before[:, index] = previous_ids < 0
            chain[:, index] = np.where(previous_ids < 0, chain[:, index + 1], previous_ids)
        frame_ids = chain[:, 1:] if is_next else chain
        shape = (len(ids) * frames, *self._layout.columns[source].shape)
        target = None if out is None else {source: out[key].reshape(shape)}
        flat = self._gather(frame_ids.reshape(-1), low, [source], None, target)[0][source]
        values = flat.reshape(len(ids), frames, *shape[1:])
        if self._layout.options.padding == "zero":
            values[is_before[:, 1:] if is_next else is_before] = 0
        if is_next:
            values[:, -1] = self.column(key, ids, low)
        return values

    def _has_terminated(self, ids: Ids, low: int, columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        flags = [columns[key] if key in columns else self.column(key, ids, low) for key in self._terminal]
        if not flags:
            return np.zeros(len(ids), np.bool_)
        flags = [np.logical_or.reduce(each.reshape(len(ids), -1).astype(np.bool_), axis=1) for each in flags]
        return np.greater(*flags) if len(flags) > 1 else flags[0]
