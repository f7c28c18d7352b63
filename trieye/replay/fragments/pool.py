"""ChunkPool: the chunks that can be fetched, and the choice of the chunks that a reader gets."""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trieye.replay.samplers.sum_tree import SumTree, weights_of


class UniformChoice:
    """Chooses among unordered slots 0 to n - 1, one per chunk; every subset is equally likely. O(n)."""

    def __init__(self) -> None:
        self._size = 0

    def append(self, priority: float) -> None:
        """Add a slot at the end."""
        del priority
        self._size += 1

    def remove(self, slot: int) -> None:
        """Move the last slot to this one, and remove the last."""
        del slot
        self._size -= 1

    def update(self, slots: Sequence[int], priorities: Sequence[float]) -> None:
        """Do nothing."""

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct slots, and weights of 1."""
        # the first n steps of a Fisher-Yates shuffle, storing moved entries only
        slot_by_position: dict[int, int] = {}
        slots = []
        for step, position in enumerate(rng.integers(np.arange(n), self._size).tolist()):
            slots.append(slot_by_position.get(position, position))
            slot_by_position[position] = slot_by_position.get(step, step)
        return slots, np.ones(n, np.float32)


class PrioritizedChoice:
    """Draws slots one after the other, each with P(i) = p_i^alpha / sum over the remaining slots; O(n log N).

    The weights are (N P(i))^-beta, divided by the largest weight of the draw, where P(i) is the probability at the
    start of the draw (Schaul et al. 2016, proportional variant, which draws with replacement, making the weights exact
    there).

    Args:
        capacity: Usual maximum number of slots; exceeding it costs a copy.
        alpha: Exponent of the priorities.
        beta: Exponent of the weights.
    """

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._size = 0
        self._tree = SumTree(capacity)

    def append(self, priority: float) -> None:
        """Add a slot at the end."""
        if self._size == self._tree.capacity:
            old_tree, self._tree = self._tree, SumTree(2 * self._size)
            self._tree.load(0, old_tree.weights)
        self._size += 1
        self.update([self._size - 1], [priority])

    def remove(self, slot: int) -> None:
        """Move the last slot to this one, and remove the last."""
        self._size -= 1
        moved_weight = self._tree.weights[self._size]
        self._tree.set(np.array([slot, self._size]), np.array([moved_weight, 0.0]))  # the last of equal slots wins

    def update(self, slots: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities of slots; the last of equal slots wins."""
        self._tree.set(np.array(slots, np.int64), weights_of(np.array(priorities), self._alpha))

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct slots and their importance weights."""
        slots, masses = np.empty(0, np.int64), np.empty(0)
        while len(slots) < n:  # drawing with replacement and removing repetitions equals drawing one at a time
            drawn_slots, mass = self._tree.find(rng.random(n - len(slots)))
            first_indices = np.sort(np.unique(drawn_slots, return_index=True)[1])
            slots, masses = np.append(slots, drawn_slots[first_indices]), np.append(masses, mass[first_indices])
            self._tree.set(drawn_slots[first_indices], np.zeros(len(first_indices)))
        self._tree.set(slots, masses)
        return slots.tolist(), ((masses / masses.min()) ** -self._beta).astype(np.float32)


@dataclass(slots=True)
class StoredChunk:
    """A chunk in the buffer.

    Attributes:
        id: Sequence number over the lifetime of the buffer.
        serials: Serial numbers of its fragments.
        version: The lowest version among them.
        num_uses: Number of fetches.
        priority: Above 0; equal for all chunks until `update_priorities` is called.
        rank: Number of its first fragment, and the worker's name; orders chunks of the same version.
        slot: Its slot in the choice.
    """

    id: int
    serials: tuple[int, ...]
    version: int
    num_uses: int = 0
    priority: float = 1.0
    rank: tuple[int, str] = (0, "")
    slot: int = field(default=-1, compare=False)


class ChunkPool:
    """Chunks with three indexes, so that no operation visits more chunks than it returns."""

    def __init__(self, choice: UniformChoice | PrioritizedChoice) -> None:
        self._choice = choice
        self._by_age: OrderedDict[int, StoredChunk] = OrderedDict()
        self._by_slot: list[StoredChunk] = []
        self._by_version: dict[int, dict[int, StoredChunk]] = {}
        self._versions: list[int] = []  # a heap of the keys of `_by_version`

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[StoredChunk]:
        """Yield the chunks, oldest first."""
        return iter(self._by_age.values())

    def __getitem__(self, chunk_id: int) -> StoredChunk:
        return self._by_age[chunk_id]

    def __contains__(self, chunk_id: object) -> bool:
        return chunk_id in self._by_age

    def add(self, chunk: StoredChunk) -> None:
        """Add a chunk, which must be newer than all others."""
        chunk.slot = len(self._by_slot)
        self._by_slot.append(chunk)
        self._choice.append(chunk.priority)
        self._by_age[chunk.id] = chunk
        if chunk.version not in self._by_version:
            self._by_version[chunk.version] = {}
            heapq.heappush(self._versions, chunk.version)
        self._by_version[chunk.version][chunk.id] = chunk

    def remove(self, chunk: StoredChunk) -> None:
        """Remove a chunk."""
        del self._by_age[chunk.id]
        del self._by_version[chunk.version][chunk.id]
        if not self._by_version[chunk.version] and chunk.version == self._versions[0]:
            self._drop_empty_versions()
        last_chunk = self._by_slot.pop()
        if last_chunk is not chunk:
            last_chunk.slot = chunk.slot
            self._by_slot[chunk.slot] = last_chunk
        self._choice.remove(chunk.slot)

    def oldest(self, apart_from: Collection[int] = ()) -> StoredChunk | None:
        """Return the oldest chunk whose id is not excluded."""
        return next((chunk for chunk in self if chunk.id not in apart_from), None)

    def older_than(self, version: float) -> list[StoredChunk]:
        """Return the chunks with a lower version."""
        chunks: list[StoredChunk] = []
        lower_versions = []
        while self._versions and self._versions[0] < version:
            lower_versions.append(heapq.heappop(self._versions))
            chunks += self._by_version[lower_versions[-1]].values()
        for lower in lower_versions:
            heapq.heappush(self._versions, lower)
        return chunks

    def newer_than(self, version: int) -> list[StoredChunk]:
        """Return the chunks with a higher version."""
        return [
            chunk for other in sorted(self._by_version) if other > version for chunk in self._by_version[other].values()
        ]

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[StoredChunk], NDArray[np.float32]]:
        """Return `n` distinct chunks, `n` being at most `len(self)`, and their importance weights, float32 `[n]`."""
        slots, weights = self._choice.choose(n, rng)
        return [self._by_slot[slot] for slot in slots], weights

    def prioritize(self, priorities: Mapping[int, float]) -> None:
        """Set the priorities of chunks by id, each above 0."""
        for chunk_id, priority in priorities.items():
            self[chunk_id].priority = priority
        self._choice.update([self[chunk_id].slot for chunk_id in priorities], list(priorities.values()))

    def order(self) -> list[int]:
        """Return the ids by slot, for `restore`."""
        return [chunk.id for chunk in self._by_slot]

    def restore(self, order: list[int]) -> None:
        """Assign the slots that `order` returned, ignoring ids that are not in the pool."""
        chunks = [self._by_age[chunk_id] for chunk_id in order if chunk_id in self._by_age]
        self._by_slot[:] = chunks
        for slot, chunk in enumerate(chunks):
            chunk.slot = slot
        self._choice.update(range(len(chunks)), [chunk.priority for chunk in chunks])

    def _drop_empty_versions(self) -> None:
        while self._versions and not self._by_version[self._versions[0]]:
            del self._by_version[heapq.heappop(self._versions)]


class ChunkQueue(ChunkPool):
    """Chunks fetched in order: the lowest version first, within a version the lowest fragment number."""

    def __init__(self) -> None:
        super().__init__(UniformChoice())

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[StoredChunk], NDArray[np.float32]]:
        """Return the first `n` chunks, and weights of 1."""
        del rng
        return heapq.nsmallest(n, self, key=lambda chunk: (chunk.version, chunk.rank)), np.ones(n, np.float32)
