"""ReplayBuffer: a ring of transitions with uniform sampling."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from trieye.config.base import did_you_mean
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.ring import Ring
from trieye.replay.schema import Column, check_keys, describe
from trieye.replay.snapshot import read_snapshot, write_snapshot

SAMPLERS = ("uniform",)
_FORMAT = 1


class ReplayBuffer:
    """The last `capacity` rows, drawn uniformly with replacement.

    Rows are copied on the way in and on the way out. Each row has an id, counted from 0 over the buffer's whole life,
    so an id never means another row. One thread at a time: the buffer has no lock.

    Example:
        >>> buffer = ReplayBuffer(1000, seed=1)
        >>> buffer.add(obs=np.zeros(4, np.float32), action=1, reward=0.5, done=False)
        0
        >>> buffer.sample(32)["obs"].shape
        (32, 4)
    """

    def __init__(
        self,
        capacity: int,
        schema: Mapping[str, DTypeLike] | None = None,
        *,
        sampler: str = "uniform",
        seed: int = 0,
    ) -> None:
        """Make an empty buffer.

        Args:
            capacity: Rows kept; the oldest is overwritten first.
            schema: A NumPy dtype for each key, `(np.float32, (4,))` for an array; taken from the first row if None.
            sampler: How rows are drawn; `uniform` is the only one.
            seed: Seed of the draws.

        Raises:
            ConfigurationError: The capacity is below 1 or beyond the memory, or schema or sampler are unknown.
        """
        if sampler not in SAMPLERS:
            raise ConfigurationError(
                f"sampler {sampler!r} is unknown{did_you_mean(sampler, SAMPLERS)} (known: {', '.join(SAMPLERS)})"
            )
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
            raise ConfigurationError(f"replay capacity is {capacity!r}; it must be a whole number of rows, at least 1")
        self.capacity = int(capacity)
        self.sampler = sampler
        self._rng = np.random.default_rng(seed)
        self._ring: Ring | None = None
        self._total = self._forgotten = self._sampled = 0
        self._is_closed = False
        if schema is not None:
            self._ring = Ring(self.capacity, [Column.from_dtype(name, spec) for name, spec in schema.items()])

    @classmethod
    def from_config(cls, config: ReplayConfig, *, seed: int = 0) -> Self:
        """Make the buffer that the `replay` group of a config describes."""
        return cls(config.capacity, sampler=config.kind, seed=seed)

    def __len__(self) -> int:
        return min(self._total - self._forgotten, self.capacity)

    def add(self, /, **row: Any) -> int:
        """Copy one row in and return its id.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value has the wrong shape or kind; nothing was added.
        """
        ring = self._ring or self._first(row, rows=False)
        ring.write_row(self._total % self.capacity, row)
        self._ring = ring  # only now: a refused first row leaves no schema behind
        self._total += 1
        return self._total - 1

    def extend(self, batch: Mapping[str, ArrayLike]) -> NDArray[np.int64]:
        """Copy rows in, arrays `[n, ...]` by key, and return their ids, int64 `[n]`.

        Of more rows than the capacity only the last are kept; the others get ids all the same.

        Raises:
            ConfigurationError: As `add`, or the arrays differ in length; nothing was added.
        """
        ring = self._ring or self._first(batch, rows=True)
        count = ring.write_rows(self._total % self.capacity, batch)
        self._ring = ring
        self._total += count
        return np.arange(self._total - count, self._total)

    def sample(self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None) -> Batch:
        """Draw `n` rows uniformly, with replacement.

        Args:
            n: Number of rows.
            out: An earlier batch of the same `n` and `keys`, whose memory is written again; its old values are gone.
            keys: The keys wanted; all if None.

        Raises:
            ConfigurationError: The buffer is empty, `n` is below 1, a key is unknown, or `out` is of another size.
        """
        ring = self._filled()
        if n < 1:
            raise ConfigurationError(f"sample({n}): at least 1 row must be asked for")
        if keys is not None and not set(keys) <= set(ring.columns):
            check_keys([*ring.columns, *keys], ring.columns)
        if out is not None and (len(out) != n or list(out) != list(keys or ring.columns)):
            raise ConfigurationError(
                f"sample({n}): `out` holds {len(out)} rows of {', '.join(out)}; reuse a batch of the same size and keys"
            )
        # slots in [first, first + size) with at most one wrap; the ids differ from them by a constant
        first_id = self._total - len(self)
        first = first_id % self.capacity
        slots = self._rng.integers(first, first + len(self), n)
        block, arrays = (None, None) if out is None else (out.records, out.data)
        data, block = ring.gather(slots, keys or list(ring.columns), block, arrays)
        self._sampled += n
        return Batch(data, slots + (first_id - first), _ones(n), {"size": len(self)}, block)

    def sample_many(self, k: int, n: int) -> list[Batch]:
        """Draw `k` batches of `n` rows in one go: the same rows as `k` calls of `sample`, in less time."""
        if k < 1 or n < 1:
            raise ConfigurationError(f"sample_many({k}, {n}): at least 1 batch of 1 row must be asked for")
        whole = self.sample(k * n)
        cuts = [slice(start, start + n) for start in range(0, k * n, n)]
        return [
            Batch({key: array[cut] for key, array in whole.data.items()}, whole.ids[cut], _ones(n), whole.info)
            for cut in cuts
        ]

    def iter_batches(self, n: int, *, keys: Sequence[str] | None = None) -> Iterator[Batch]:
        """Yield batches of `n` rows for ever, each with memory of its own."""
        while True:
            yield self.sample(n, keys=keys)

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Check new priorities and tell how many of the rows are still there.

        Uniform sampling has no priorities, so they change nothing; the call exists so that an algorithm runs unchanged
        with either sampler.

        Returns:
            How many of `ids` are still in the buffer.

        Raises:
            ConfigurationError: The lengths differ, an id was never given out, or a priority is negative or not finite.
        """
        known, values = np.asarray(ids), np.asarray(priorities, np.float64)
        if known.shape != values.shape or known.ndim != 1:
            raise ConfigurationError(
                f"update_priorities: {known.shape} ids and {values.shape} priorities; both must be [n]"
            )
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ConfigurationError("update_priorities: priorities must be finite and at least 0")
        if known.size and (known.dtype.kind not in "iu" or known.min() < 0 or known.max() >= self._total):
            raise ConfigurationError(
                f"update_priorities: ids must be whole numbers in [0, {self._total}), as add() returned"
            )
        return int(np.count_nonzero(known >= self._total - len(self)))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is needed to go on exactly here, as plain data and arrays.

        `rows` are the rows kept, oldest first. They may share memory with the buffer, as the state of a torch module
        does: write or copy them before the next `add`.
        """
        ring = self._open_ring()
        return {
            "format": _FORMAT,
            "capacity": self.capacity,
            "sampler": self.sampler,
            "total": self._total,
            "sampled": self._sampled,
            "rng": self._rng.bit_generator.state,
            "schema": None if ring is None else {name: column.spec for name, column in ring.columns.items()},
            "rows": None if ring is None else ring.rows(self._total - len(self), len(self)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved content; the next draw is the one that the saved buffer would have made.

        The capacity stays this buffer's own: a smaller buffer keeps the newest rows.

        Raises:
            ConfigurationError: The state is of another format, sampler or schema; nothing was changed.
        """
        ring = self._ring_for(state)
        total, size = int(state["total"]), 0
        self._rng.bit_generator.state = state["rng"]
        if ring is not None and state["rows"] is not None:
            size = ring.restore(total, state["rows"])
        self._ring, self._total, self._forgotten = ring, total, total - size
        self._sampled = int(state["sampled"])

    def save(self, path: str | Path) -> None:
        """Write the content to one file, `.npz` without pickle; an old one is replaced atomically.

        Raises:
            OSError: The directory is missing or not writable, or the disk is full.
        """
        write_snapshot(Path(path), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Take over the content of a file that `save` wrote.

        Raises:
            FileNotFoundError: There is no such file.
            SerializationError: The file is damaged.
            ConfigurationError: It holds rows of another schema.
        """
        self.load_state_dict(read_snapshot(Path(path)))

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready to be logged."""
        ring = self._ring
        return {
            "size": len(self),
            "capacity": self.capacity,
            "added": self._total,
            "sampled": self._sampled,
            "size_bytes": 0 if ring is None else ring.size_bytes,
        }

    def clear(self) -> None:
        """Forget all rows; schema, ids and random state go on."""
        self._open_ring()
        self._forgotten = self._total

    def close(self) -> None:
        """Give the memory back; the buffer takes and gives nothing more."""
        self._ring, self._is_closed = None, True
        self._forgotten = self._total

    def _open_ring(self) -> Ring | None:
        if self._is_closed:
            raise ConfigurationError("the replay buffer is closed; make a new one")
        return self._ring

    def _first(self, row: Mapping[str, Any], *, rows: bool) -> Ring:
        self._open_ring()
        return Ring(self.capacity, [Column.from_value(name, value, rows=rows) for name, value in row.items()])

    def _filled(self) -> Ring:
        ring = self._open_ring()
        if ring is None or not len(self):
            raise ConfigurationError("the replay buffer is empty; add rows before sampling, len(buffer) tells how many")
        return ring

    def _ring_for(self, state: Mapping[str, Any]) -> Ring | None:
        ring = self._open_ring()
        if state.get("format") != _FORMAT or state.get("sampler") != self.sampler:
            raise ConfigurationError(
                f"replay state has format {state.get('format')!r} and sampler {state.get('sampler')!r}; "
                f"this buffer reads format {_FORMAT} and sampler {self.sampler!r}"
            )
        if state["schema"] is None:
            return ring
        columns = {name: Column(name, tuple(spec[1]), np.dtype(spec[0])) for name, spec in state["schema"].items()}
        if ring is None:
            return Ring(self.capacity, columns.values())
        if ring.columns != columns:
            raise ConfigurationError(
                f"replay state holds rows of {describe(columns)}, this buffer of {describe(ring.columns)}; "
                "load it into a buffer of the same schema"
            )
        return ring


@lru_cache(maxsize=64)
def _ones(n: int) -> NDArray[np.float32]:
    ones = np.ones(n, np.float32)
    ones.flags.writeable = False
    return ones
