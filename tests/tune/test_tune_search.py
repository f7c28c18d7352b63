"""A sampler of Optuna under Ray Tune."""

import sys

import pytest

from trieye.config.hydra.axes import Dimension
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.tune.search import Asking

OPTIONS = {"metric": "distance", "mode": "max", "num_trials": 9}


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_a_restored_study_continues_its_sequence_of_proposals(sampler, tmp_path):
    def searcher():
        options = SweeperConfig(kind="optuna", sampler=sampler, seed=1)
        return Asking([Dimension("x", low=0, high=1)], options, **OPTIONS)

    def trial(search, index, *, is_over=True):
        proposal = search.suggest(f"trial_{index}")
        if is_over:
            search.on_trial_complete(f"trial_{index}", {"best_objective": proposal["x"], "done": True})
        return proposal["x"]

    uninterrupted = searcher()
    points = [trial(uninterrupted, index, is_over=index != 2) for index in range(9)]
    assert len(set(points)) == 9
    killed = searcher()
    for index in range(5):
        trial(killed, index, is_over=index != 2)
    killed.save(str(tmp_path / "state"))
    restored = searcher()
    restored.restore(str(tmp_path / "state"))
    assert [trial(restored, index) for index in range(5, 9)] == points[5:]


def test_a_study_whose_sampler_lacks_its_package_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigurationError, match="pip install cmaes"):
        Asking([Dimension("x", low=0, high=1)], SweeperConfig(kind="optuna", sampler="cmaes"), **OPTIONS)
