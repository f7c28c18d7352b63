"""BufferState: rows, sampler, random generators and counts of a replay buffer, saved incrementally."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.limiter import Throttle
from trieye.replay.rows.memory import ArrayAllocator
from trieye.replay.rows.ring import row_count
from trieye.replay.rows.schema import Column, Layout, RowOptions, as_array, describe
from trieye.replay.rows.segments import Gaps, StoredParts
from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import (
    SampledIds,
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


class BufferState:
    """Rows, their sampler, random generators and counts.

    Attributes:
        store: The rows; None until there is a schema.
        sampler: Chooses among the rows.
        her_rng: Random generator for hindsight goals; a prefetch thread uses it if there is one.
        counts: Counts since the buffer was created.
    """

    def __init__(
        self,
        capacity: int,
        options: RowOptions,
        throttle: Throttle,
        *,
        kind: str,
        make_sampler: Callable[..., Sampler],
        open_memory: Callable[..., ArrayAllocator],
        seed: int,
    ) -> None:
        """Create a state without rows or schema.

        Args:
            capacity: Maximum number of rows.
            options: How rows are stored and combined.
            throttle: Makes adds and draws wait.
            kind: The result of `checked_kind` for the sampler; only a saved state of the same kind can be restored.
            make_sampler: Creates a sampler for `links`.
            open_memory: Allocates memory for rows; with `is_full_soon`, all of it will be written at once.
            seed: Seed of the draws.
        """
        open_memory().close()  # reports an invalid storage now rather than with the first row
        self._capacity, self._options, self._kind = capacity, options, kind
        self._make_sampler, self._open_memory = make_sampler, open_memory
        self._throttle = throttle
        self._rng, self.her_rng = np.random.default_rng(seed), np.random.default_rng([seed, 1])
        self.store: RowStore | None = None
        self.sampler: Sampler = UniformSampler()  # until the first row
        self.counts = BufferCounts()
        self._parts = StoredParts()
        self._version = 0
        self._is_closed = False

    def opened(self) -> RowStore | None:
        """Return the rows, or None before the first one.

        Raises:
            ConfigurationError: The buffer is closed.
            ReplayClosedError: This process was forked from the owner of the rows.
        """
        if self._is_closed:
            raise ConfigurationError("the replay buffer is closed; create a new one")
        if self.store is not None:
            self.store.check_process()
        return self.store

    def filled(self) -> RowStore:
        """Return the rows, as `opened`.

        Raises:
            ConfigurationError: There are no rows.
        """
        if (store := self.opened()) is None or store.total == store.low:
            raise ConfigurationError("the replay buffer is empty; add rows before sampling (len(buffer) counts them)")
        return store

    def made_for(self, columns: Sequence[Column], *, is_full_soon: bool = False) -> RowStore:
        """Create a store without rows and its sampler; `store` does not change."""
        store = RowStore(Layout(self._capacity, columns, self._options), self._open_memory(is_full_soon=is_full_soon))
        self.sampler = self._make_sampler(links=store.links)
        if isinstance(self.sampler, EligibleSampler):
            self.sampler.set_version(self._version)
        return store

    def add(self, row: Mapping[str, Any], env_id: int) -> int:
        """Implement `ReplayBuffer.add` for the first row and for buffers with a throttle."""
        store = self.opened() or self.made_for([Column.from_value(*item, rows=False) for item in row.items()])
        self._throttle.before_rows(1)
        row_id = store.add(row, env_id)
        self.store = store  # only now, so that a rejected first row leaves no schema behind
        self.sampler.added(row_id, 1)
        self._throttle.after_rows(1)
        return row_id

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None, versions: ArrayLike | None
    ) -> NDArray[np.int64]:
        """Implement `ReplayBuffer.extend` for the first rows, with a throttle, or with versions."""
        store = self.opened() or self.made_for([Column.from_value(*item, rows=True) for item in batch.items()])
        num_rows = row_count({key: as_array(key, array) for key, array in batch.items()})
        row_versions = None if versions is None else checked_versions(versions, num_rows)
        self._throttle.before_rows(num_rows)
        first, count = store.extend(batch, env_ids)
        self.store = store
        self.sampler.added(first, count)
        self._throttle.after_rows(count)
        ids = np.arange(first, first + count)
        if row_versions is not None and isinstance(self.sampler, EligibleSampler):
            stored = slice(max(count - self._capacity, 0), None)
            self.sampler.set_row_versions(ids[stored], row_versions[stored])
        return ids

    def draw(self, n: int, store: RowStore, *, above: int, again: bool) -> SampledIds:
        """Choose `n` rows or sequences of the store; see `ReplayBuffer.draw`."""
        if self._throttle.is_needed and not again:
            self._throttle.before_draw(n)
        draw = self._decide(n, store)
        if above:
            draw = self._without_late(draw, store, above)
        if again:
            return draw
        # count the rows that the user gets, not those discarded on the way
        self.sampler.handed_out(draw)
        if self._throttle.is_needed:
            self._throttle.after_draw(n)
        self.counts.sampled += draw.ids.size
        if "staleness_mean" in draw.info:
            self.counts.was_stale(draw)
        return draw

    def _without_late(self, draw: SampledIds, store: RowStore, above: int) -> SampledIds:
        """Replace rows below an id if a few attempts find others."""
        for _ in range(MAX_REDRAWS):
            late = below(draw, above)
            if not late.any():
                break
            self.sampler.discarded(draw.ids.reshape(len(draw), -1)[late, 0], for_good=False)
            draw = spliced(draw, late, self._decide(int(np.count_nonzero(late)), store))
        return draw

    def _decide(self, n: int, store: RowStore) -> SampledIds:
        low, total = store.low, store.total
        draw = self.sampler.draw(n, low, total, self._rng)
        if not store.layout.num_earlier:
            return draw
        return with_history(
            draw, lambda ids: store.reader.lacks_history(ids, low), self.sampler, self._rng, low=low, high=total
        )

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set the priorities of the rows that are still in the buffer, and return their number."""
        store = self.opened()
        checked_ids, values = checked_priorities(ids, priorities, 0 if store is None else store.total)
        if store is None:
            return 0
        alive = checked_ids >= store.low
        count = int(np.count_nonzero(alive))
        if count < checked_ids.size:
            self.counts.late_updates += checked_ids.size - count
            checked_ids, values = checked_ids[alive], values[alive]
        self.sampler.update(checked_ids, values)
        return count

    def set_version(self, version: int) -> None:
        """Set the version of the learner's model, for the present sampler and later ones."""
        if isinstance(self.sampler, EligibleSampler):
            self.sampler.set_version(version)
        elif version < self._version:
            raise ConfigurationError(f"set_version({version}): versions only grow, and {self._version} was set before")
        self._version = version

    def clear(self) -> None:
        """Remove all rows."""
        self._throttle.settle()
        if (store := self.opened()) is not None:
            self._removed(store.total - store.low)
            store.clear()
            self.sampler.forgot(store.low)

    def close(self) -> None:
        """Stop prefetch threads and release the memory."""
        self._throttle.close()
        if self.store is not None:
            self.store.close()
        self.store, self.sampler, self._is_closed = None, UniformSampler(), True

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `ReplayBuffer.state_parts`."""
        store, limiter = self.opened(), self._throttle.limiter
        self._throttle.settle()  # a prefetch thread may be drawing goals
        known_parts, new_parts = ((), {}) if store is None else self._parts.save(store, known)
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
                "segments": self._parts.state_dict(),
            }
        return StateParts(state, known_parts, new_parts)

    def load_state_dict(self, state: Any, *, lazy: bool) -> None:
        """Restore a saved buffer; see `ReplayBuffer.load_state_dict`."""
        self.opened()
        self._throttle.settle()
        saved, limiter = self._checked(state), self._throttle.limiter
        rows_state, gaps = saved.state["store"], None
        if rows_state is not None:
            gaps = self._load_rows(rows_state, saved, lazy=lazy)
        elif self.store is not None and self.store.total:
            self.store.close()
            self.store = self.made_for(list(self.store.layout.columns.values()))
            self._parts = StoredParts()  # ids start from 0 again, so no existing part contains these rows
        self._rng.bit_generator.state = saved.state["rng"]
        self.her_rng.bit_generator.state = saved.state["her_rng"]
        if limiter is not None and saved.state["limiter"] is not None:
            limiter.load_state_dict(saved.state["limiter"])
        self.counts.load_state_dict(saved.state["counts"])
        if self.store is not None and gaps is not None:
            self.counts.lost += gaps.num_rows
            self._removed(gaps.num_rows)
            logger.warning(
                "rows %s of the replay are lost because their files are damaged; continuing with the other %d rows, "
                "which the next save rewrites",
                gaps,
                self.store.total - self.store.low,
            )

    def _load_rows(self, rows_state: Mapping[str, Any], saved: SavedParts, *, lazy: bool) -> Gaps | None:
        """Load saved rows into an empty store, and return the lost ones, if any."""
        own = self.store
        columns = _saved_columns(rows_state, None if own is None else own.layout, self._options)
        if own is not None and own.total:
            own.close()
        if own is None or own.total:
            self.store = own = None  # releases its memory before allocating the new one
            is_full_soon = not lazy and rows_state["total"] - rows_state["low"] >= self._capacity
            own = self.made_for(columns, is_full_soon=is_full_soon)
        low = max(rows_state["low"], rows_state["total"] - self._capacity)
        gaps = self._parts.restore(own, saved, rows_state, low, lazy=lazy and own.memory.handle is None)
        if gaps is not None:
            rows_state, low = gaps.applied(rows_state), gaps.low
        own.load_state_dict(rows_state, low)
        self.sampler.load_state_dict(rows_state["sampler"])
        self.sampler.forgot(low)
        self.store = own
        return gaps

    def _checked(self, state: Any) -> SavedParts:
        buffer_state = state.state if isinstance(state, SavedParts) and isinstance(state.state, dict) else {}
        number = buffer_state.get("format", 1)  # the first format had no number
        if number != FORMAT:
            remedy = "use a newer trieye" if number > FORMAT else "restore the other objects without it"
            raise ConfigurationError(
                f"the replay state has format {number}, but this trieye reads format {FORMAT}; {remedy}"
            )
        if buffer_state.get("sampler") != self._kind:
            raise ConfigurationError(
                f"the replay state has sampler {buffer_state.get('sampler')!r}, but this buffer has {self._kind!r}; "
                "create the buffer with the same sampler and bounds"
            )
        saved: SavedParts = state
        return saved

    def _removed(self, count: int) -> None:
        if self._throttle.limiter is not None:
            self._throttle.limiter.removed(count)


class BufferCounts:
    """Counts over the lifetime of a buffer, and rates since the last report.

    Attributes:
        sampled: Rows returned by draws.
        late_updates: Priorities that arrived after their row was overwritten.
        lost: Rows that could not be restored because their files were damaged.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.late_updates = 0
        self.lost = 0
        self._last_report: tuple[float, int] | None = None  # monotonic seconds, and rows added by then
        self._stale: tuple[float, int, float] | None = None  # sum of versions behind, rows, most versions behind

    def was_stale(self, draw: SampledIds) -> None:
        """Record how many versions the rows of a draw lag behind."""
        behind, rows, most = self._stale or (0.0, 0, 0.0)
        behind += draw.info["staleness_mean"] * len(draw)
        self._stale = behind, rows + len(draw), max(most, draw.info["staleness_max"])

    def stats(self, capacity: int, store: RowStore | None) -> dict[str, float]:
        """Return the counts and the store's size as plain numbers."""
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
        """Return metrics by name, omitting those without data yet; rates cover the time since the last call."""
        added = 0 if store is None else store.total
        metrics = {
            "replay/size": float(0 if store is None else store.total - store.low),
            "replay/dropped/late_update": float(self.late_updates),
            "replay/dropped/damaged": float(self.lost),
        }
        now = time.monotonic()
        if self._last_report is not None and now > self._last_report[0]:
            metrics["replay/inserts_per_s"] = (added - self._last_report[1]) / (now - self._last_report[0])
        if added:
            metrics["replay/samples_per_insert"] = self.sampled / added
        if self._stale is not None:
            behind, rows, most = self._stale
            metrics |= {"replay/staleness_mean": behind / rows, "replay/staleness_max": most}
        self._last_report, self._stale = (now, added), None
        return metrics

    def state_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"sampled": self.sampled, "late_updates": self.late_updates, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore saved counts."""
        self.sampled, self.late_updates = int(state["sampled"]), int(state["late_updates"])
        self.lost = int(state.get("lost", 0))


def _saved_columns(rows_state: Mapping[str, Any], layout: Layout | None, options: RowOptions) -> list[Column]:
    """Return the columns of saved rows.

    Args:
        rows_state: The result of `RowStore.state_dict`.
        layout: The layout of the buffer being restored, if it has one.
        options: The row options of that buffer.

    Raises:
        ConfigurationError: The columns differ from `layout`, or the rows were saved without data that `options` need.
    """
    columns = [Column(name, tuple(spec[1]), np.dtype(spec[0])) for name, spec in rows_state["columns"].items()]
    if layout is not None and list(layout.columns.values()) != columns:
        saved_schema = describe({column.name: column for column in columns})
        raise ConfigurationError(
            f"replay state holds rows of {saved_schema}, this buffer of {describe(layout.columns)}; "
            "load it into a buffer of the same schema"
        )
    for name, value in options.storage_options.items():
        saved_value = rows_state["options"][name]
        if saved_value != value and not (name == "counts_steps" and saved_value):
            raise ConfigurationError(
                f"replay state was made with {name}={saved_value}, this buffer with {name}={value}; "
                "load it into a buffer of the same options"
            )
    return columns
