"""EligibleSampler: limits how often each row is drawn and how old its model version may be."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.samplers.base import Ids, SampledIds, Sampler
from trieye.replay.samplers.prioritized import PrioritizedSampler


class EligibleSampler(Sampler):
    """Draws rows by priority, each at most `max_reuse` times and only while its version is recent enough.

    Ineligible rows get weight 0 in the sum tree, so draws stay fast even if few rows are left. For uniform sampling,
    use a `PrioritizedSampler` with alpha 0.
    """

    def __init__(
        self, rows: PrioritizedSampler, *, max_reuse: int | None = None, max_staleness: int | None = None
    ) -> None:
        """Wrap a sampler.

        Args:
            rows: Draws the rows; the caller must not use it directly afterwards.
            max_reuse: Maximum number of times a row is drawn; unlimited if None.
            max_staleness: Maximum number of versions that a row may lag behind `version`; unlimited if None.

        Raises:
            ConfigurationError: `max_reuse` is below 1, or `max_staleness` is negative.
        """
        if max_reuse is not None and max_reuse < 1:
            raise ConfigurationError(f"max_reuse is {max_reuse}; it must be at least 1 draw")
        if max_staleness is not None and max_staleness < 0:
            raise ConfigurationError(f"max_staleness is {max_staleness}; it must be at least 0 versions")
        self.max_reuse, self.max_staleness = max_reuse, max_staleness
        self._rows = rows
        self.capacity = rows.capacity
        self._uses = np.zeros(self.capacity if max_reuse else 0, np.uint32)
        self._chances = np.zeros(self.capacity if max_reuse else 0, np.float32)  # of rows before they were used up
        self._versions = np.zeros(self.capacity if max_staleness is not None else 0, np.int64)
        self._low = self._settled = self._end = 0

    def added(self, first_id: int, count: int) -> None:
        """Register new rows of the current version."""
        self._rows.added(first_id, count)
        self._end = first_id + count

    def forgot(self, low_id: int) -> None:
        """Register removed rows."""
        self._rows.forgot(low_id)
        self._low = low_id

    def set_version(self, version: int) -> None:
        """Set the version of the learner's model; rows that become too stale are never drawn again."""
        self._settle()
        last_version = self.version
        super().set_version(version)
        if self.max_staleness is not None:
            # scan the ring in memory order: five times as fast as in id order
            bound = version - self.max_staleness
            slots = np.flatnonzero((self._versions < bound) & (self._versions >= last_version - self.max_staleness))
            ids = self._end - 1 - (self._end - 1 - slots) % self.capacity
            self._retire(ids[ids >= max(self._low, 0)])

    def set_row_versions(self, ids: Ids, versions: Ids) -> None:
        """Set versions of rows `[n]`, just added, that differ from the current one, int64 `[n]`."""
        self._settle()
        if self.max_staleness is not None:
            self._versions[ids % self.capacity] = versions
            self._retire(ids[self._versions[ids % self.capacity] < self.version - self.max_staleness])

    def eligible(self, ids: Ids, bounds: Sequence[int | None] | None = None) -> NDArray[np.bool_]:
        """Return which rows are within bounds of uses and staleness, by default those of this sampler."""
        self._settle()
        max_reuse, max_staleness = bounds or self._bounds
        slots, is_within = ids % self.capacity, np.ones(len(ids), np.bool_)
        if max_reuse is not None:
            is_within &= self._uses[slots] < max_reuse
        if max_staleness is not None:
            is_within &= self._versions[slots] >= self.version - max_staleness
        return is_within

    def staleness(self, ids: Ids) -> Ids:
        """Return how many versions rows lag behind, int64 `[n]`; requires `max_staleness`."""
        self._settle()
        return np.asarray(self.version - self._versions[ids % self.capacity])

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        """Draw `n` rows from `[low, high)`.

        Raises:
            ReplayTimeoutError: The bounds permit fewer than `n` draws; nothing was drawn.
        """
        self._settle()
        self._low = max(self._low, low)
        if self.max_reuse is not None:
            return self._draw_within(n, self.max_reuse, low, high, rng)
        try:
            return self._rows.draw(n, low, high, rng)
        except ConfigurationError as error:
            raise self._exhausted(n, 0, high - low) from error

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Revert the use counts and chances of rows that were just drawn."""
        if self.max_reuse is not None:
            np.subtract.at(self._uses, ids % self.capacity, 1)
            returned_ids = ids[self._rows.chances(ids) == 0]
            self._rows.set_chances(returned_ids, self._chances[returned_ids % self.capacity])
        self._rows.discarded(ids, for_good=for_good)

    def handed_out(self, draw: SampledIds) -> None:
        """Forward to the row sampler, and add staleness statistics to the draw."""
        self._rows.handed_out(draw)
        if self.max_staleness is not None:
            staleness = self.staleness(draw.ids)
            means = {"staleness_mean": float(staleness.mean()), "staleness_max": float(staleness.max())}
            draw.info = {**draw.info, **means}

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set the priorities of the rows that are still eligible."""
        is_eligible = self.eligible(ids)
        self._rows.update(ids[is_eligible], np.asarray(priorities, np.float64)[is_eligible])

    def state_dict(self) -> dict[str, Any]:
        """Return counts and versions of the remaining rows, oldest first, and the state of the row sampler."""
        self._settle()
        slots = self._alive() % self.capacity
        return {
            "rows": self._rows.state_dict(),
            "uses": self._uses[slots] if self.max_reuse is not None else self._uses,
            "versions": self._versions[slots] if self.max_staleness is not None else self._versions,
            "low": max(self._low, self._end - self.capacity),
            "end": self._end,
            "version": self.version,
            "bounds": self._bounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, with the newest rows if it has more than the capacity; this sampler's bounds apply."""
        self._rows.load_state_dict(state["rows"])
        self._end = self._settled = int(state["end"])
        self._low, self.version = int(state["low"]), int(state["version"])
        ids = self._alive()
        for array, saved_array in ((self._uses, state["uses"]), (self._versions, state["versions"])):
            if array.size:
                array[ids % self.capacity] = np.asarray(saved_array)[len(saved_array) - len(ids) :]
        is_eligible = self.eligible(ids)
        self._retire(ids[~is_eligible])
        revived_ids = ids[is_eligible & ~self.eligible(ids, state.get("bounds"))]  # by higher bounds
        self._rows.update(revived_ids, np.full(len(revived_ids), self._rows.max_priority))

    @property
    def _bounds(self) -> list[int | None]:
        return [self.max_reuse, self.max_staleness]

    def _draw_within(self, n: int, max_reuse: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        ids, chances = np.empty(n, np.int64), np.empty(n, np.float32)
        count = 0
        while count < n:
            try:
                proposed_ids = (
                    self._rows.propose(n - count, low, high, rng) if count else self._rows.stratified(n, low, rng)[0]
                )
            except ConfigurationError as error:
                self.discarded(ids[:count], for_good=False)
                raise self._exhausted(n, count, high - low) from error
            accepted_ids = self._within(proposed_ids, max_reuse)
            added_slice = slice(count, count + len(accepted_ids))
            ids[added_slice], chances[added_slice] = accepted_ids, self._rows.chances(accepted_ids)
            np.add.at(self._uses, accepted_ids % self.capacity, 1)
            is_spent = self._uses[accepted_ids % self.capacity] >= max_reuse
            self._chances[accepted_ids[is_spent] % self.capacity] = chances[added_slice][is_spent]
            self._retire(accepted_ids[is_spent])
            count = added_slice.stop
        return self._rows.judge(ids, low, high, chances)

    def _within(self, proposed_ids: Ids, max_reuse: int) -> Ids:
        """Return the ids without repetitions that exceed the bound."""
        ids = np.sort(proposed_ids)
        indices = np.arange(len(ids))
        is_first = np.append(True, ids[1:] != ids[:-1])
        repetition = indices - np.maximum.accumulate(np.where(is_first, indices, 0))
        return ids[self._uses[ids % self.capacity] + repetition < max_reuse]

    def _exhausted(self, n: int, permitted: int, size: int) -> ReplayTimeoutError:
        return ReplayTimeoutError(
            f"sample({n}): only {permitted} more draws of the {size} rows are within max_reuse {self.max_reuse} and "
            f"max_staleness {self.max_staleness}; add new rows first, or relax the bounds"
        )

    def _retire(self, ids: Ids) -> None:
        if len(ids):
            self._rows.set_chances(ids, np.zeros(len(ids), np.float32))

    def _alive(self) -> Ids:
        return np.arange(max(self._low, self._end - self.capacity), self._end)

    def _settle(self) -> None:
        if self._settled == self._end:
            return
        slots = np.arange(max(self._settled, self._end - self.capacity), self._end) % self.capacity
        if self.max_reuse is not None:
            self._uses[slots] = 0
        if self.max_staleness is not None:
            self._versions[slots] = self.version
        self._settled = self._end
