"""ChunkPool: the chunks that can be handed out, and which of them a reader gets."""

import heapq
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trieye.replay.samplers.sum_tree import SumTree, weights_of


class UniformChoice:
    """Chooses among places 0 to n - 1, one for each chunk, in no order; every set of them is equally likely. O(n)."""

    def __init__(self) -> None:
        self._size = 0

    def append(self, priority: float) -> None:
        """Add a place at the end."""
        del priority
        self._size += 1

    def remove(self, place: int) -> None:
        """Move the last place to this one, and forget the last."""
        del place
        self._size -= 1

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Do nothing."""

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct places, and ones."""
        # the first n steps of a Fisher-Yates shuffle, which keep only what they moved
        moved: dict[int, int] = {}
        places = []
        for step, drawn in enumerate(rng.integers(np.arange(n), self._size).tolist()):
            places.append(moved.get(drawn, drawn))
            moved[drawn] = moved.get(step, step)
        return places, np.ones(n, np.float32)


class PrioritizedChoice:
    """Places are drawn one after the other, each with P(i) = p_i^alpha / sum over those that are left; O(n log N).

    The weights are (N P(i))^-beta, divided by the largest of the draw, with P(i) as it was for the first of the draw
    (Schaul et al. 2016, proportional variant; there rows are drawn with replacement, for which this is exact).

    Args:
        capacity: Places that there usually are at most; more cost a copy.
        alpha: Exponent of the priorities.
        beta: Exponent of the weights.
    """

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._size = 0
        self._tree = SumTree(capacity)

    def append(self, priority: float) -> None:
        """Add a place at the end."""
        if self._size == self._tree.capacity:
            before, self._tree = self._tree, SumTree(2 * self._size)
            self._tree.load(0, before.weights)
        self._size += 1
        self.update([self._size - 1], [priority])

    def remove(self, place: int) -> None:
        """Move the last place to this one, and forget the last."""
        self._size -= 1
        moved = self._tree.weights[self._size]
        self._tree.set(np.array([place, self._size]), np.array([moved, 0.0]))  # of equal places the last one counts

    def update(self, places: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities of places; of equal ones the last one counts."""
        self._tree.set(np.array(places, np.int64), weights_of(np.array(priorities), self._alpha))

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[int], NDArray[np.float32]]:
        """Return `n` distinct places and their importance weights."""
        places, masses = np.empty(0, np.int64), np.empty(0)
        while len(places) < n:  # with replacement, without those that came before: as if one were drawn at a time
            found, mass = self._tree.find(rng.random(n - len(places)))
            first = np.sort(np.unique(found, return_index=True)[1])
            places, masses = np.append(places, found[first]), np.append(masses, mass[first])
            self._tree.set(found[first], np.zeros(len(first)))
        self._tree.set(places, masses)
        return places.tolist(), ((masses / masses.min()) ** -self._beta).astype(np.float32)


@dataclass(slots=True)
class HeldChunk:
    """A chunk of the buffer.

    Attributes:
        id: Counts the chunks over the life of the buffer.
        serials: Serial numbers of its fragments.
        version: The lowest version among them.
        num_uses: How often it was handed out.
        priority: Above 0; equal for all until `update_priorities` is called.
        rank: Number of its first fragment, and the worker's name; the order of chunks of one version.
        place: Where the choice finds it.
    """

    id: int
    serials: tuple[int, ...]
    version: int
    num_uses: int = 0
    priority: float = 1.0
    rank: tuple[int, str] = (0, "")
    place: int = field(default=-1, compare=False)


class ChunkPool:
    """Chunks with three indexes, so that no operation looks at more chunks than it returns."""

    def __init__(self, choice: UniformChoice | PrioritizedChoice) -> None:
        self._choice = choice
        self._by_age: OrderedDict[int, HeldChunk] = OrderedDict()
        self._by_place: list[HeldChunk] = []
        self._by_version: dict[int, dict[int, HeldChunk]] = {}
        self._versions: list[int] = []  # a heap of the keys of `_by_version`

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[HeldChunk]:
        """Yield the chunks, the oldest first."""
        return iter(self._by_age.values())

    def __getitem__(self, chunk_id: int) -> HeldChunk:
        return self._by_age[chunk_id]

    def __contains__(self, chunk_id: object) -> bool:
        return chunk_id in self._by_age

    def add(self, chunk: HeldChunk) -> None:
        """Take in a chunk, younger than all others."""
        chunk.place = len(self._by_place)
        self._by_place.append(chunk)
        self._choice.append(chunk.priority)
        self._by_age[chunk.id] = chunk
        if chunk.version not in self._by_version:
            self._by_version[chunk.version] = {}
            heapq.heappush(self._versions, chunk.version)
        self._by_version[chunk.version][chunk.id] = chunk

    def remove(self, chunk: HeldChunk) -> None:
        """Take out a chunk."""
        del self._by_age[chunk.id]
        del self._by_version[chunk.version][chunk.id]
        if not self._by_version[chunk.version] and chunk.version == self._versions[0]:
            self._drop_empty_versions()
        last = self._by_place.pop()
        if last is not chunk:
            last.place = chunk.place
            self._by_place[chunk.place] = last
        self._choice.remove(chunk.place)

    def oldest(self, apart_from: Collection[int] = ()) -> HeldChunk | None:
        """Return the chunk that came first, of all whose ids are not excepted."""
        return next((chunk for chunk in self if chunk.id not in apart_from), None)

    def older_than(self, version: int) -> list[HeldChunk]:
        """Return the chunks whose version is lower."""
        found: list[HeldChunk] = []
        kept = []
        while self._versions and self._versions[0] < version:
            kept.append(heapq.heappop(self._versions))
            found += self._by_version[kept[-1]].values()
        for lower in kept:
            heapq.heappush(self._versions, lower)
        return found

    def newer_than(self, version: int) -> list[HeldChunk]:
        """Return the chunks whose version is higher."""
        return [
            chunk for found in sorted(self._by_version) if found > version for chunk in self._by_version[found].values()
        ]

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[HeldChunk], NDArray[np.float32]]:
        """Return `n` distinct chunks, at most as many as there are, and their importance weights, float32 `[n]`."""
        places, weights = self._choice.choose(n, rng)
        return [self._by_place[place] for place in places], weights

    def prioritize(self, priorities: Mapping[int, float]) -> None:
        """Set the priorities of chunks by their ids, each above 0."""
        for chunk_id, priority in priorities.items():
            self[chunk_id].priority = priority
        self._choice.update([self[chunk_id].place for chunk_id in priorities], list(priorities.values()))

    def order(self) -> list[int]:
        """Return the ids by place; `restore` takes them."""
        return [chunk.id for chunk in self._by_place]

    def restore(self, order: list[int]) -> None:
        """Give the chunks the places that `order` returned; ids that are not here are passed over."""
        chunks = [self._by_age[chunk_id] for chunk_id in order if chunk_id in self._by_age]
        self._by_place[:] = chunks
        for place, chunk in enumerate(chunks):
            chunk.place = place
        self._choice.update(range(len(chunks)), [chunk.priority for chunk in chunks])

    def _drop_empty_versions(self) -> None:
        while self._versions and not self._by_version[self._versions[0]]:
            del self._by_version[heapq.heappop(self._versions)]


class ChunkQueue(ChunkPool):
    """Chunks that are handed out in an order: the lowest version first, and of one version who was numbered first."""

    def __init__(self) -> None:
        super().__init__(UniformChoice())

    def choose(self, n: int, rng: np.random.Generator) -> tuple[list[HeldChunk], NDArray[np.float32]]:
        """Return the first `n` chunks, and ones."""
        del rng
        return heapq.nsmallest(n, self, key=lambda chunk: (chunk.version, chunk.rank)), np.ones(n, np.float32)
