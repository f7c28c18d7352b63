"""Schedulers of a resumed study receive the earlier results of its trials."""

from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from trieye.sweeps.jobs import JobRecord
from trieye.tune.schedulers import scheduler_of
from trieye.tune.space import Space
from trieye.tune.watching import StudyMonitor

OBJECTIVES = (4.0, 5.0, 1.0)
"""Objectives of the three trials of a study at their first and second evaluation."""

CONTROLLER = SimpleNamespace(get_live_trials=list)


@pytest.fixture
def start_study(walks_config, tmp_path):
    """Return a function that starts or resumes a study, and returns its trials, monitor and scheduler."""

    def start(scheduler, ended=()):
        tune = {"scheduler": scheduler, "grace_period": 2, "reduction_factor": 2, "space": {"walk.pace": "1,2,3"}}
        config = walks_config("herd", tune={"enabled": True, **tune}, steps=100)
        space = Space(config)
        watch = StudyMonitor(config, tmp_path, space.keys, len(OBJECTIVES))
        tune_scheduler = scheduler_of(config, space, tmp_path, ended)
        trials = [
            Trial("walk", stub=True, trial_id=f"x_{index:05}", config={"walk.pace": 3})
            for index in range(len(OBJECTIVES))
        ]
        for index, trial in enumerate(trials):
            if index not in ended:
                tune_scheduler.on_trial_add(CONTROLLER, trial)
                watch.on_trial_start(trial=trial)
        return trials, watch, tune_scheduler

    return start


def report(trial, watch, scheduler, iteration, objective):
    """Process a result like Tune; return the scheduler's decision."""
    result = {TRAINING_ITERATION: iteration, "step": 5 * iteration, "eval/return": objective}
    decision = scheduler.on_trial_result(CONTROLLER, trial, result)
    watch.on_trial_result(trial=trial, result=result)
    return decision


@pytest.mark.parametrize("ended", [(), (0,), (0, 1)])
@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_results_from_before_an_interruption_count_in_a_resumed_study(scheduler, ended, start_study, tmp_path):
    trials, *study_parts = start_study(scheduler)
    for iteration in (1, 2):
        for trial, objective in list(zip(trials, OBJECTIVES, strict=True))[:2]:
            assert report(trial, *study_parts, iteration, objective) == TrialScheduler.CONTINUE
    with (tmp_path / "0" / "reported.jsonl").open("a") as file:
        file.write("[3, 5")  # the driver was killed
    trials, *study_parts = start_study(scheduler, ended)
    assert report(trials[2], *study_parts, 1, OBJECTIVES[2]) == TrialScheduler.CONTINUE
    assert report(trials[2], *study_parts, 2, OBJECTIVES[2]) == TrialScheduler.STOP


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_trial_without_others_to_compare_continues(scheduler, start_study):
    trials, *study_parts = start_study(scheduler)
    decisions = {report(trials[2], *study_parts, iteration, OBJECTIVES[2]) for iteration in (1, 2)}
    assert decisions == {TrialScheduler.CONTINUE}


def test_an_ended_trial_that_runs_again_keeps_its_values_and_others_their_records(start_study, tmp_path):
    for index in range(len(OBJECTIVES)):
        (tmp_path / str(index)).mkdir()
        JobRecord(index=index, overrides=["walk.pace=3"], state="completed", step=20).write(tmp_path / str(index))
    before = (tmp_path / "1/status.json").read_bytes()
    trials, watch, _ = start_study("asha", (1, 2))
    watch.on_trial_complete(trial=trials[0])  # before its first result
    record = JobRecord.read(tmp_path / "0")
    assert (record.overrides, record.step, record.state) == (["walk.pace=3"], 20, "pruned")
    assert (tmp_path / "1/status.json").read_bytes() == before
