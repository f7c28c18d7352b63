"""The jobs of a study as trials of Ray Tune."""

import pytest
from ray import tune
from ray.tune import Experiment

from trieye.config.hydra.axes import Dimension
from trieye.config.sweeper import SweeperConfig
from trieye.sweeps.grid import Axis, Grid
from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.search import OptunaSearch, RandomSearch
from trieye.sweeps.space import SearchSpace
from trieye.tune.ended import record_before
from trieye.tune.search import GridSearch, StudySearch

SPACE = SearchSpace((Dimension("x", low=0, high=1),))
GRID = Grid((Axis(("x",), (("1",), ("2",))),))


def optuna(sampler="tpe"):
    return OptunaSearch(SPACE, SweeperConfig(kind="optuna", sampler=sampler, seed=1), "max")


@pytest.fixture
def start(tmp_path):
    """Return a function that starts or resumes a study, and returns its search."""

    def begin(search, size, **options):
        records = {index: record for index in range(size) if (record := record_before(tmp_path / str(index)))}
        ended = [index for index, record in records.items() if record.state == "completed"]
        study = StudySearch(search, size, records, ended, directory=tmp_path, **options)
        study.add_configurations([Experiment("study", tune.Trainable, storage_path=str(tmp_path))])
        return study

    return begin


def end(search, trial, directory):
    """Let a trial end like Tune, with its value as objective."""
    value, index = trial.config["x"], int(trial.trial_id.rpartition("_")[2])
    JobRecord(index=index, overrides=[f"x={value!r}"], state="completed", objective=value).write(directory / str(index))
    search.on_trial_complete(trial.trial_id, {"best_objective": value, "stop_reason": "loop.steps=20 done"})


@pytest.mark.parametrize(
    "make", [optuna, lambda: optuna("gp"), lambda: RandomSearch(SPACE, 3), lambda: GridSearch(GRID)]
)
def test_a_resumed_or_extended_study_continues_its_sequence_of_proposals(make, start, tmp_path):
    search = start(make(), 9)
    values = []
    for _ in range(9):
        trial = search.next_trial()
        values.append(trial.config["x"])
        end(search, trial, tmp_path)
    assert search.next_trial() is None
    assert search.is_finished()
    for index in range(5, 9):
        (tmp_path / str(index) / JobRecord.FILE).unlink()
    resumed = start(make(), 9)
    assert resumed.total_samples == 4
    for index in range(5, 9):
        trial = resumed.next_trial()
        assert (trial.trial_id, trial.config["x"]) == (f"trial_{index:05}", values[index])
        end(resumed, trial, tmp_path)


def test_a_trial_of_an_earlier_start_has_its_recorded_values(start, tmp_path):
    for index in (1, 2):
        (tmp_path / str(index)).mkdir()
    JobRecord(index=1, overrides=["x=0.125"], state="interrupted").write(tmp_path / "1")
    (tmp_path / "2" / JobRecord.FILE).write_text("{")  # damaged by the kill
    search = start(optuna(), 3)
    values = {(trial := search.next_trial()).trial_id: trial.config["x"] for _ in range(3)}
    assert values["trial_00001"] == 0.125
    assert len(set(values.values())) == 3


def test_trials_wait_for_others_above_the_limit(start):
    search = start(RandomSearch(SPACE, 3), 3, max_concurrent=2)
    first, _ = search.next_trial(), search.next_trial()
    assert search.next_trial() is None
    assert not search.is_finished()
    search.on_trial_complete(first.trial_id, error=True)
    assert search.next_trial().trial_id == "trial_00002"


def test_a_grid_is_repeated(start):
    search = start(GridSearch(GRID), 4)
    assert [search.next_trial().config["x"] for _ in range(4)] == [1, 2, 1, 2]
