import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.base import RowSampler, UniformSampler


def test_every_row_is_drawn_equally_often_and_weighs_one():
    draw = UniformSampler().draw(100_000, 30, 80, np.random.default_rng(3))
    counts = np.bincount(draw.ids, minlength=80)
    assert counts[:30].sum() == 0
    assert (((counts[30:] - 2000) ** 2) / 2000).sum() < 85  # 49 degrees of freedom: p = 0.001
    assert draw.weights.dtype == np.float32
    assert set(draw.weights.tolist()) == {1.0}
    assert draw.info == {"size": 50}
    assert len(draw) == 100_000


def test_only_the_ids_given_are_picked():
    picked = UniformSampler().pick(300, np.array([3, 9, 11]), np.random.default_rng(0))
    assert set(picked.tolist()) == {3, 9, 11}
    with pytest.raises(ConfigurationError, match="none of the rows can be drawn"):
        UniformSampler().pick(3, np.array([], np.int64), np.random.default_rng(0))


def test_it_draws_what_the_ring_of_0_2_drew_from_the_same_seed():
    # there slots were drawn: first + [0, size) with first = low % capacity
    low, high, capacity = 1234, 1300, 100
    first = low % capacity
    slots = np.random.default_rng(9).integers(first, first + high - low, 50)
    assert np.array_equal(UniformSampler().draw(50, low, high, np.random.default_rng(9)).ids, slots + (low - first))


def test_priorities_and_states_change_nothing():
    sampler = UniformSampler()
    sampler.added(0, 9)
    sampler.forgot(3)
    sampler.update(np.arange(3, 9), np.zeros(6))
    sampler.load_state_dict(sampler.state_dict())
    assert set(sampler.draw(200, 3, 9, np.random.default_rng(0)).ids.tolist()) == set(range(3, 9))
    assert isinstance(sampler, RowSampler)
