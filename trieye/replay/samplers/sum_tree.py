"""SumTree: weights of slots, drawn in proportion to them."""

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Reals = NDArray[np.float64]

# Children of a node. Of 8, 16 and 32, find and update of 256 slots are fastest with 16, at 100 000 and at 1 M slots.
_WIDTH = 16
_SHIFT = 4
# A top level of so many sums is searched at once: one more level costs as much as summing up 4000 numbers.
_MAX_TOP = 4096
_BELOW_ONE = 1 - 2**-52
_LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
# children @ _BEFORE are the sums of all children before each one; five times as fast as np.cumsum
_BEFORE = np.triu(np.ones((_WIDTH, _WIDTH)), 1)


class SumTree:
    """A weight, float32 and at least 0, for each slot; wide blocks of them are summed up in float64, level by level.

    Each change sums its blocks up anew instead of adding differences, so the sums never drift: they are a function of
    the weights alone.
    """

    def __init__(self, capacity: int) -> None:
        """Make a tree of `capacity` slots, all of weight 0."""
        self._levels: list[NDArray[np.float32] | Reals] = [np.zeros(_padded(capacity), np.float32)]
        while len(self._levels[-1]) // _WIDTH and (len(self._levels) == 1 or len(self._levels[-1]) > _MAX_TOP):
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH)))
        self._blocks = [level.reshape(-1, _WIDTH) for level in self._levels]
        self.weights: NDArray[np.float32] = self._levels[0][:capacity].view()  # type: ignore[assignment]  # of float32
        self.weights.flags.writeable = False
        self.capacity = capacity

    def set(self, slots: Slots, weights: NDArray[np.floating]) -> None:
        """Set the weights `[n]` of slots `[n]`; of equal slots the last one counts."""
        self._levels[0][slots] = weights
        nodes = slots
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            nodes = nodes >> _SHIFT
            sums[nodes] = _sums(blocks.take(nodes, axis=0))

    def fill(self, first: int, count: int, weight: float) -> None:
        """Set one weight for `count` slots, at most all, from `first` on and around the end."""
        start, end = first, min(first + count, self.capacity)
        self._fill(start, end, weight)
        if first + count > self.capacity:
            self._fill(0, first + count - self.capacity, weight)

    def load(self, first: int, weights: NDArray[np.floating]) -> None:
        """Set the weights `[n]` of the slots from `first` on and around the end, and 0 for all others."""
        self._levels[0][:] = 0
        self._levels[0][np.arange(first, first + len(weights)) % self.capacity] = weights
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            sums[: len(blocks)] = _sums(blocks)

    def find(self, shares: Reals) -> tuple[Slots, Reals]:
        """Return the slots at places between 0 and the sum of all weights, and the weights of these slots.

        A slot is found by the places that its weight covers, so slots of weight 0 never are, unless all are of that
        weight. Ascending places are found somewhat faster.

        Args:
            shares: float64 `[n]`, in [0, 1): the places, as parts of the sum.
        """
        top = self._levels[-1]
        before = np.zeros(len(top) + 1)
        np.cumsum(top, out=before[1:])
        total = before[-1]
        if not total:
            return np.zeros(len(shares), np.int64), np.zeros(len(shares))
        places = np.minimum(shares * total, total * _BELOW_ONE)
        nodes = before.searchsorted(places, side="right") - 1
        places -= before.take(nodes)
        found, weights = self._descend(nodes, places)
        if not weights.all():
            # a place within the last bit of a block's sum led beyond those of its children that have a weight
            sums = self.weights.cumsum(dtype=np.float64)
            found = sums.searchsorted(np.minimum(shares, _BELOW_ONE) * sums[-1], side="right")
            weights = self.weights[found].astype(np.float64)
        return found, weights

    def _descend(self, nodes: Slots, places: Reals) -> tuple[Slots, Reals]:
        first = np.arange(0, len(nodes) * _WIDTH, _WIDTH)
        for blocks in self._blocks[-2::-1]:
            children = blocks.take(nodes, axis=0).astype(np.float64, copy=False)
            before = children @ _BEFORE
            # the last one that begins at the place or below it; there is none above it if that is the last child of all
            child = ((before <= places[:, None]).argmin(axis=1) - 1) & (_WIDTH - 1)
            chosen = first + child
            nodes = (nodes << _SHIFT) + child
            if blocks is not self._blocks[0]:
                places = places - before.take(chosen)
        return nodes, children.take(chosen)

    def _fill(self, start: int, end: int, weight: float) -> None:
        self._levels[0][start:end] = weight
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            start, end = start >> _SHIFT, (end - 1 >> _SHIFT) + 1
            sums[start:end] = _sums(blocks[start:end])


def weights_of(priorities: Reals, alpha: float) -> NDArray[np.float32]:
    """Return priorities to the power of alpha, in the range of float32: neither 0 nor infinite."""
    with np.errstate(over="ignore"):
        return np.minimum(np.maximum(priorities**alpha, _SMALLEST), _LARGEST).astype(np.float32)


def _padded(count: int) -> int:
    return -(-count // _WIDTH) * _WIDTH


def _sums(blocks: NDArray[np.float32] | Reals) -> Reals:
    # half the price of `sum(axis=1)`; the order of additions is the same however many rows there are
    sums: Reals = np.einsum("ij->i", blocks.astype(np.float64, copy=False))
    return sums
