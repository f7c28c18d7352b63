"""Records of the trials of a study, which Tune's events change."""

import pytest
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from trieye.sweeps.jobs import JobRecord
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.status import status_of, sum_up
from trieye.tune.ended import ended_record
from trieye.tune.watching import StudyMonitor


@pytest.fixture
def study(walks_config, tmp_path):
    """Return a function that starts a study of four trials, and returns its monitor."""

    def start(**tune):
        config = walks_config("herd", tune={"enabled": True, "space": {"walk.pace": "1,2,3,4"}, **tune})
        ended = [record for index in range(4) if (record := ended_record(tmp_path / str(index)))]
        return StudyMonitor(config, tmp_path, ["walk.pace"], 4, ended)

    return start


def report(monitor, index, objective, **result):
    """Process the start and a result of a trial like Tune, and return the trial."""
    trial = Trial("walk", stub=True, trial_id=f"x_{index:05}")
    trial.config = {"walk.pace": index + 1}
    trial.update_last_result({TRAINING_ITERATION: 1, "step": 5, "eval/return": objective, **result})
    monitor.on_trial_start(trial=trial)
    monitor.on_trial_result(trial=trial, result=trial.last_result)
    return trial


def states(directory):
    records = (JobRecord.read(directory / str(index)) for index in range(4))
    return [record and (record.state, record.reason) for record in records]


def test_trials_that_the_time_limit_of_a_study_stops_are_pruned_and_ranked(study, tmp_path):
    monitor = study(time_s=10)
    monitor.on_trial_complete(trial=report(monitor, 0, 1.0, done=True, stop_reason="loop.steps=20 done"))
    monitor.on_trial_complete(trial=report(monitor, 1, 9.0))  # stopped by a scheduler
    report(monitor, 2, 3.0)
    assert monitor.end_by_limit() == "tune.time_s is over"
    monitor.mark_interrupted()
    assert states(tmp_path) == [("completed", None), ("pruned", None), ("pruned", "tune.time_s is over"), None]
    record = SweepRecord(spec=[], size=4, study={"run_name": "herd"})
    record.write(tmp_path)
    sum_up(status_of(tmp_path), record)
    assert record.summary == {"completed": 1, "pruned": 2, "missing": 1, "best": 2, "objective": 3.0}


def test_a_target_reached_before_the_driver_was_killed_ends_interrupted_trials(study, tmp_path, capsys):
    monitor = study(target=5.0)
    monitor.on_trial_complete(trial=report(monitor, 0, 9.0, done=True, stop_reason="loop.target=5 reached"))
    report(monitor, 1, 3.0)
    report(monitor, 2, float("nan"))  # no evaluation yet
    monitor.mark_interrupted()
    monitor = study(target=5.0)
    assert monitor.has_reached_target
    assert monitor.end_by_limit() == "tune.target reached"
    pruned = ("pruned", "tune.target reached")
    assert states(tmp_path)[:3] == [("completed", None), pruned, pruned]
    output = capsys.readouterr().err
    assert "trial 1 pace=2: pruned at 3: tune.target reached" in output
    assert "trial 2 pace=3: pruned: tune.target reached" in output


def test_trials_of_a_study_without_reached_limits_are_interrupted(study, tmp_path):
    monitor = study(target=5.0)
    report(monitor, 0, 3.0)
    assert monitor.end_by_limit() is None
    monitor.mark_interrupted()
    assert states(tmp_path)[0] == ("interrupted", None)
