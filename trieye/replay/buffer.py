"""ReplayBuffer: stores the most recent rows in memory and samples batches from them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from trieye.checkpoints.directory import load_parts, save_parts
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.batch import Batch
from trieye.replay.counts import BufferCounts
from trieye.replay.hindsight import HindsightRelabeler
from trieye.replay.limiter import RateLimiter
from trieye.replay.prefetch import DeviceBatches, Prefetcher
from trieye.replay.rows.memory import open_memory
from trieye.replay.rows.schema import Column, Layout, Padding, RowOptions, checked_integer, saved_columns
from trieye.replay.rows.segments import FORMAT, StoredParts, checked_state
from trieye.replay.rows.store import AttachedReplay, ReplayHandle, RowStore, row_integers
from trieye.replay.samplers import checked_kind, make_sampler
from trieye.replay.samplers.base import SampledIds, checked_priorities
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, StateParts
from trieye.snapshot.parts import SavedParts


class ReplayBuffer:
    """The last `capacity` rows, drawn by a sampler.

    `add`, `extend` and `sample` copy rows. Each row has an id: ids count from 0 over the lifetime of the buffer and are
    never reused. Not thread-safe: the buffer has no lock.

        >>> buffer = ReplayBuffer(1000, seed=1)
        >>> buffer.add(obs=np.zeros(4, np.float32), action=1, reward=0.5, done=False)
        0
        >>> buffer.sample(32)["obs"].shape
        (32, 4)
    """

    def __init__(  # noqa: PLR0913 - each is one property of a buffer, by keyword
        self,
        capacity: int,
        schema: Mapping[str, DTypeLike] | None = None,
        *,
        sampler: str = "uniform",
        sampler_options: Mapping[str, Any] | None = None,
        storage: str = "ram",
        storage_dir: str | Path | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: Mapping[str, int] | None = None,
        padding: Padding = "reset",
        dedup_next: bool = False,
        max_reuse: int | None = None,
        max_staleness: int | None = None,
        her: HindsightRelabeler | None = None,
        limiter: RateLimiter | None = None,
        prefault: bool = True,
        seed: int = 0,
    ) -> None:
        """Create an empty buffer.

        Args:
            capacity: Maximum number of rows; the oldest is overwritten first.
            schema: A NumPy dtype per key, `(np.float32, (4,))` for an array; inferred from the first row if None.
            sampler: How rows are drawn: `uniform`, `prioritized` or `sequence`.
            sampler_options: Keyword arguments of that sampler, such as `alpha` or `length`.
            storage: Memory for the rows: `ram`; `shm`, shared memory that other processes of this machine can read
                (`handle`); `mmap`, files that may be larger than the memory.
            storage_dir: Directory of the `mmap` files. They have no names and disappear when the process exits.
            n_step: Number of rows in an n-step return. Above 1, batches get the key `n`; `next_*`, `discount` and the
                episode-end flags come from the last of these rows.
            gamma: Discount factor per row; a batch has the discount of the next value under `discount`.
            frame_stack: Number of stacked frames per key. Rows store single frames; a draw has `[n, frames, ...]`, the
                newest frame last. Applies to `next_<key>` too.
            padding: Frames before the start of an episode: its first frame repeated (`reset`) or zeros (`zero`).
            dedup_next: Store `next_<key>` only where the next row of the same environment does not contain it as
                `<key>`: half the memory, the same draws.
            max_reuse: Maximum number of times a row is drawn; unlimited if None.
            max_staleness: Maximum versions that a drawn row may lag behind `set_version`; unlimited if None.
            her: Relabels goals and rewards of drawn rows (hindsight experience replay).
            limiter: Bounds the ratio of draws to inserts: the call that is ahead raises `ReplayTimeoutError`.
            prefault: Allocate the memory (for `mmap` the disk space) now rather than during training.
            seed: Seed of the draws.

        Raises:
            ConfigurationError: The capacity is below 1 or exceeds the memory, or another value is invalid.
        """
        self._made_with = {name: value for name, value in locals().items() if name not in {"self", "__class__"}}
        bounds: dict[str, Any] = {"max_reuse": max_reuse, "max_staleness": max_staleness}
        self._kind = checked_kind(sampler, sampler_options or {}, **bounds)
        self.capacity, self.sampler, self.limiter = checked_integer("replay capacity", capacity), sampler, limiter
        walks = sampler == "sequence" or her is not None
        self._options = RowOptions(n_step, gamma, frame_stack or {}, padding, dedup_next, walks)
        if her is not None and (n_step > 1 or sampler == "sequence"):
            raise ConfigurationError("her relabels single rows; it supports neither n_step nor sampler 'sequence'")
        self._make_sampler = partial(make_sampler, sampler, dict(sampler_options or {}), self.capacity, **bounds)
        self._open_memory = partial(open_memory, storage, storage_dir, prefault=prefault)
        self._open_memory().close()  # reports an invalid storage now rather than with the first row
        self._her, self._storage = her, storage
        self._rng = np.random.default_rng(checked_integer("replay seed", seed, 0))
        self._her_rng = np.random.default_rng([seed, 1])
        self._counts, self._parts, self._on_devices = BufferCounts(), StoredParts(), DeviceBatches()
        self._prefetchers: WeakSet[Prefetcher] = WeakSet()  # their threads copy rows and draw hindsight goals
        self._version, self._is_closed, self._may_wait = 0, False, limiter is not None  # or there was a prefetcher
        self._store: RowStore | None = None
        if schema is not None:
            self._store = self._new_store([Column.from_dtype(name, spec) for name, spec in schema.items()])

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Create the buffer that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is `fragment`; `trieye.replay.fragments` implements that one.
        """
        if config.kind == "fragment":
            raise ConfigurationError(
                "replay.kind=fragment does not describe a ReplayBuffer; use FragmentBuffer.from_config(config), or "
                "RemoteFragments.start(config.fragment_rules)"
            )
        return cls(limiter=RateLimiter.from_config(config.limiter), seed=seed, **config.buffer_arguments)

    def __len__(self) -> int:
        store = self._store
        return 0 if store is None else store.total - store.low

    @property
    def version(self) -> int:
        """The version of the learner's model, 0 before the first `set_version`."""
        return self._version if self._store is None else self._store.sampler.version

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy: its rows travel as arrays. To share the rows with another process, send `handle`."""
        return partial(type(self), **self._made_with), (), encode(self, copy=False)

    def __setstate__(self, state: EncodedState) -> None:
        self.load_state_dict(decode(state, copy=False))

    def add(self, env_id: int = 0, /, **row: Any) -> int:
        """Copy one row into the buffer and return its id.

        Args:
            env_id: The environment that produced the row; add the rows of one environment in time order.
            row: A value for each key.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value has the wrong shape or kind; no row was added.
        """
        store = self._store
        if store is not None and not self._may_wait:
            return store.add(row, env_id)
        store = self._opened() or self._new_store([Column.from_value(*item, rows=False) for item in row.items()])
        self._before_adding(1)
        row_id = store.add(row, env_id)
        self._store = store  # only now, so that a rejected first row leaves no schema behind
        if self.limiter is not None:
            self.limiter.inserted(1)
        return row_id

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None = None, *, versions: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Copy rows, arrays `[n, ...]` by key, into the buffer and return their ids, int64 `[n]`.

        Of more rows than the capacity, only the last `capacity` are stored; the others get ids as well.

        Args:
            batch: The rows, in time order within each environment.
            env_ids: Integers `[n]`, the environment that produced each row; 0 for all if None.
            versions: Integers `[n]`, the model version that produced each row; the version of `set_version` if None.
                Only with `max_staleness`.

        Raises:
            ConfigurationError: As for `add`, or the arrays differ in length; no row was added.
        """
        store = self._store
        if store is not None and not self._may_wait and versions is None:
            return store.extend(batch, env_ids)
        store = self._opened() or self._new_store([Column.from_value(*item, rows=True) for item in batch.items()])
        block = store.conform(batch, env_ids)
        row_versions = None if versions is None else row_integers("versions", versions, block.count)
        self._before_adding(block.count)
        ids = store.write(block, row_versions)
        self._store = store
        if self.limiter is not None:
            self.limiter.inserted(block.count)
        return ids

    def sample(
        self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None, device: str | None = None
    ) -> Batch:
        """Draw `n` rows, or `n` sequences of rows, with replacement.

        Args:
            n: Number of rows or sequences.
            out: An earlier batch of the same `n` and `keys`, whose memory is overwritten.
            keys: The keys to return; all if None.
            device: Return torch tensors on this device, such as `cuda`, for this thread's current stream; NumPy arrays
                if None. Ids are always NumPy arrays.

        Raises:
            ConfigurationError: The buffer is empty, `n` is below 1, a key or the device is unknown, or `out` has
                another size or is combined with a device.
        """
        if self._her is not None:
            self._settle()
        if device is None:
            return self.rows(self.draw(n), out, keys)
        signature = n, None if keys is None else tuple(keys)
        return self._on_devices.make(
            device, out, signature, lambda: self.draw(n), lambda draw, out: self.rows(draw, out, keys)
        )

    def draw(self, n: int, *, above: int = 0, again: bool = False) -> SampledIds:
        """Choose the rows of a batch, which `rows` then copies; the first half of `sample`.

        Args:
            n: Number of rows or sequences.
            above: Draw rows below this id only if a few attempts find no others.
            again: The draw replaces `n` rows of an earlier draw that were overwritten before they were copied: it
                counts only towards the rows' `max_reuse`, and the limiter is not consulted.
        """
        store, limiter = self._filled(), None if again else self.limiter
        if type(n) is not int or n < 1:
            n = checked_integer("sample: n", n)
        if limiter is not None and not limiter.can_sample(n):
            raise ReplayTimeoutError(f"cannot draw {n} rows: the limiter requires more inserts first")
        draw = store.draw(n, self._rng, above=above)
        if again:
            return draw
        store.sampler.handed_out(draw)  # the rows that the user gets, without those discarded on the way
        if limiter is not None:
            limiter.sample(n)
        self._counts.sampled += draw.ids.size
        if "staleness_mean" in draw.info:
            self._counts.was_stale(draw)
        return draw

    def rows(self, draw: SampledIds, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch:
        """Copy the rows that `draw` chose; the second half of `sample`."""
        store = self._filled()
        batch = store.reader.batch(draw, store.low, out, keys)
        if self._her is not None:
            assert store.links is not None  # noqa: S101 - RowOptions.walks is set with her
            achieved_of = partial(store.reader.column, self._her.achieved_key, low=store.low)
            self._her.relabel(batch.data, batch.ids, store.links, achieved_of, store.low, self._her_rng)
        return batch

    def iter_batches(
        self, n: int, *, keys: Sequence[str] | None = None, prefetch: int = 2, device: str | None = None
    ) -> Iterator[Batch]:
        """Yield batches of `n` rows forever.

        Args:
            n: Number of rows or sequences.
            keys: The keys to return; all if None.
            prefetch: Number of batches that a thread copies ahead. They are also drawn that early, and each is valid
                until the next one is requested. With 0 no thread is started, and each batch owns its memory.
            device: Return torch tensors on this device, as for `sample`; NumPy arrays if None.
        """
        if not prefetch:
            return iter(partial(self.sample, n, keys=keys, device=device), None)
        prefetcher = Prefetcher(
            lambda: self.draw(n), lambda draw, out: self.rows(draw, out, keys), depth=prefetch, device=device
        )
        self._prefetchers.add(prefetcher)
        self._may_wait = True
        return prefetcher

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set the priorities of rows; updates of overwritten rows are ignored and counted.

        Samplers without priorities validate the arguments and change nothing, so an algorithm runs with any sampler.

        Returns:
            The number of `ids` that are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, an id was never returned, or a priority is negative or not finite.
        """
        store = self._opened()
        checked_ids, values = checked_priorities(ids, priorities, 0 if store is None else store.total)
        if store is None:
            return 0
        alive = checked_ids >= store.low
        count = int(np.count_nonzero(alive))
        if count < checked_ids.size:
            self._counts.late_updates += checked_ids.size - count
            checked_ids, values = checked_ids[alive], values[alive]
        store.sampler.update(checked_ids, values)
        return count

    def set_version(self, version: int) -> None:
        """Set the version of the learner's model, for `max_staleness`.

        Raises:
            ConfigurationError: The version is lower than the previous one.
        """
        if version < self.version:
            raise ConfigurationError(f"set_version({version}): versions only grow, and {self.version} was set before")
        self._version = version
        if self._store is not None:
            self._store.sampler.set_version(version)

    def iter_rows(self, chunk: int = 4096) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.int64]]]:
        """Yield all rows in their original form, oldest first; add no rows during the iteration.

        Args:
            chunk: Rows per chunk.

        Yields:
            Arrays `[n, ...]` by key, and int64 `[n]` episode numbers, equal within one episode. Passed as `env_ids` to
            another buffer, they keep episodes apart. Without tracked episodes, each row has its own number.
        """
        if (store := self._opened()) is not None:
            yield from store.reader.iter_rows(store.low, store.total, chunk)

    @property
    def handle(self) -> ReplayHandle:
        """The argument of `attach` for another process of this machine; can be pickled.

        Raises:
            ConfigurationError: The rows are not in shared memory, or there is no schema yet.
        """
        return ReplayHandle.of(self._opened(), self._storage)

    @staticmethod
    def attach(handle: ReplayHandle) -> AttachedReplay:
        """Return a read-only view of a buffer that another process of this machine owns.

        Raises:
            ConfigurationError: That process has exited, or its buffer was closed.
        """
        return AttachedReplay(handle)

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready for logging."""
        return self._counts.stats(self.capacity, self._store)

    def metrics(self) -> dict[str, float]:
        """Return the replay metrics of a run by name; rates cover the time since the last call."""
        return self._counts.metrics(self._store)

    def interrupt(self, env_id: int | None = None, *, lost_rows: bool = False) -> None:
        """Start a new episode with the next row although the previous row did not end one.

        Call it after recreating or resetting an environment in mid-episode, and after a restore, unless the state of
        the environments was restored as well. Without a schema yet, it has no effect.

        Args:
            env_id: The environment; all environments if None.
            lost_rows: Rows of the episode are missing: the next rows, whose stacks lack these frames, are not drawn.
        """
        if (store := self._opened()) is not None:
            store.interrupt(env_id, lost_rows=lost_rows)

    def clear(self) -> None:
        """Remove all rows; schema, id counter and random state are unchanged."""
        self._settle()
        if (store := self._opened()) is not None:
            if self.limiter is not None:
                self.limiter.removed(store.total - store.low)
            store.clear()

    def state_parts(self, known_names: Collection[str]) -> StateParts:
        """Return a snapshot for an exact resume, with the rows that no known part contains as new parts.

        Args:
            known_names: Names of the parts in finished checkpoints.
        """
        store = self._opened()
        self._settle()
        known_parts, new_parts = ((), {}) if store is None else self._parts.save(store, known_names)
        state = {
            "format": FORMAT,
            "sampler": self._kind,
            "rng": self._rng.bit_generator.state,
            "her_rng": self._her_rng.bit_generator.state,
            "limiter": None if self.limiter is None else self.limiter.state_dict(),
            "counts": self._counts.state_dict(),
            "store": None if store is None else {**store.state_dict(), "segments": self._parts.state_dict()},
        }
        return StateParts(state, known_parts, new_parts)

    def load_state_dict(self, state: Any, *, lazy: bool = False) -> None:
        """Restore a saved buffer; the next draw equals the next draw of the saved buffer.

        This buffer's capacity applies: a smaller buffer retains the newest rows. So do its bounds, `n_step`, `gamma`,
        `padding` and sampler options, since they affect draws only. Rows of a buffer that did not track the order of
        rows are drawn with windows of a single row. Where `state.on_damage` allows it, rows of damaged parts are
        skipped, logged and counted in `stats()["lost"]`; the rows before them move up, and the next save rewrites all.

        Args:
            state: The saved buffer, a `SavedParts`.
            lazy: Leave the rows in the files and copy each one when it is first drawn. Only with storage `ram`, since
                other processes could not read such rows.

        Raises:
            ConfigurationError: The format, sampler, schema, frame stacks or `dedup_next` differ, or only one of the two
                buffers has a bound (`max_reuse`, `max_staleness`); nothing was changed.
            CheckpointError: A part is damaged and `state.on_damage` forbids skipping it; the buffer is then empty.
        """
        self._opened()
        self._settle()
        saved_parts = checked_state(state, self._kind)
        rows_state, num_lost = saved_parts.state["store"], 0
        if rows_state is not None:
            num_lost = self._load_rows(rows_state, saved_parts, lazy=lazy)
        elif self._store is not None and self._store.total:
            self._store.close()
            self._store = self._new_store(list(self._store.layout.columns.values()))
            self._parts = StoredParts()  # ids start from 0 again, so no existing part contains these rows
        self._rng.bit_generator.state = saved_parts.state["rng"]
        self._her_rng.bit_generator.state = saved_parts.state["her_rng"]
        self._counts.load_state_dict(saved_parts.state["counts"])
        self._counts.lost += num_lost
        if (limiter := self.limiter) is not None:
            limiter.load_state_dict(saved_parts.state["limiter"] or limiter.initial_state_dict(len(self) + num_lost))
            limiter.removed(num_lost)

    def save(self, path: str | Path) -> None:
        """Write the buffer to a directory, replaced atomically; rows that it already contains are not written again.

        Raises:
            ConfigurationError: The path is a file, or a directory with content other than an earlier save.
            SerializationError: The disk is full, or the directory is not writable; its previous content is untouched.
        """
        save_parts(Path(path), self)

    def load(self, path: str | Path, *, lazy: bool = False) -> None:
        """Verify a directory that `save` wrote and restore it; `lazy` as in `load_state_dict`.

        Raises:
            CheckpointError: The directory does not exist or is damaged.
            ConfigurationError: Its rows have another schema.
        """
        self.load_state_dict(load_parts(Path(path)), lazy=lazy)

    def close(self) -> None:
        """Release the memory; later adds and draws fail."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()
        if self._store is not None:
            self._store.close()
        self._store, self._is_closed = None, True

    def _opened(self) -> RowStore | None:
        """Return the rows, or None before the first one.

        Raises:
            ConfigurationError: The buffer is closed.
            ReplayClosedError: This process was forked from the owner of the rows.
        """
        if self._is_closed:
            raise ConfigurationError("the replay buffer is closed; create a new one")
        if self._store is not None:
            self._store.check_process()
        return self._store

    def _filled(self) -> RowStore:
        """Return the rows; like `_opened`, but raise a ConfigurationError if there are none."""
        if (store := self._opened()) is None or store.total == store.low:
            raise ConfigurationError("the replay buffer is empty; add rows before sampling (len(buffer) counts them)")
        return store

    def _new_store(self, columns: Sequence[Column]) -> RowStore:
        store = RowStore(Layout(self.capacity, columns, self._options), self._open_memory(), self._make_sampler)
        store.sampler.set_version(self._version)
        return store

    def _settle(self) -> None:
        """Wait until no thread copies rows."""
        for prefetcher in list(self._prefetchers):
            prefetcher.settle()

    def _before_adding(self, count: int) -> None:
        self._settle()
        if self.limiter is not None and count and not self.limiter.can_insert():
            raise ReplayTimeoutError(f"cannot add {count} rows: the limiter requires more draws first")

    def _load_rows(self, rows_state: Mapping[str, Any], saved_parts: SavedParts, *, lazy: bool) -> int:
        """Load saved rows into an empty store, and return the number of lost ones."""
        store = self._store
        columns = saved_columns(rows_state, None if store is None else store.layout, self._options)
        if store is not None and store.total:
            store.close()
        if store is None or store.total:
            self._store = store = None  # releases its memory before allocating the new one
            store = self._new_store(columns)
        num_lost = self._parts.restore(store, saved_parts, rows_state, lazy=lazy and store.memory.handle is None)
        self._store = store
        return num_lost
