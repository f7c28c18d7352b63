"""Schedulers of a resumed study receive the earlier results of its trials."""

from types import SimpleNamespace

import pytest
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from trieye.tune.schedulers import scheduler_of
from trieye.tune.space import Space
from trieye.tune.watching import StudyMonitor, Watching

OBJECTIVES = (4.0, 5.0, 1.0)
"""Objectives of the three trials of a study at their first and second evaluation."""

NOBODY_WAITS = SimpleNamespace(get_live_trials=list)


@pytest.fixture
def begun(walks_config, tmp_path, monkeypatch):
    """Return a function that starts or resumes a study, and returns its trials, monitor and scheduler."""

    def begin(scheduler):
        tune = {
            "enabled": True,
            "scheduler": scheduler,
            "grace_period": 2,
            "reduction_factor": 2,
            "space": {"walk.pace": "1,2,3"},
        }
        config = walks_config("herd", tune=tune, steps=100)
        space = Space(config)
        watch = StudyMonitor(config, tmp_path, space.keys, len(OBJECTIVES))
        monkeypatch.setattr(Watching, "watch", watch)
        made = scheduler_of(config, space)
        assert made.set_search_properties(config.loop.objective, "max")
        trials = [Trial("walk", stub=True, trial_id=f"x_{index:05}") for index in range(len(OBJECTIVES))]
        for trial in trials:
            made.on_trial_add(NOBODY_WAITS, trial)
            watch.started(trial)
        return trials, watch, made

    return begin


def report(trial, watch, scheduler, iteration, objective):
    """Process a result like Tune; return the scheduler's decision."""
    result = {TRAINING_ITERATION: iteration, "step": 5 * iteration, "eval/return": objective}
    decided = scheduler.on_trial_result(NOBODY_WAITS, trial, result)
    watch.record_result(trial, result)
    return decided


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_trial_is_compared_with_what_others_reported_before_the_study_was_interrupted(scheduler, begun, tmp_path):
    trials, *heard = begun(scheduler)
    for iteration in (1, 2):
        for trial, objective in list(zip(trials, OBJECTIVES, strict=True))[:2]:
            assert report(trial, *heard, iteration, objective) == TrialScheduler.CONTINUE
    with (tmp_path / "0" / "reported.jsonl").open("a") as file:
        file.write("[3, 5")  # the driver was killed
    trials, *heard = begun(scheduler)
    assert report(trials[2], *heard, 1, OBJECTIVES[2]) == TrialScheduler.CONTINUE
    assert report(trials[2], *heard, 2, OBJECTIVES[2]) == TrialScheduler.STOP


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_trial_alone_is_stopped_by_nobody(scheduler, begun):
    trials, *heard = begun(scheduler)
    decided = {report(trials[2], *heard, iteration, OBJECTIVES[2]) for iteration in (1, 2)}
    assert decided == {TrialScheduler.CONTINUE}
