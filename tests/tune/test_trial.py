import os

import numpy as np
import pytest

from tests.tune.walks import Agreeing, Raising, Walk, curve_in
from trieye.checkpoints.manifest import verify
from trieye.checkpoints.store import load_checkpoint
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.experiment.loop import run_alone
from trieye.files.run_record import RunRecord
from trieye.tune.trial import Trial
from trieye.tune.values import named, with_values


def curve(trial, metric="position"):
    """Return the steps and values of a metric that are not superseded, in order."""
    return curve_in(trial.run_dir, metric)


def evaluated(config, directory=None):
    """Return a closed trial after its first evaluation, whose state is saved to a directory."""
    trial = Trial(Walk, config)
    trial.iterate()
    if directory is not None:
        trial.save(directory)
    trial.close()
    return trial


def status(trial):
    return RunRecord.read(trial.run_dir / "run.json").status


def test_an_iteration_is_an_evaluation_and_the_last_one_reports_done(walks_config):
    trial = Trial(Walk, walks_config(), {"walk.pace": 1.0, "walk.gait": "slow"})
    results = [trial.iterate() for _ in range(4)]
    assert [result["training_iteration"] for result in results] == [1, 2, 3, 4]
    assert [result["step"] for result in results] == [5, 10, 15, 20]
    assert [result["eval/return"] for result in results] == [10.0, 20.0, 30.0, 40.0]
    assert [result["done"] for result in results] == [False, False, False, True]
    assert results[-1]["stop_reason"] == "loop.steps=20 done"
    assert trial.iterate() == results[-1]
    assert status(trial) == "FINISHED"
    assert curve(trial) == [(step, 2.0 * step) for step in range(1, 21)]
    assert {value for _, value in curve(trial, "tune/walk.pace")} == {1.0}


def test_the_curve_of_a_trial_equals_that_of_a_run_with_its_config(walks_config):
    trial = Trial(Walk, walks_config())
    while not trial.iterate()["done"]:
        pass
    alone = walks_config("alone")
    run_alone(Walk, alone)
    other = Trial(Walk, alone)
    assert curve(trial, "noise") == curve(other, "noise")
    assert len(curve(trial, "noise")) == 20


def test_a_restored_trial_continues_with_its_counters_and_generators(walks_config, tmp_path):
    trial = Trial(Walk, walks_config())
    trial.iterate()
    trial.save(tmp_path / "saved")
    uninterrupted = [trial.iterate() for _ in range(2)]
    trial.close()
    before = curve(trial, "noise")
    resumed = Trial(Walk, walks_config())
    resumed.restore(tmp_path / "saved")
    assert resumed.evaluations == 1
    results = [resumed.iterate() for _ in range(2)]
    varying_keys = {"time_train_s", "attempt"}
    assert [{k: v for k, v in result.items() if k not in varying_keys} for result in results] == [
        {k: v for k, v in result.items() if k not in varying_keys} for result in uninterrupted
    ]
    resumed.close()
    assert curve(resumed, "noise") == before, "points after the checkpoint are superseded and equal when logged again"


def test_an_unsaved_trial_resumes_from_the_checkpoint_of_its_run_and_logs_its_hyperparameters_again(walks_config):
    for number in range(1, 4):
        trial = Trial(Walk, walks_config(), {"walk.pace": 1.0})
        results = trial.iterate()
        trial.close()  # an evaluation that is the best so far is saved by the run
        assert status(trial) == "KILLED"
        assert (results["training_iteration"], results["step"], results["attempt"]) == (number, 5 * number, number)
    assert curve(trial, "tune/walk.pace") == [(5, 1.0), (10, 1.0), (15, 1.0)]


def test_a_trial_can_copy_the_state_of_another_and_keeps_its_own_curve_up_to_that_step(walks_config, tmp_path):
    good, poor = evaluated(walks_config("good", 9.0), tmp_path / "good"), Trial(Walk, walks_config("poor", 1.0))
    for _ in range(2):
        poor.iterate()
        poor.save(tmp_path / f"poor{poor.evaluations}")
    poor.close()
    exploiting = Trial(Walk, walks_config("poor", 8.0))
    exploiting.restore(tmp_path / "good")
    results = exploiting.iterate()
    exploiting.close()
    assert (results["training_iteration"], results["step"], results["eval/return"]) == (2, 10, 9.0 * 10 + 8.0 * 10)
    assert curve(exploiting) == [(step, 2.0 * step if step <= 5 else 90 + 16.0 * (step - 5)) for step in range(1, 11)]
    assert [value for _, value in curve(exploiting, "eval/return")] == [10.0, 170.0]
    copied, record = (RunRecord.read(trial.run_dir / "run.json") for trial in (good, exploiting))
    assert (copied.run_name, record.run_name, record.forked_from.run_name) == ("good", "poor", "good")
    assert copied.run_id != record.run_id
    assert len(list((good.run_dir / "checkpoints").glob("checkpoint_step_*"))) == 1


def test_an_unsaved_trial_keeps_its_curve_when_it_copies_a_state(walks_config, tmp_path):
    class Flat(Walk):
        def evaluate(self):
            return {"eval/return": 1.0}  # which is never better than before

    good, poor = Trial(Flat, walks_config("good", 9.0)), Trial(Flat, walks_config("poor", 1.0))
    for trial in (good, poor):
        assert [trial.iterate()["step"] for _ in range(2)] == [5, 10]
    good.save(tmp_path / "good")
    good.close()
    poor.reset(walks_config("poor", 8.0), {})
    poor.restore(tmp_path / "good")
    assert poor.iterate()["step"] == 15
    poor.close()
    assert [step for step, _ in curve(poor)] == list(range(1, 16))
    assert [step for step, _ in curve(poor, "eval/return")] == [5, 10, 15]


