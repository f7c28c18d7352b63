"""A sampler of Optuna under Ray Tune."""

import pickle
import sys

import cloudpickle
import pytest
from ray import tune
from ray.tune import Experiment

from trieye.config.hydra.axes import Dimension
from trieye.config.sweeper import SweeperConfig
from trieye.exceptions import ConfigurationError
from trieye.sweeps.jobs import JobRecord
from trieye.tune.ended import INDEX
from trieye.tune.search import Asking, CurrentStudy, GrowingSearch, GrowingVariants

OPTIONS = {"metric": "distance", "mode": "max", "num_trials": 9}


@pytest.mark.parametrize("sampler", ["tpe", "random", "gp"])
def test_a_restored_study_continues_its_sequence_of_proposals(sampler, tmp_path):
    def searcher():
        options = SweeperConfig(kind="optuna", sampler=sampler, seed=1)
        return Asking([Dimension("x", low=0, high=1)], options, **OPTIONS)

    def trial(search, index, *, is_over=True):
        proposal = search.suggest(f"trial_{index}")
        if is_over:
            search.on_trial_complete(
                f"trial_{index}", {"best_objective": proposal["x"], "stop_reason": "loop.steps=20 done"}
            )
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


def test_a_trial_that_the_restored_state_lacks_has_its_recorded_values(tmp_path, monkeypatch):
    monkeypatch.setattr(CurrentStudy, "directory", tmp_path)
    options = SweeperConfig(kind="optuna", sampler="tpe", seed=1)
    search = Asking([Dimension("x", low=0, high=1)], options, **OPTIONS)
    for index in (1, 2):
        (tmp_path / str(index)).mkdir()
    JobRecord(index=1, overrides=["x=0.125"]).write(tmp_path / "1")
    (tmp_path / "2" / JobRecord.FILE).write_text("{")  # damaged by the kill
    first, second, third = (search.suggest(f"trial_{index}")["x"] for index in range(3))
    assert second == 0.125
    assert len({first, second, third}) == 3


def test_a_missing_sampler_package_is_reported_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trieye\[optuna\]'"):
        Asking([Dimension("x", low=0, high=1)], SweeperConfig(kind="optuna", sampler="cmaes"), **OPTIONS)


def drawn_trials(search):
    return list(iter(search.next_trial, None))


def experiment(num, values, **options):
    return Experiment("growing", tune.Trainable, config=values, num_samples=num, **options)


@pytest.mark.parametrize(
    ("values", "per_sample"), [({"x": tune.uniform(0, 1)}, 1), ({"x": tune.grid_search([1, 2])}, 2)]
)
def test_a_study_without_a_searcher_grows_by_trials(values, per_sample, monkeypatch):
    search = GrowingVariants(random_state=3)
    search.add_configurations(experiment(2, values))
    first = drawn_trials(search)
    assert search.is_finished()
    state = pickle.loads(cloudpickle.dumps(search.get_state()))
    monkeypatch.setattr(CurrentStudy, "num_trials", 3)
    grown = GrowingVariants(random_state=3)
    grown.set_state(state)
    added = drawn_trials(grown)
    numbers = [int(trial.trial_id.rpartition("_")[2]) for trial in [*first, *added]]
    assert numbers == list(range(3 * per_sample))
    assert grown.total_samples == 3 * per_sample
    at_once = GrowingVariants(random_state=3)
    at_once.add_configurations(experiment(3, values))
    assert [trial.config["x"] for trial in drawn_trials(at_once)] == [trial.config["x"] for trial in [*first, *added]]


def test_a_study_with_a_searcher_grows_by_trials(monkeypatch):
    dimensions = [Dimension("x", low=0, high=1)]
    options = {"metric": "distance", "mode": "max", "num_trials": 2}
    search = GrowingSearch(Asking(dimensions, SweeperConfig(kind="optuna"), **options))
    search.add_configurations(experiment(2, {}))
    assert len(drawn_trials(search)) == 2
    monkeypatch.setattr(CurrentStudy, "num_trials", 5)
    search.set_state(search.get_state())
    assert [trial.config[INDEX] for trial in drawn_trials(search)] == [2, 3, 4]


@pytest.mark.parametrize("has_searcher", [False, True])
def test_new_trials_of_a_moved_study_store_their_state_in_the_new_directory(has_searcher, tmp_path, monkeypatch):
    def search():
        if not has_searcher:
            return GrowingVariants(random_state=3)
        return GrowingSearch(Asking([Dimension("x", low=0, high=1)], SweeperConfig(kind="optuna"), **OPTIONS))

    first, moved = search(), search()
    values = {} if has_searcher else {"x": tune.grid_search([1, 2])}  # the second is drawn before the move
    first.add_configurations(experiment(2, values, storage_path=str(tmp_path / "first")))
    assert first.next_trial().storage.experiment_fs_path == str(tmp_path / "first" / "growing")
    monkeypatch.setattr(CurrentStudy, "directory", tmp_path / "second")
    moved.set_state(pickle.loads(cloudpickle.dumps(first.get_state())))
    assert moved.next_trial().storage.experiment_fs_path == str(tmp_path / "second" / "growing")
