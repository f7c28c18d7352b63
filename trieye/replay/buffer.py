"""ReplayBuffer: the newest rows of a training, drawn by a sampler."""

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
from trieye.replay.content import Content
from trieye.replay.hindsight import Hindsight
from trieye.replay.limiter import Limiter, Pacing
from trieye.replay.prefetch import DeviceBatches, Prefetcher
from trieye.replay.rows.memory import open_memory
from trieye.replay.rows.schema import Column, Padding, RowOptions, checked_capacity
from trieye.replay.rows.store import AttachedReplay, ReplayHandle
from trieye.replay.samplers import checked_kind, make_sampler
from trieye.replay.samplers.base import Draw
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, StateParts

_SAME_IN_CONFIG = (
    "capacity", "sampler_options", "storage", "storage_dir", "n_step", "gamma", "frame_stack", "padding", "dedup_next",
    "max_reuse", "max_staleness", "prefault",
)  # fmt: skip


def arguments_of(config: ReplayConfig) -> dict[str, Any]:
    """Return the arguments of the `ReplayBuffer` that a config of rows describes, all but its limiter and its seed."""
    return {"sampler": config.kind, **{name: getattr(config, name) for name in _SAME_IN_CONFIG}}


class ReplayBuffer:
    """The last `capacity` rows, drawn by a sampler.

    Rows are copied on the way in and on the way out. Each row has an id, counted from 0 over the buffer's whole life,
    so an id never means another row. One thread at a time: the buffer has no lock.

    Example:
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
        her: Hindsight | None = None,
        limiter: Limiter | None = None,
        prefault: bool = True,
        seed: int = 0,
    ) -> None:
        """Make an empty buffer.

        Args:
            capacity: Rows kept; the oldest is overwritten first.
            schema: A NumPy dtype for each key, `(np.float32, (4,))` for an array; taken from the first row if None.
            sampler: How rows are drawn: `uniform`, `prioritized` or `sequence`.
            sampler_options: Keyword arguments of that sampler, such as `alpha` or `length`.
            storage: Where rows live: `ram`; `shm`, memory that other processes of this machine can read (`handle`);
                `mmap`, files that may be larger than the memory.
            storage_dir: Directory of those files. They have no names, and vanish with the process.
            n_step: Sum rewards over so many rows: adds the key `n`, and `next_*`, `discount` and the ends of an episode
                are those of the last of these rows.
            gamma: Discount of a reward for each row that it comes later; `discount` of a batch says what is left of it.
            frame_stack: Frames in a stack, by key. Rows hold single frames; a draw has `[n, frames, ...]`, the newest
                frame last. Applies to `next_<key>` too.
            padding: What stands in a stack before the first frame of an episode: that frame again (`reset`) or zeros
                (`zero`).
            dedup_next: Keep `next_<key>` only where the next row of the same environment does not hold it as `<key>`:
                half the memory, with the same draws.
            max_reuse: Times that a row may be drawn; any if None.
            max_staleness: Versions that a row may be behind the one of `set_version` when it is drawn; any if None.
            her: Replaces goals and rewards of drawn rows (hindsight experience replay).
            limiter: Keeps draws and inserts in a ratio: the one that is ahead raises `ReplayTimeoutError`.
            prefault: Take the memory (or the disk space of `mmap`) now, not while training.
            seed: Seed of the draws.

        Raises:
            ConfigurationError: The capacity is below 1 or beyond the memory, or another value is not usable.
        """
        self._made_with = {name: value for name, value in locals().items() if name not in {"self", "__class__"}}
        kind = checked_kind(sampler, sampler_options or {}, max_reuse=max_reuse, max_staleness=max_staleness)
        self.capacity, self.sampler = checked_capacity(capacity), sampler
        if her is not None and (n_step > 1 or sampler == "sequence"):
            raise ConfigurationError("her relabels single rows; it goes with neither n_step nor sampler 'sequence'")
        walks = sampler == "sequence" or her is not None
        options = RowOptions(n_step, gamma, dict(frame_stack or {}), padding, dedup_next, walks)
        make = partial(make_sampler, sampler, dict(sampler_options or {}), capacity=self.capacity)
        self._pacing = Pacing(limiter)
        self._content = Content(
            self.capacity,
            options,
            self._pacing,
            kind=kind,
            make_sampler=partial(make, max_reuse=max_reuse, max_staleness=max_staleness),
            open_memory=partial(open_memory, storage, storage_dir, prefault=prefault),
            seed=seed,
        )
        self._her, self._storage = her, storage
        self._on_devices = DeviceBatches()
        if schema is not None:
            columns = [Column.from_dtype(name, spec) for name, spec in schema.items()]
            self._content.store = self._content.made_for(columns)

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Make the buffer that the `replay` group of a config describes.

        Raises:
            ConfigurationError: Its kind is `fragment`, which `trieye.replay.fragments` makes.
        """
        if config.kind == "fragment":
            raise ConfigurationError(
                "replay.kind=fragment is no ReplayBuffer of rows; make a "
                "trieye.replay.fragments.FragmentBuffer.from_config(config)"
            )
        return cls(limiter=Limiter.from_config(config.limiter), seed=seed, **arguments_of(config))

    def __len__(self) -> int:
        store = self._content.store
        return 0 if store is None else store.total - store.low

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a copy to another process: its rows travel in arrays, and a handle (`handle`) is what shares them."""
        return partial(type(self), **self._made_with), (), encode(self, copy=False)

    def __setstate__(self, state: EncodedState) -> None:
        self.load_state_dict(decode(state, copy=False))

    def add(self, env_id: int = 0, /, **row: Any) -> int:
        """Copy one row in and return its id.

        Args:
            env_id: The environment that the row comes from; its rows are added in the order of time.
            row: A value for each key.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value has the wrong shape or kind; nothing was added.
        """
        content = self._content
        if (store := content.store) is None or self._pacing.is_needed:
            return content.add(row, env_id)
        row_id = store.add(row, env_id)
        content.sampler.added(row_id, 1)
        return row_id

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None = None, *, versions: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Copy rows in, arrays `[n, ...]` by key, and return their ids, int64 `[n]`.

        Of more rows than the capacity only the last are kept; the others get ids all the same.

        Args:
            batch: The rows; those of one environment in the order of time.
            env_ids: Whole numbers `[n]`, the environment that each row comes from; 0 for all if None.
            versions: Whole numbers `[n]`, the model versions that made the rows; that of `set_version` if None. Only
                with `max_staleness`.

        Raises:
            ConfigurationError: As `add`, or the arrays differ in length; nothing was added.
        """
        content = self._content
        if (store := content.store) is None or self._pacing.is_needed or versions is not None:
            return content.extend(batch, env_ids, versions)
        first, count = store.extend(batch, env_ids)
        content.sampler.added(first, count)
        return np.arange(first, first + count)

    def sample(
        self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None, device: str | None = None
    ) -> Batch:
        """Draw `n` rows, with replacement, or `n` sequences of rows.

        Args:
            n: Number of rows.
            out: An earlier batch of the same `n` and `keys`, whose memory is written again; its old values are gone.
            keys: The keys wanted; all if None.
            device: Hand out torch tensors on this device, such as `cuda`, for the current stream of this thread; NumPy
                arrays if None. Ids stay NumPy arrays.

        Raises:
            ConfigurationError: The buffer is empty, `n` is below 1, a key or the device is unknown, or `out` is of
                another size, or given with a device.
        """
        if self._her is not None:
            self._pacing.settle()
        if device is None:
            return self.rows(self.draw(n), out, keys)
        signature = n, None if keys is None else tuple(keys)
        return self._on_devices.make(
            device, out, signature, lambda: self.draw(n), lambda draw, out: self.rows(draw, out, keys)
        )

    def draw(self, n: int, *, above: int = 0, again: bool = False) -> Draw:
        """Decide about the rows of a batch, which `rows` copies; the first half of `sample`.

        Args:
            n: Number of rows, or of sequences.
            above: Rows below this id are drawn only where a few tries find no others.
            again: In place of as many rows of an earlier draw that were overwritten before they were copied: only the
                rows' own uses (`max_reuse`) are counted, and the limiter is not asked.
        """
        store = self._content.filled()
        if n < 1:
            raise ConfigurationError(f"sample({n}): at least 1 row must be asked for")
        return self._content.draw(n, store, above=above, again=again)

    def rows(self, draw: Draw, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch:
        """Copy the rows that `draw` decided about; the second half of `sample`."""
        store = self._content.filled()
        batch = store.reader.batch(draw, store.low, out, keys)
        if self._her is not None:
            assert store.links is not None  # noqa: S101 - the options of the rows say so
            achieved = partial(store.reader.column, self._her.achieved_key, low=store.low)
            self._her.relabel(batch.data, batch.ids, store.links, achieved, store.low, self._content.her_rng)
        return batch

    def iter_batches(
        self, n: int, *, keys: Sequence[str] | None = None, prefetch: int = 2, device: str | None = None
    ) -> Iterator[Batch]:
        """Yield batches of `n` rows for ever.

        Args:
            n: Number of rows, or of sequences.
            keys: The keys wanted; all if None.
            prefetch: Batches that a thread copies ahead. They are decided about as early, and each is valid until the
                next one is asked for. With 0 there is no thread, and batches have memory of their own.
            device: Hand out torch tensors on this device, as `sample`; NumPy arrays if None.
        """
        if not prefetch:
            return iter(partial(self.sample, n, keys=keys, device=device), None)
        prefetcher = Prefetcher(
            lambda: self.draw(n), lambda draw, out: self.rows(draw, out, keys), depth=prefetch, device=device
        )
        return self._pacing.watch(prefetcher)

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set priorities of rows; those of rows that were overwritten meanwhile are left out and counted.

        Without priorities they are checked and change nothing, so that an algorithm runs unchanged with any sampler.

        Returns:
            How many of `ids` are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, an id was never given out, or a priority is negative or not finite.
        """
        return self._content.update_priorities(ids, priorities)

    def set_version(self, version: int) -> None:
        """Set the version of the model that learns, for `max_staleness`.

        Raises:
            ConfigurationError: It is below the one before.
        """
        self._content.set_version(version)

    def iter_rows(self, chunk: int = 4096) -> Iterator[tuple[dict[str, NDArray[Any]], NDArray[np.int64]]]:
        """Yield all rows as they were added, oldest first; none may be added meanwhile.

        Args:
            chunk: Rows at a time.

        Yields:
            Arrays `[n, ...]` by key, and int64 `[n]`: numbers that are equal for the rows of one episode. As `env_ids`
            of another buffer they keep episodes apart. All 0 if this buffer does not know of episodes.
        """
        if (store := self._content.opened()) is not None:
            yield from store.reader.as_added(store.low, store.total, chunk)

    @property
    def handle(self) -> ReplayHandle:
        """What `attach` takes in another process of this machine; can be pickled.

        Raises:
            ConfigurationError: The rows are not in memory that others can read, or there is no schema yet.
        """
        return ReplayHandle.of(self._content.opened(), self._storage)

    @staticmethod
    def attach(handle: ReplayHandle) -> AttachedReplay:
        """Return a view, to be read only, of a buffer that another process of this machine owns.

        Raises:
            ConfigurationError: That process is gone, or its buffer was closed.
        """
        return AttachedReplay(handle)

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready to be logged."""
        return self._content.counts.stats(self.capacity, self._content.store)

    def metrics(self) -> dict[str, float]:
        """Return what a run logs about its replay, by the names of the metrics; rates since the last call."""
        return self._content.counts.metrics(self._content.store)

    def interrupt(self, env_id: int | None = None) -> None:
        """Let the next row begin an episode, though the one before did not end: its environment was made anew or reset.

        After a restore this is so, unless the state of the environments was saved and restored as well.

        Args:
            env_id: The environment; all of them if None.
        """
        if (store := self._content.opened()) is not None:
            store.interrupt(env_id)

    def clear(self) -> None:
        """Forget all rows; schema, ids and random state go on."""
        self._content.clear()

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot: what is needed to go on exactly here, with the rows of no known part as new parts.

        Args:
            known: Names of parts that a finished checkpoint holds.
        """
        return self._content.state_parts(known)

    def load_state_dict(self, state: Any, *, lazy: bool = False) -> None:
        """Take over a saved content; the next draw is the one that the saved buffer would have made.

        The capacity stays this buffer's own: a smaller buffer keeps the newest rows. So do `n_step`, `gamma`, `padding`
        and the options of the sampler, which apply when rows are drawn; rows of a buffer that did not need to know
        which row follows which are drawn as one-step rows. Rows of damaged parts are left out
        where `state.on_damage` allows it, said in the log and counted in `stats()["lost"]`; the rows before them move
        up, and the next save writes all of them anew.

        Args:
            state: What was saved of a buffer, a `SavedParts`.
            lazy: Leave the rows in the files, and copy each when it is first drawn. Only with storage `ram`: no other
                process could read such rows.

        Raises:
            ConfigurationError: It is of another format, sampler or schema, of other stacks or another `dedup_next`, or
                only one of the two has a bound (`max_reuse`, `max_staleness`); nothing was changed.
            CheckpointError: A part is damaged, and that is refused; the buffer is empty then.
        """
        self._content.load_state_dict(state, lazy=lazy)

    def save(self, path: str | Path) -> None:
        """Write the content as a directory, replaced atomically; rows that it holds already are not written again.

        Raises:
            SerializationError: The disk is full, or the directory cannot be written; what was there is untouched.
        """
        save_parts(Path(path), self)

    def load(self, path: str | Path, *, lazy: bool = False) -> None:
        """Verify a directory that `save` wrote and take over its content; `lazy` as in `load_state_dict`.

        Raises:
            CheckpointError: There is no such directory, or it is damaged.
            ConfigurationError: It holds rows of another schema.
        """
        self.load_state_dict(load_parts(Path(path)), lazy=lazy)

    def close(self) -> None:
        """Give the memory back; the buffer takes and gives nothing more."""
        self._content.close()
