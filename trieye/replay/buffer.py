"""ReplayBuffer: stores the most recent rows in memory and samples batches from them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from trieye.checkpoints.directory import load_parts, save_parts
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.content import BufferState
from trieye.replay.hindsight import HindsightRelabeler
from trieye.replay.limiter import RateLimiter, Throttle
from trieye.replay.prefetch import DeviceBatches, Prefetcher
from trieye.replay.rows.memory import open_memory
from trieye.replay.rows.schema import Column, Padding, RowOptions, checked_capacity
from trieye.replay.rows.store import AttachedReplay, ReplayHandle
from trieye.replay.samplers import checked_kind, make_sampler
from trieye.replay.samplers.base import SampledIds
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, StateParts

_SAME_IN_CONFIG = (
    "capacity", "sampler_options", "storage", "storage_dir", "n_step", "gamma", "frame_stack", "padding", "dedup_next",
    "max_reuse", "max_staleness", "prefault",
)  # fmt: skip


def arguments_of(config: ReplayConfig) -> dict[str, Any]:
    """Return the arguments of the `ReplayBuffer` that a row config describes, except its limiter and seed."""
    return {"sampler": config.kind, **{name: getattr(config, name) for name in _SAME_IN_CONFIG}}


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
        kind = checked_kind(sampler, sampler_options or {}, max_reuse=max_reuse, max_staleness=max_staleness)
        self.capacity, self.sampler = checked_capacity(capacity), sampler
        if her is not None and (n_step > 1 or sampler == "sequence"):
            raise ConfigurationError("her relabels single rows; it supports neither n_step nor sampler 'sequence'")
        walks = sampler == "sequence" or her is not None
        options = RowOptions(n_step, gamma, dict(frame_stack or {}), padding, dedup_next, walks)
        make = partial(make_sampler, sampler, dict(sampler_options or {}), capacity=self.capacity)
        self._throttle = Throttle(limiter)
        self._state = BufferState(
            self.capacity,
            options,
            self._throttle,
            kind=kind,
            make_sampler=partial(make, max_reuse=max_reuse, max_staleness=max_staleness),
            open_memory=partial(open_memory, storage, storage_dir, prefault=prefault),
            seed=seed,
        )
        self._her, self._storage = her, storage
        self._on_devices = DeviceBatches()
        if schema is not None:
            columns = [Column.from_dtype(name, spec) for name, spec in schema.items()]
            self._state.store = self._state.made_for(columns)

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Create the buffer that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is `fragment`; `trieye.replay.fragments` implements that one.
        """
        if config.kind == "fragment":
            raise ConfigurationError(
                "replay.kind=fragment does not describe a ReplayBuffer of rows; use "
                "trieye.replay.fragments.FragmentBuffer.from_config(config)"
            )
        return cls(limiter=RateLimiter.from_config(config.limiter), seed=seed, **arguments_of(config))

    def __len__(self) -> int:
        store = self._state.store
        return 0 if store is None else store.total - store.low

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
        content = self._state
        if (store := content.store) is None or self._throttle.is_needed:
            return content.add(row, env_id)
        row_id = store.add(row, env_id)
        content.sampler.added(row_id, 1)
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
        content = self._state
        if (store := content.store) is None or self._throttle.is_needed or versions is not None:
            return content.extend(batch, env_ids, versions)
        first, count = store.extend(batch, env_ids)
        content.sampler.added(first, count)
        return np.arange(first, first + count)

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
            self._throttle.settle()
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
        store = self._state.filled()
        if n < 1:
            raise ConfigurationError(f"sample({n}): n must be at least 1")
        return self._state.draw(n, store, above=above, again=again)

    def rows(self, draw: SampledIds, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch:
        """Copy the rows that `draw` chose; the second half of `sample`."""
        store = self._state.filled()
        batch = store.reader.batch(draw, store.low, out, keys)
        if self._her is not None:
            assert store.links is not None  # noqa: S101 - RowOptions.walks is set with her
            achieved = partial(store.reader.column, self._her.achieved_key, low=store.low)
            self._her.relabel(batch.data, batch.ids, store.links, achieved, store.low, self._state.her_rng)
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
        return self._throttle.watch(prefetcher)

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set the priorities of rows; updates of overwritten rows are ignored and counted.

        Samplers without priorities validate the arguments and change nothing, so an algorithm runs with any sampler.

        Returns:
            The number of `ids` that are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, an id was never returned, or a priority is negative or not finite.
        """
        return self._state.update_priorities(ids, priorities)

    def set_version(self, version: int) -> None:
        """Set the version of the learner's model, for `max_staleness`.

        Raises:
            ConfigurationError: The version is lower than the previous one.
        """
        self._state.set_version(version)

    def iter_rows(self, chunk: int = 4096) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.int64]]]:
        """Yield all rows in their original form, oldest first; add no rows during the iteration.

        Args:
            chunk: Rows per chunk.

        Yields:
            Arrays `[n, ...]` by key, and int64 `[n]` episode numbers, equal within one episode. Passed as `env_ids` to
            another buffer, they keep episodes apart. All 0 if this buffer does not track episodes.
        """
        if (store := self._state.opened()) is not None:
            yield from store.reader.iter_rows(store.low, store.total, chunk)

    @property
    def handle(self) -> ReplayHandle:
        """The argument of `attach` for another process of this machine; can be pickled.

        Raises:
            ConfigurationError: The rows are not in shared memory, or there is no schema yet.
        """
        return ReplayHandle.of(self._state.opened(), self._storage)

    @staticmethod
    def attach(handle: ReplayHandle) -> AttachedReplay:
        """Return a read-only view of a buffer that another process of this machine owns.

        Raises:
            ConfigurationError: That process has exited, or its buffer was closed.
        """
        return AttachedReplay(handle)

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready for logging."""
        return self._state.counts.stats(self.capacity, self._state.store)

    def metrics(self) -> dict[str, float]:
        """Return the replay metrics of a run by name; rates cover the time since the last call."""
        return self._state.counts.metrics(self._state.store)

    def interrupt(self, env_id: int | None = None) -> None:
        """Start a new episode with the next row although the previous row did not end one.

        Call it after recreating or resetting an environment in mid-episode, and after a restore, unless the state of
        the environments was restored as well.

        Args:
            env_id: The environment; all environments if None.
        """
        if (store := self._state.opened()) is not None:
            store.interrupt(env_id)

    def clear(self) -> None:
        """Remove all rows; schema, id counter and random state are unchanged."""
        self._state.clear()

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot for an exact resume, with the rows that no known part contains as new parts.

        Args:
            known: Names of the parts in finished checkpoints.
        """
        return self._state.state_parts(known)

    def load_state_dict(self, state: Any, *, lazy: bool = False) -> None:
        """Restore a saved buffer; the next draw equals the next draw of the saved buffer.

        This buffer's capacity applies: a smaller buffer retains the newest rows. So do its `n_step`, `gamma`, `padding`
        and sampler options, since they affect draws only. Rows of a buffer that did not track the order of rows are
        drawn with windows of a single row. Where `state.on_damage` allows it, rows of damaged parts are skipped, logged
        and counted in `stats()["lost"]`; the rows before them move up, and the next save rewrites all rows.

        Args:
            state: The saved buffer, a `SavedParts`.
            lazy: Leave the rows in the files and copy each one when it is first drawn. Only with storage `ram`, since
                other processes could not read such rows.

        Raises:
            ConfigurationError: The format, sampler, schema, frame stacks or `dedup_next` differ, or only one of the two
                buffers has a bound (`max_reuse`, `max_staleness`); nothing was changed.
            CheckpointError: A part is damaged and `state.on_damage` forbids skipping it; the buffer is then empty.
        """
        self._state.load_state_dict(state, lazy=lazy)

    def save(self, path: str | Path) -> None:
        """Write the buffer to a directory, replaced atomically; rows that it already contains are not written again.

        Raises:
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
        self._state.close()
