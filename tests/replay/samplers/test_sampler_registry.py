import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.samplers import SAMPLERS, make_sampler
from trieye.replay.samplers.eligible import EligibleSampler

OPTIONS = {"sequence": {"length": 3}}


@pytest.mark.parametrize("name", SAMPLERS)
def test_each_sampler_is_made_by_its_name(name):
    links = EpisodeLinks(20)
    links.add(np.arange(20), np.zeros(20, int), np.zeros(20, bool))
    sampler = make_sampler(name, OPTIONS.get(name, {}), capacity=20, links=links)
    assert isinstance(sampler, SAMPLERS[name])
    sampler.added(0, 20)
    assert len(sampler.draw(5, 0, 20, np.random.default_rng(0))) == 5


@pytest.mark.parametrize("name", ["uniform", "prioritized"])
def test_bounds_go_with_single_rows(name):
    sampler = make_sampler(name, {}, capacity=20, max_reuse=2)
    assert isinstance(sampler, EligibleSampler)
    sampler.added(0, 20)
    draw = sampler.draw(40, 0, 20, np.random.default_rng(0))
    assert np.bincount(draw.ids).tolist() == [2] * 20
    if name == "uniform":
        assert draw.weights.tolist() == [1.0] * 40


def test_sequences_can_start_by_priority():
    sampler = make_sampler("sequence", {"length": 3, "priorities": {"beta": 0.5}}, capacity=9, links=EpisodeLinks(9))
    assert sampler.starts.beta == 0.5


@pytest.mark.parametrize(
    ("name", "options", "bounds", "message"),
    [
        (
            "unifrom",
            {},
            {},
            r"'unifrom' is unknown; did you mean 'uniform'\? \(known: uniform, prioritized, sequence\)",
        ),
        ("prioritized", {"alhpa": 1}, {}, r"option 'alhpa' is unknown; did you mean 'alpha'\? \(known: alpha, beta"),
        ("uniform", {"alpha": 1}, {}, r"'uniform': option 'alpha' is unknown \(known: none\)"),
        ("sequence", {}, {}, "needs the option length"),
        ("sequence", {"length": 3, "priorities": {"x": 1}}, {}, "'prioritized': option 'x' is unknown"),
        ("sequence", {"length": 3}, {"max_reuse": 1}, "'sequence' has neither"),
    ],
)
def test_mistakes_are_named(name, options, bounds, message):
    with pytest.raises(ConfigurationError, match=message):
        make_sampler(name, options, capacity=9, links=EpisodeLinks(9), **bounds)
