"""SumTree: slots with weights, found by position in the cumulative sum of the weights."""

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Reals = NDArray[np.float64]

# Children per node. Of 8, 16 and 32, find and update of 256 slots are fastest with 16, at 100 000 and at 1 M slots.
_WIDTH = 16
_SHIFT = 4
# The top level is searched in one step: another level costs as much as summing 4000 numbers.
_MAX_TOP = 4096
_BELOW_ONE = 1 - 2**-52
_LARGEST, _SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
# children @ _BEFORE is the sum of the children before each one; five times as fast as np.cumsum
_BEFORE = np.triu(np.ones((_WIDTH, _WIDTH)), 1)


class SumTree:
    """A weight, float32 and at least 0, per slot; blocks of slots are summed in float64, level by level.

    Each change recomputes the sums of its blocks instead of adding differences, so rounding errors do not accumulate:
    the sums depend only on the weights.
    """

    def __init__(self, capacity: int) -> None:
        """Create a tree of `capacity` slots with weight 0."""
        self._levels: list[NDArray[np.float32] | Reals] = [np.zeros(_padded(capacity), np.float32)]
        while len(self._levels[-1]) // _WIDTH and (len(self._levels) == 1 or len(self._levels[-1]) > _MAX_TOP):
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH)))
        self._blocks = [level.reshape(-1, _WIDTH) for level in self._levels]
        self.weights: NDArray[np.float32] = self._levels[0][:capacity].view()  # type: ignore[assignment]  # of float32
        self.weights.flags.writeable = False
        self.capacity = capacity

    def set(self, slots: Slots, weights: NDArray[np.floating]) -> None:
        """Set the weights `[n]` of slots `[n]`; the last of equal slots wins."""
        self._levels[0][slots] = weights
        nodes = slots
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            nodes = nodes >> _SHIFT
            sums[nodes] = _sums(blocks.take(nodes, axis=0))

    def fill(self, first_slot: int, count: int, weight: float) -> None:
        """Set `count` slots, at most all, from `first_slot` on to one weight, wrapping around the end."""
        start, end = first_slot, min(first_slot + count, self.capacity)
        self._fill(start, end, weight)
        if first_slot + count > self.capacity:
            self._fill(0, first_slot + count - self.capacity, weight)

    def load(self, first_slot: int, weights: NDArray[np.floating]) -> None:
        """Set the weights `[n]` of the slots from `first_slot` on, wrapping around the end, and 0 for all others."""
        self._levels[0][:] = 0
        self._levels[0][np.arange(first_slot, first_slot + len(weights)) % self.capacity] = weights
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            sums[: len(blocks)] = _sums(blocks)

    def find(self, shares: Reals) -> tuple[Slots, Reals]:
        """Return the slots at positions in the cumulative sum of the weights, and their weights.

        A slot covers as much of the sum as its weight, so slots of weight 0 are never returned unless all weights are
        0. Ascending positions are somewhat faster.

        Args:
            shares: float64 `[n]`, in [0, 1): the positions as fractions of the sum.
        """
        top = self._levels[-1]
        cumulative_sums = np.zeros(len(top) + 1)
        np.cumsum(top, out=cumulative_sums[1:])
        total = cumulative_sums[-1]
        if not total:
            return np.zeros(len(shares), np.int64), np.zeros(len(shares))
        positions = np.minimum(shares * total, total * _BELOW_ONE)
        nodes = cumulative_sums.searchsorted(positions, side="right") - 1
        positions -= cumulative_sums.take(nodes)
        slots, weights = self._descend(nodes, positions)
        if not weights.all():
            # a position within the last bit of a block's sum led past its last child with a weight
            sums = self.weights.cumsum(dtype=np.float64)
            slots = sums.searchsorted(np.minimum(shares, _BELOW_ONE) * sums[-1], side="right")
            weights = self.weights[slots].astype(np.float64)
        return slots, weights

    def _descend(self, nodes: Slots, positions: Reals) -> tuple[Slots, Reals]:
        first_children = np.arange(0, len(nodes) * _WIDTH, _WIDTH)
        for blocks in self._blocks[-2::-1]:
            children = blocks.take(nodes, axis=0).astype(np.float64, copy=False)
            sums_before = children @ _BEFORE
            # the last child that begins at or below the position; argmin is 0 if that is the last child of the node
            child = ((sums_before <= positions[:, None]).argmin(axis=1) - 1) & (_WIDTH - 1)
            chosen_children = first_children + child
            nodes = (nodes << _SHIFT) + child
            if blocks is not self._blocks[0]:
                positions = positions - sums_before.take(chosen_children)
        return nodes, children.take(chosen_children)

    def _fill(self, start: int, end: int, weight: float) -> None:
        self._levels[0][start:end] = weight
        for blocks, sums in zip(self._blocks[:-1], self._levels[1:], strict=True):
            start, end = start >> _SHIFT, (end - 1 >> _SHIFT) + 1
            sums[start:end] = _sums(blocks[start:end])


def weights_of(priorities: Reals, alpha: float) -> NDArray[np.float32]:
    """Return priorities to the power of alpha, clipped to the positive finite range of float32."""
    with np.errstate(over="ignore"):
        return np.minimum(np.maximum(priorities**alpha, _SMALLEST), _LARGEST).astype(np.float32)


def _padded(count: int) -> int:
    return -(-count // _WIDTH) * _WIDTH


def _sums(blocks: NDArray[np.float32] | Reals) -> Reals:
    # half the cost of `sum(axis=1)`; the order of additions does not depend on the number of rows
    sums: Reals = np.einsum("ij->i", blocks.astype(np.float64, copy=False))
    return sums
