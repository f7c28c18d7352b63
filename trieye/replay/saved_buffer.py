"""SavedBuffer: all that a replay buffer is made of, saved by what is new and restored as a whole."""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trieye.checkpoints.directory import load_parts, save_parts
from trieye.exceptions import ConfigurationError
from trieye.replay.checks import FORMAT, checked_state, saved_columns
from trieye.replay.limiter import Limiter
from trieye.replay.pacing import Pacing
from trieye.replay.rows.layout import Layout, RowOptions
from trieye.replay.rows.memory import Memory
from trieye.replay.rows.schema import Column
from trieye.replay.rows.segments import Segments
from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import Sampler
from trieye.replay.samplers.eligible import EligibleSampler
from trieye.replay.samplers.uniform import UniformSampler
from trieye.replay.stats import Counts
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, StateParts

logger = logging.getLogger(__name__)


class SavedBuffer:
    """Rows, their sampler, random generators and counts.

    Attributes:
        capacity: Rows kept.
        sampler: How rows are drawn.
    """

    capacity: int

    def __init__(
        self,
        sampler: str,
        options: RowOptions,
        *,
        kind: str,
        make_sampler: Callable[..., Sampler],
        open_memory: Callable[..., Memory],
        limiter: Limiter | None,
        seed: int,
    ) -> None:
        """Make a buffer without rows or schema.

        Args:
            sampler: Name of the sampler.
            kind: What `checked_kind` returned for it; only a state of the same kind can be taken over.
            options: What is made of the rows.
            make_sampler: Makes a sampler for `links`.
            open_memory: Opens memory for rows, which are written at once with `is_full_soon`.
            limiter: Keeps draws and inserts in a ratio.
            seed: Seed of the draws.
        """
        self.sampler, self._kind = sampler, kind
        self._options, self._make_sampler, self._open_memory = options, make_sampler, open_memory
        open_memory().close()  # a wrong name shows now, not with the first row
        self._pacing = Pacing(limiter)
        self._rng = np.random.default_rng(seed)
        self._her_rng = np.random.default_rng([seed, 1])  # used by the thread of a prefetcher, if there is one
        self._store: RowStore | None = None
        self._sampler: Sampler = UniformSampler()  # until there are rows
        self._version = 0  # that of `set_version` before that
        self._segments, self._counts = Segments(), Counts()
        self._is_closed = False
        self._made_with: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        """Send a copy to another process: its rows travel in arrays, and a handle (`handle`) is what shares them."""
        return _copied, (type(self), self._made_with, encode(self, copy=False))

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot: what is needed to go on exactly here, with the rows of no known part as new parts.

        Args:
            known: Names of parts that a finished checkpoint holds.
        """
        store = self._open_store()
        self._pacing.settle()  # a thread that copies ahead may draw goals
        kept, new = ((), {}) if store is None else self._segments.save(store, known)
        state = {
            "format": FORMAT,
            "sampler": self._kind,
            "rng": self._rng.bit_generator.state,
            "her_rng": self._her_rng.bit_generator.state,
            "limiter": self._pacing.state_dict(),
            "counts": self._counts.state_dict(),
            "store": None,
        }
        if store is not None:
            state["store"] = {
                **store.state_dict(),
                "sampler": self._sampler.state_dict(),
                "segments": self._segments.state_dict(),
            }
        return StateParts(state, kept, new)

    def load_state_dict(self, state: Any, *, lazy: bool = False) -> None:
        """Take over a saved content; the next draw is the one that the saved buffer would have made.

        The capacity stays this buffer's own: a smaller buffer keeps the newest rows. Rows of damaged parts are left out
        where `state.on_damage` allows it, said in the log and counted in `stats()["lost"]`; the rows before them move
        up, and the next save writes all of them anew.

        Args:
            state: What was saved of a buffer, a `SavedParts`.
            lazy: Leave the rows in the files, and copy each when it is first drawn. Only with storage `ram`: no other
                process could read such rows.

        Raises:
            ConfigurationError: It is of another format, sampler or schema, or one of the two is with a bound
                (`max_reuse`, `max_staleness`) and the other without; nothing was changed.
            CheckpointError: A part is damaged, and that is refused; the buffer is empty then.
        """
        own = self._open_store()
        self._pacing.settle()
        saved = checked_state(state, self._kind)
        held, holes = saved.state["store"], None
        if held is not None:
            columns = saved_columns(held, None if own is None else own.layout, self._options)
            if own is not None and own.total:
                own.close()
            if own is None or own.total:
                self._store = own = None  # its memory is free before that of the other is taken
                own = self._made_for(columns, is_full_soon=not lazy and held["total"] - held["low"] >= self.capacity)
            low = max(held["low"], held["total"] - self.capacity)
            holes = self._segments.restore(own, saved, held, low, lazy=lazy and own.memory.handle is None)
            if holes is not None:
                held, low = holes.applied(held), holes.low
            own.load_state_dict(held, low)
            self._sampler.load_state_dict(held["sampler"])
            self._sampler.forgot(low)
            self._store = own
        elif own is not None and own.total:
            own.close()
            self._store = self._made_for(list(own.layout.columns.values()))
            self._segments = Segments()  # the ids begin again, and no part that is known holds these rows
        self._rng.bit_generator.state = saved.state["rng"]
        self._her_rng.bit_generator.state = saved.state["her_rng"]
        self._pacing.load_state_dict(saved.state["limiter"])
        self._counts.load_state_dict(saved.state["counts"])
        if self._store is not None and holes is not None:
            self._counts.lost += holes.num_rows
            self._pacing.removed(holes.num_rows)
            logger.warning(
                "rows %s of the replay are lost, as their files are damaged: it goes on with the other %d, which the "
                "next save writes anew",
                holes,
                self._store.total - self._store.low,
            )

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
        self._pacing.close()
        if self._store is not None:
            self._store.close()
        self._store, self._sampler, self._is_closed = None, UniformSampler(), True

    def _open_store(self) -> RowStore | None:
        if self._is_closed:
            raise ConfigurationError("the replay buffer is closed; make a new one")
        if self._store is not None:
            self._store.check_process()
        return self._store

    def _made_for(self, columns: Sequence[Column], *, is_full_soon: bool = False) -> RowStore:
        memory = self._open_memory(is_full_soon=is_full_soon)
        store = RowStore(Layout(self.capacity, columns, self._options), memory)
        self._sampler = self._make_sampler(links=store.reader.links)
        if isinstance(self._sampler, EligibleSampler):
            self._sampler.set_version(self._version)
        return store


def _copied(kind: Callable[..., SavedBuffer], made_with: dict[str, Any], state: EncodedState) -> SavedBuffer:
    buffer = kind(**made_with)
    buffer.load_state_dict(decode(state, copy=False))
    return buffer
