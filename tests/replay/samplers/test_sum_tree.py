import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trieye.replay.samplers.sum_tree import SumTree

CAPACITIES = st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 300])
WEIGHTS = st.floats(0, 1e6, width=32) | st.just(0.0)


@given(CAPACITIES, st.data())
def test_find_agrees_with_the_cumulative_sum_of_the_weights(capacity, data):
    weights = data.draw(hnp.arrays(np.float32, capacity, elements=WEIGHTS))
    tree = SumTree(capacity)
    tree.load(0, weights)
    sums = weights.cumsum(dtype=np.float64)
    shares = data.draw(hnp.arrays(np.float64, 20, elements=st.floats(0, 1, exclude_max=True)))
    slots_found, slot_weights = tree.find(shares)
    assert np.array_equal(slot_weights, weights[slots_found])
    assert slot_weights.all() == (sums[-1] > 0)
    if not sums[-1]:
        return
    # the running sum in another order of additions may differ in its last bits
    slack = 1e-9 * sums[-1]
    assert (sums[slots_found] >= shares * sums[-1] - slack).all()
    assert (sums[slots_found] - weights[slots_found] <= shares * sums[-1] + slack).all()


def test_find_never_returns_a_slot_without_weight():
    for capacity in (40, 5000, 100_000):
        for slots in ([0], [17], [capacity - 1], [3, capacity - 2]):
            tree = SumTree(capacity)
            tree.set(np.array(slots), np.full(len(slots), 0.1))
            slots_found, weights = tree.find(np.array([0.0, 1e-300, 0.5, np.nextafter(1.0, 0.0), 1.0]))
            assert set(slots_found.tolist()) == set(slots)
            assert weights.tolist() == [np.float32(0.1)] * 5


@pytest.mark.parametrize("capacity", [300, 70_000])
def test_the_largest_share_finds_the_last_slot_with_weight(capacity):
    # sums of the same weights differ in their last bits with the order of additions, in many of these trees
    rng = np.random.default_rng(0)
    for _ in range(50):
        tree, count = SumTree(capacity), int(rng.integers(1, 12))
        tree.load(0, rng.random(count).astype(np.float32))
        slots_found, weights = tree.find(np.array([0.0, 1 - 2**-52, np.nextafter(1.0, 0.0)]))
        assert slots_found.tolist() == [0, count - 1, count - 1]
        assert weights.all()


def test_after_many_updates_the_sums_equal_those_of_a_tree_built_from_the_weights():
    rng, tree = np.random.default_rng(0), SumTree(5000)
    for _ in range(200):
        slots = rng.integers(0, 5000, 64)  # some repeatedly
        tree.set(slots, rng.random(64) * 10.0 ** rng.integers(-6, 7))
        tree.fill(int(rng.integers(0, 5000)), int(rng.integers(1, 40)), rng.random())
    fresh = SumTree(5000)
    fresh.load(0, tree.weights)
    shares = np.linspace(0, 1, 50_000, endpoint=False)  # many positions near borders, which drifting sums would move
    assert np.array_equal(tree.find(shares)[0], fresh.find(shares)[0])


def test_weights_can_be_loaded_across_the_end():
    tree = SumTree(5)
    tree.set(np.array([1]), np.array([9.0]))
    tree.load(3, np.array([1.0, 2.0, 3.0]))
    assert tree.weights.tolist() == [3, 0, 0, 1, 2]


def test_weights_are_changed_through_methods_only():
    with pytest.raises(ValueError, match="read-only"):
        SumTree(5).weights[0] = 1
