"""ChunkPool: the chunks that can be fetched, and the choice of the chunks that a reader gets."""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trieye.replay.fragments.fragment import Fragment, FragmentRules
from trieye.replay.samplers.sum_tree import SumTree, weights_of


@dataclass(slots=True)
class StoredChunk:
    """A chunk in the buffer.

    Attributes:
        id: Sequence number over the lifetime of the buffer.
        fragments: Its fragments, in time order.
        num_uses: Number of fetches.
        priority: Above 0; equal for all chunks until `update_priorities` is called.
        version: The lowest version among the fragments.
        slot: Its position in the pool.
    """

    id: int
    fragments: tuple[Fragment, ...]
    num_uses: int = 0
    priority: float = 1.0
    version: int = field(init=False)
    slot: int = field(default=-1, init=False, compare=False)

    def __post_init__(self) -> None:
        self.version = min(fragment.meta.model_version for fragment in self.fragments)

    @property
    def order(self) -> tuple[int, int, str]:
        """Sort key of `oldest`: version, number of the first fragment, worker."""
        first = self.fragments[0].meta
        return self.version, first.fid, first.worker


class ChunkPool:
    """Chunks in slots without gaps, each with its version in an array and its weight in a sum tree.

    With `oldest`, the chunks of the lowest version are fetched first, and of these the lowest fragment number.
    Otherwise chunks are drawn one after the other, each with P(i) = p_i^alpha / sum over the remaining chunks; alpha is
    0 for `uniform`. Their weights are (N P(i))^-beta, divided by the largest weight of the draw, where P(i) is the
    probability at the start of the draw (Schaul et al. 2016, proportional variant, which draws with replacement, making
    the weights exact there).

    Args:
        rules: Rules of the buffer.
    """

    def __init__(self, rules: FragmentRules) -> None:
        self._is_queue, self._beta = rules.sampler == "oldest", rules.beta
        self._alpha = rules.alpha if rules.sampler == "prioritized" else 0.0
        self._by_age: OrderedDict[int, StoredChunk] = OrderedDict()
        self._by_slot: list[StoredChunk] = []
        self._versions = np.zeros(1, np.int64)
        self._tree = SumTree(1)

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[StoredChunk]:
        """Yield the chunks, oldest first."""
        return iter(self._by_age.values())

    def __contains__(self, chunk_id: object) -> bool:
        return chunk_id in self._by_age

    @property
    def by_slot(self) -> tuple[StoredChunk, ...]:
        """The chunks in slot order, for `restore`; the next draws of both pools are equal."""
        return tuple(self._by_slot)

    def add(self, chunk: StoredChunk) -> None:
        """Add a chunk, which must be newer than all others."""
        chunk.slot = len(self._by_slot)
        if chunk.slot == self._tree.capacity:
            slot_weights, self._tree = self._tree.weights, SumTree(2 * chunk.slot)
            self._tree.load(0, slot_weights)
            self._versions = np.resize(self._versions, 2 * chunk.slot)
        self._by_slot.append(chunk)
        self._by_age[chunk.id] = chunk
        self._versions[chunk.slot] = chunk.version
        self.prioritize({chunk.id: chunk.priority})

    def restore(self, chunks: Collection[StoredChunk]) -> None:
        """Add the chunks of `by_slot` to an empty pool."""
        for chunk in chunks:
            self.add(chunk)
        self._by_age = OrderedDict(sorted(self._by_age.items()))

    def remove(self, chunk: StoredChunk) -> None:
        """Remove a chunk; the last one takes its slot."""
        del self._by_age[chunk.id]
        last_chunk = self._by_slot.pop()
        end, last_chunk.slot = last_chunk.slot, chunk.slot
        if last_chunk is not chunk:
            self._by_slot[chunk.slot] = last_chunk
            self._versions[chunk.slot] = last_chunk.version
        # the last of equal slots wins
        self._tree.set(np.array([chunk.slot, end]), np.array([self._tree.weights[end], 0.0]))

    def oldest(self, apart_from: Collection[int]) -> StoredChunk | None:
        """Return the oldest chunk whose id is not excluded."""
        return next((chunk for chunk in self if chunk.id not in apart_from), None)

    def older_than(self, version: float) -> list[StoredChunk]:
        """Return the chunks with a lower version."""
        return self._chunks_at(self._versions < version)

    def newer_than(self, version: int) -> list[StoredChunk]:
        """Return the chunks with a higher version."""
        return self._chunks_at(self._versions > version)

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[StoredChunk], NDArray[np.float32]]:
        """Return `n` distinct chunks, `n` being at most `len(self)`, and their importance weights, float32 `[n]`."""
        if self._is_queue:
            return heapq.nsmallest(n, self, key=lambda chunk: chunk.order), np.ones(n, np.float32)
        slots, masses = np.empty(0, np.int64), np.empty(0)
        while len(slots) < n:  # drawing with replacement and removing repetitions equals drawing one at a time
            drawn_slots, mass = self._tree.find(rng.random(n - len(slots)))
            first_indices = np.sort(np.unique(drawn_slots, return_index=True)[1])
            slots, masses = np.append(slots, drawn_slots[first_indices]), np.append(masses, mass[first_indices])
            self._tree.set(drawn_slots[first_indices], np.zeros(len(first_indices)))
        self._tree.set(slots, masses)
        weights = ((masses / masses.min()) ** -self._beta).astype(np.float32)
        return [self._by_slot[slot] for slot in slots.tolist()], weights

    def prioritize(self, priorities: Mapping[int, float]) -> None:
        """Set the priorities of chunks by id, each above 0."""
        for chunk_id, priority in priorities.items():
            self._by_age[chunk_id].priority = priority
        slots = np.array([self._by_age[chunk_id].slot for chunk_id in priorities], np.int64)
        self._tree.set(slots, weights_of(np.array(list(priorities.values())), self._alpha))

    def _chunks_at(self, is_selected: NDArray[np.bool_]) -> list[StoredChunk]:
        return [self._by_slot[slot] for slot in np.flatnonzero(is_selected[: len(self)]).tolist()]