@pytest.mark.long
def test_an_experiment_is_rebuilt_for_another_trial_unless_it_supports_reset_config(walks_config, tmp_path):
    trial = Trial(Agreeing, walks_config("first"))
    trial.iterate()
    trial.save(tmp_path / "first")
    trial.reset(walks_config("second", 3.0), {})
    results = trial.iterate()
    assert (results["eval/return"], results["training_iteration"]) == (30.0, 1), "nothing is left of the first one"
    second = trial.run_dir
    trial.reset(walks_config("third", 5.0), {})
    assert {value for _, value in curve_in(second, "reused")} == {0.0}
    trial.restore(tmp_path / "first")
    assert trial.iterate()["eval/return"] == 10.0 + 50.0
    trial.close()
    assert {value for _, value in curve(trial, "reused")} == {1.0}
    names = [RunRecord.read(trial.run_dir.with_name(name) / "run.json").status for name in ("first", "second", "third")]
    assert names == ["KILLED"] * 3


def test_a_failed_trial_is_recorded_and_its_successor_starts_from_the_saved_state(walks_config, tmp_path):
    trial = Trial(Raising, walks_config(pace=60.0))
    trial.iterate()
    trial.save(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="too fast"):
        trial.iterate()
    assert status(trial) == "FAILED"
    with pytest.raises(RuntimeError, match="too fast"):
        trial.iterate()
    resumed = Trial(Raising, walks_config(pace=6.0))
    resumed.restore(tmp_path / "saved")
    assert resumed.iterate()["step"] == 10
    resumed.close()


def test_a_trial_with_a_damaged_state_falls_back_to_its_own_checkpoint(walks_config, tmp_path):
    evaluated(walks_config(), tmp_path / "saved")
    (saved,) = (tmp_path / "saved").iterdir()
    largest = max((path for path in saved.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    largest.unlink()  # it may be a further name of the run's own
    largest.write_bytes(content)
    resumed = Trial(Walk, walks_config())
    resumed.restore(tmp_path / "saved")
    assert resumed.evaluations == 1
    results = resumed.iterate()
    assert (results["step"], largest.name in results["damage"]) == (10, True)
    assert "damage" not in resumed.iterate()
    resumed.close()
    assert curve(resumed) == [(step, 2.0 * step) for step in range(1, 16)]
    with pytest.raises(CheckpointError, match="contains no checkpoint of a trial"):
        resumed.restore(tmp_path)
    other = Trial(Walk, walks_config("other"))
    with pytest.raises(CheckpointError, match=largest.name):
        other.restore(tmp_path / "saved")  # no own checkpoint: it must not silently start from scratch
    assert (other.evaluations, status(other)) == (0, "FAILED")


def test_a_trial_of_a_study_does_not_resume_a_run_outside_of_it(walks_config):
    evaluated(walks_config())
    with pytest.raises(ConfigurationError, match="started outside of a sweep; choose another run_name"):
        Trial(Walk, walks_config(), group="/multirun/study").iterate()


def test_an_incompatible_state_is_rejected(walks_config, tmp_path):
    class Other(Walk):
        def load_checkpoint(self, checkpoint):
            raise KeyError("it is of another kind")

    evaluated(walks_config(), tmp_path / "saved")
    incompatible = Trial(Other, walks_config())
    with pytest.raises(CheckpointError, match="does not fit Other"):
        incompatible.restore(tmp_path / "saved")


@pytest.mark.long
def test_a_saved_state_of_a_replaced_branch_can_be_resumed_and_saved(dqn_config, tmp_path):
    from tests.training.algorithms import DQN  # imports torch

    trial = Trial(DQN, dqn_config)
    for number in (1, 2):
        trial.iterate()
        trial.save(tmp_path / f"kept{number}")
    trial.reset(with_values(dqn_config, {"seed": 1, "agent.lr": 0.1}), {})
    trial.restore(tmp_path / "kept1")
    trial.iterate()  # its rows and checkpoint replace the first branch
    trial.reset(dqn_config, {})
    trial.restore(tmp_path / "kept2")
    step = trial.iterate()["step"]
    trial.close()
    checkpoint = load_checkpoint(trial.run_dir, "latest")
    assert checkpoint.step == step
    verify(checkpoint.path)  # all rows included


def test_a_nan_objective_counts_as_the_worst_value(walks_config):
    class Lost(Walk):
        def evaluate(self):
            return {"eval/return": np.nan}

    assert Trial(Lost, walks_config(steps=5)).iterate()["eval/return"] == -np.inf
    assert Trial(Lost, walks_config("least", steps=5, mode="min")).iterate()["eval/return"] == np.inf


def test_values_are_set_and_validated_and_everything_else_is_shared(walks_config):
    config = walks_config()
    changed = with_values(config, {"walk.pace": 3, "loop.steps": 7, "seed": 5})
    assert (changed.walk.pace, changed.walk.legs, changed.seed) == (3, 2, 5)
    assert (changed.loop.steps, changed.loop.evaluate_every_steps) == (7, 5)
    assert (config.walk.pace, config.seed, changed.run_name) == (1.0, 0, "trial_0")
    assert changed.sinks is config.sinks
    assert os.fspath(named(changed, "other").persistence.get_run_base_dir()).endswith("app/runs/other")
    with pytest.raises(ConfigurationError, match="no key 'pac' in walk; did you mean 'pace'"):
        with_values(config, {"walk.pac": 3})
    with pytest.raises(ConfigurationError, match=r"walk\.pace=1000: Input should be less than or equal to 100"):
        with_values(config, {"walk.pace": 1000})
