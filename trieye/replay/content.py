"""Content: what a replay buffer holds and how that changes, saved by what is new and restored as a whole."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.limiter import Pacing
from trieye.replay.rows.memory import Memory
from trieye.replay.rows.ring import row_count
from trieye.replay.rows.schema import Column, Layout, RowOptions, as_array, describe
from trieye.replay.rows.segments import Holes, Segments
from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import (
    Draw,
    Sampler,
    UniformSampler,
    below,
    checked_priorities,
    spliced,
    with_history,
)
from trieye.replay.samplers.eligible import EligibleSampler, checked_versions
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

logger = logging.getLogger(__name__)

FORMAT = 2

MAX_REDRAWS = 5


class Content:
    """Rows, their sampler, random generators and counts.

    Attributes:
        store: The rows; None before the schema is known.
        sampler: Chooses among them.
        her_rng: Decides about goals in hindsight; used by the thread of a prefetcher, if there is one.
        counts: What happened so far.
    """

    def __init__(
        self,
        capacity: int,
        options: RowOptions,
        pacing: Pacing,
        *,
        kind: str,
        make_sampler: Callable[..., Sampler],
        open_memory: Callable[..., Memory],
        seed: int,
    ) -> None:
        """Make a content without rows or schema.

        Args:
            capacity: Rows kept.
            options: What is made of the rows.
            pacing: What adding and drawing have to wait for.
            kind: What `checked_kind` returned for the sampler; only a state of the same kind can be taken over.
            make_sampler: Makes a sampler for `links`.
            open_memory: Opens memory for rows, which are written at once with `is_full_soon`.
            seed: Seed of the draws.
        """
        open_memory().close()  # a wrong name shows now, not with the first row
        self._capacity, self._options, self._kind = capacity, options, kind
        self._make_sampler, self._open_memory = make_sampler, open_memory
        self._pacing = pacing
        self._rng, self.her_rng = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        self.store: RowStore | None = None
        self.sampler: Sampler = UniformSampler()  # until there are rows
        self.counts = Counts()
        self._segments = Segments()
        self._version = 0
        self._is_closed = False

    def opened(self) -> RowStore | None:
        """Return the rows, if there are any yet.

        Raises:
            ConfigurationError: The buffer is closed.
            ReplayClosedError: This process was forked by the one that owns the rows.
        """
        if self._is_closed:
            raise ConfigurationError("the replay buffer is closed; make a new one")
        if self.store is not None:
            self.store.check_process()
        return self.store

    def filled(self) -> RowStore:
        """Return the rows, as `opened`.

        Raises:
            ConfigurationError: There are none.
        """
        if (store := self.opened()) is None or store.total == store.low:
            raise ConfigurationError("the replay buffer is empty; add rows before sampling, len(buffer) tells how many")
        return store

    def made_for(self, columns: Sequence[Column], *, is_full_soon: bool = False) -> RowStore:
        """Return a store without rows, and make the sampler for it; `store` stays what it was."""
        store = RowStore(Layout(self._capacity, columns, self._options), self._open_memory(is_full_soon=is_full_soon))
        self.sampler = self._make_sampler(links=store.links)
        if isinstance(self.sampler, EligibleSampler):
            self.sampler.set_version(self._version)
        return store

    def add(self, row: Mapping[str, Any], env_id: int) -> int:
        """Do what `ReplayBuffer.add` does, where it is the first row or something has to be waited for."""
        store = self.opened() or self.made_for([Column.from_value(*item, rows=False) for item in row.items()])
        self._pacing.before_rows(1)
        row_id = store.add(row, env_id)
        self.store = store  # only now: a refused first row leaves no schema behind
        self.sampler.added(row_id, 1)
        self._pacing.after_rows(1)
        return row_id

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None, versions: ArrayLike | None
    ) -> NDArray[np.int64]:
        """Do what `ReplayBuffer.extend` does, as `add`, or with versions."""
        store = self.opened() or self.made_for([Column.from_value(*item, rows=True) for item in batch.items()])
        num_rows = row_count({key: as_array(key, array) for key, array in batch.items()})
        of_rows = None if versions is None else checked_versions(versions, num_rows)
        self._pacing.before_rows(num_rows)
        first, count = store.extend(batch, env_ids)
        self.store = store
        self.sampler.added(first, count)
        self._pacing.after_rows(count)
        ids = np.arange(first, first + count)
        if of_rows is not None and isinstance(self.sampler, EligibleSampler):
            kept = slice(max(count - self._capacity, 0), None)
            self.sampler.set_row_versions(ids[kept], of_rows[kept])
        return ids

    def draw(self, n: int, store: RowStore, *, above: int, again: bool) -> Draw:
        """Decide about `n` rows, or sequences, of the store; see `ReplayBuffer.draw`."""
        if self._pacing.is_needed and not again:
            self._pacing.before_draw(n)
        draw = self._decide(n, store)
        if above:
            draw = self._without_late(draw, store, above)
        if again:
            return draw
        # counted is what the user gets, whatever was discarded on the way
        self.sampler.handed_out(draw)
        if self._pacing.is_needed:
            self._pacing.after_draw(n)
        self.counts.sampled += draw.ids.size
        if "staleness_mean" in draw.info:
            self.counts.was_stale(draw)
        return draw

    def _without_late(self, draw: Draw, store: RowStore, above: int) -> Draw:
        """Replace rows below an id where a few tries find others."""
        for _ in range(MAX_REDRAWS):
            late = below(draw, above)
            if not late.any():
                break
            self.sampler.discarded(draw.ids.reshape(len(draw), -1)[late, 0], for_good=False)
            draw = spliced(draw, late, self._decide(int(np.count_nonzero(late)), store))
        return draw

    def _decide(self, n: int, store: RowStore) -> Draw:
        low, total = store.low, store.total
        draw = self.sampler.draw(n, low, total, self._rng)
        if not store.layout.num_earlier:
            return draw
        return with_history(
            draw, lambda ids: store.reader.lacks_history(ids, low), self.sampler, self._rng, low=low, high=total
        )

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set the priorities of those rows that are still there, and return how many these are."""
        store = self.opened()
        known, values = checked_priorities(ids, priorities, 0 if store is None else store.total)
        if store is None:
            return 0
        alive = known >= store.low
        count = int(np.count_nonzero(alive))
        if count < known.size:
            self.counts.late_updates += known.size - count
            known, values = known[alive], values[alive]
        self.sampler.update(known, values)
        return count

    def set_version(self, version: int) -> None:
        """Set the version of the model that learns, also for samplers to come."""
        if isinstance(self.sampler, EligibleSampler):
            self.sampler.set_version(version)
        elif version < self._version:
            raise ConfigurationError(f"set_version({version}): versions only grow, and {self._version} was set before")
        self._version = version

    def clear(self) -> None:
        """Forget all rows."""
        self._pacing.settle()
        if (store := self.opened()) is not None:
            self._removed(store.total - store.low)
            store.clear()
            self.sampler.forgot(store.low)

    def close(self) -> None:
        """End the threads that copy ahead, and give the memory back."""
        self._pacing.close()
        if self.store is not None:
            self.store.close()
        self.store, self.sampler, self._is_closed = None, UniformSampler(), True

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `ReplayBuffer.state_parts`."""
        store, limiter = self.opened(), self._pacing.limiter
        self._pacing.settle()  # a thread that copies ahead may draw goals
        kept, new = ((), {}) if store is None else self._segments.save(store, known)
        state = {
            "format": FORMAT,
            "sampler": self._kind,
            "rng": self._rng.bit_generator.state,
            "her_rng": self.her_rng.bit_generator.state,
            "limiter": None if limiter is None else limiter.state_dict(),
            "counts": self.counts.state_dict(),
            "store": None,
        }
        if store is not None:
            state["store"] = {
                **store.state_dict(),
                "sampler": self.sampler.state_dict(),
                "segments": self._segments.state_dict(),
            }
        return StateParts(state, kept, new)

    def load_state_dict(self, state: Any, *, lazy: bool) -> None:
        """Take over a saved content; see `ReplayBuffer.load_state_dict`."""
        self.opened()
        self._pacing.settle()
        saved, limiter = self._checked(state), self._pacing.limiter
        held, holes = saved.state["store"], None
        if held is not None:
            holes = self._load_rows(held, saved, lazy=lazy)
        elif self.store is not None and self.store.total:
            self.store.close()
            self.store = self.made_for(list(self.store.layout.columns.values()))
            self._segments = Segments()  # the ids begin again, and no part that is known holds these rows
        self._rng.bit_generator.state = saved.state["rng"]
        self.her_rng.bit_generator.state = saved.state["her_rng"]
        if limiter is not None and saved.state["limiter"] is not None:
            limiter.load_state_dict(saved.state["limiter"])
        self.counts.load_state_dict(saved.state["counts"])
        if self.store is not None and holes is not None:
            self.counts.lost += holes.num_rows
            self._removed(holes.num_rows)
            logger.warning(
                "rows %s of the replay are lost, as their files are damaged: it goes on with the other %d, which the "
                "next save writes anew",
                holes,
                self.store.total - self.store.low,
            )

    def _load_rows(self, held: Mapping[str, Any], saved: SavedParts, *, lazy: bool) -> Holes | None:
        """Put saved rows into a store without any, and return which of them are lost."""
        own = self.store
        columns = _saved_columns(held, None if own is None else own.layout, self._options)
        if own is not None and own.total:
            own.close()
        if own is None or own.total:
            self.store = own = None  # its memory is free before that of the other is taken
            is_full_soon = not lazy and held["total"] - held["low"] >= self._capacity
            own = self.made_for(columns, is_full_soon=is_full_soon)
        low = max(held["low"], held["total"] - self._capacity)
        holes = self._segments.restore(own, saved, held, low, lazy=lazy and own.memory.handle is None)
        if holes is not None:
            held, low = holes.applied(held), holes.low
        own.load_state_dict(held, low)
        self.sampler.load_state_dict(held["sampler"])
        self.sampler.forgot(low)
        self.store = own
        return holes

    def _checked(self, state: Any) -> SavedParts:
        held = state.state if isinstance(state, SavedParts) and isinstance(state.state, dict) else {}
        if held.get("format") != FORMAT or held.get("sampler") != self._kind:
            raise ConfigurationError(
                f"replay state has format {held.get('format')!r} and sampler {held.get('sampler')!r}; "
                f"this buffer reads format {FORMAT} and sampler {self._kind!r}; make it with the same sampler and "
                "bounds"
            )
        saved: SavedParts = state
        return saved

    def _removed(self, count: int) -> None:
        if self._pacing.limiter is not None:
            self._pacing.limiter.removed(count)


class Counts:
    """Counts over a buffer's life, and rates since they were last asked for.

    Attributes:
        sampled: Rows handed out.
        late_updates: Priorities that came for rows which were overwritten by then.
        lost: Rows that a restore could not bring back, as their files were damaged.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.late_updates = 0
        self.lost = 0
        self._asked: tuple[float, int] | None = None  # monotonic seconds, and rows added by then
        self._stale: tuple[float, int, float] | None = None  # sum of versions behind, rows, most versions behind

    def was_stale(self, draw: Draw) -> None:
        """Take note of how many versions the rows of a draw were behind."""
        behind, rows, most = self._stale or (0.0, 0, 0.0)
        behind += draw.info["staleness_mean"] * len(draw)
        self._stale = behind, rows + len(draw), max(most, draw.info["staleness_max"])

    def stats(self, capacity: int, store: RowStore | None) -> dict[str, float]:
        """Return the counts, and those of the rows, as plain numbers."""
        return {
            "size": 0 if store is None else store.total - store.low,
            "capacity": capacity,
            "added": 0 if store is None else store.total,
            "sampled": self.sampled,
            "late_updates": self.late_updates,
            "lost": self.lost,
            "size_bytes": 0 if store is None else store.size_bytes,
        }

    def metrics(self, store: RowStore | None) -> dict[str, float]:
        """Return metrics by name; what is not known yet is left out. Rates are those since the last call."""
        added = 0 if store is None else store.total
        metrics = {
            "replay/size": float(0 if store is None else store.total - store.low),
            "replay/dropped/late_update": float(self.late_updates),
            "replay/dropped/damaged": float(self.lost),
        }
        now = time.monotonic()
        if self._asked is not None and now > self._asked[0]:
            metrics["replay/inserts_per_s"] = (added - self._asked[1]) / (now - self._asked[0])
        if added:
            metrics["replay/samples_per_insert"] = self.sampled / added
        if self._stale is not None:
            behind, rows, most = self._stale
            metrics |= {"replay/staleness_mean": behind / rows, "replay/staleness_max": most}
        self._asked, self._stale = (now, added), None
        return metrics

    def state_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"sampled": self.sampled, "late_updates": self.late_updates, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take over counts that were saved."""
        self.sampled, self.late_updates = int(state["sampled"]), int(state["late_updates"])
        self.lost = int(state.get("lost", 0))


def _saved_columns(held: Mapping[str, Any], own: Layout | None, options: RowOptions) -> list[Column]:
    """Return the columns of saved rows.

    Args:
        held: What `RowStore.state_dict` returned.
        own: The layout of the buffer that takes them over, if it has one.
        options: What that buffer makes of its rows.

    Raises:
        ConfigurationError: They are not those of `own`, or what was kept of them does not suffice for `options`.
    """
    columns = [Column(name, tuple(spec[1]), np.dtype(spec[0])) for name, spec in held["columns"].items()]
    if own is not None and list(own.columns.values()) != columns:
        found = describe({column.name: column for column in columns})
        raise ConfigurationError(
            f"replay state holds rows of {found}, this buffer of {describe(own.columns)}; "
            "load it into a buffer of the same schema"
        )
    for name, wanted in options.kept.items():
        found = held["options"][name]
        if found != wanted and not (name == "counts_steps" and found):
            raise ConfigurationError(
                f"replay state was made with {name}={found}, this buffer with {name}={wanted}; "
                "load it into a buffer of the same options"
            )
    return columns
