import numpy as np
import pytest

from tests.replay.plain_replay import assert_drawn_by, links_of
from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.samplers import SAMPLERS, make_sampler
from trieye.replay.samplers.base import RowSampler, Sampler, UniformSampler

OPTIONS = {"sequence": {"length": 3}}


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", SAMPLERS)
def test_make_sampler_creates_each_sampler_by_name(name):
    sampler = make_sampler(name, OPTIONS.get(name, {}), capacity=20, links=links_of([(0, False)] * 20, 20))
    assert isinstance(sampler, SAMPLERS[name])
    assert isinstance(sampler, Sampler if name == "sequence" else RowSampler)
    sampler.added(0, 20)
    assert len(sampler.draw(5, 0, 20, rng())) == 5


@pytest.mark.parametrize(
    ("name", "options", "bounds", "message"),
    [
        ("unifrom", {}, {}, r"'unifrom' is unknown; did you mean 'uniform'\? \(known: uniform, prioritized, sequence"),
        ("prioritized", {"alhpa": 1}, {}, r"option 'alhpa' is unknown; did you mean 'alpha'\? \(known: alpha, beta"),
        ("uniform", {"alpha": 1}, {}, r"'uniform': option 'alpha' is unknown \(known: none\)"),
        ("sequence", {}, {}, "needs the option length"),
        ("sequence", {"length": 3, "priorities": {"x": 1}}, {}, "'prioritized': option 'x' is unknown"),
        ("sequence", {"length": 3}, {"max_reuse": 1}, "'sequence' has neither"),
        ("sequence", {"length": 0}, {}, "both must be at least 1"),
        ("sequence", {"length": 3, "period": 0}, {}, "both must be at least 1"),
        ("prioritized", {"alpha": -0.1}, {}, "alpha is -0.1 and epsilon 1e-06; both must be finite and at least 0"),
        ("prioritized", {"epsilon": np.nan}, {}, "epsilon nan"),
        ("prioritized", {"beta": 1.5}, {}, r"beta is 1.5; it must be in \[0, 1\]"),
        ("prioritized", {"beta_draws": 0}, {}, "beta_draws is 0"),
        ("uniform", {}, {"max_reuse": 0}, "max_reuse is 0"),
        ("uniform", {}, {"max_staleness": -1}, "max_staleness is -1"),
    ],
)
def test_unknown_samplers_and_invalid_options_are_rejected(name, options, bounds, message):
    with pytest.raises(ConfigurationError, match=message):
        make_sampler(name, options, capacity=9, links=EpisodeLinks(9), **bounds)


class NewestRow(UniformSampler):
    def draw(self, n, low, high, rng):
        return self.judge(np.full(n, high - 1), low, high)


@pytest.mark.parametrize("bounds", [{"max_reuse": 1}, {"max_staleness": 1}])
def test_bounds_are_rejected_for_samplers_without_support(monkeypatch, bounds):
    monkeypatch.setitem(SAMPLERS, "newest", NewestRow)
    assert make_sampler("newest", {}, capacity=9).draw(3, 0, 9, rng()).ids.tolist() == [8, 8, 8]
    with pytest.raises(ConfigurationError, match="sampler 'newest' has neither"):
        make_sampler("newest", {}, capacity=9, **bounds)


def test_a_uniform_draw_takes_every_row_equally_often_with_weight_one():
    draw = UniformSampler().draw(100_000, 30, 80, rng(3))
    assert_drawn_by(np.arange(80) >= 30, np.bincount(draw.ids, minlength=80))
    assert (draw.weights.dtype, set(draw.weights.tolist()), draw.info) == (np.float32, {1.0}, {"size": 50})


def test_pick_returns_only_candidate_ids():
    assert set(UniformSampler().pick(300, np.array([3, 9, 11]), rng()).tolist()) == {3, 9, 11}


def test_a_uniform_draw_equals_that_of_version_0_2_for_the_same_seed():
    # that version drew slots: first + [0, size) with first = low % capacity
    low, high, capacity = 1234, 1300, 100
    first = low % capacity
    slots = rng(9).integers(first, first + high - low, 50)
    assert np.array_equal(UniformSampler().draw(50, low, high, rng(9)).ids, slots + (low - first))
