"""Background evaluations (loop.background_evaluation) rate checkpoints as foreground ones would."""

import signal
import threading

import pytest
import torch

import trieye
from tests.training.algorithms import DQN, Noisy, QPolicy
from tests.training.killed_evaluation import Killing
from trieye.checkpoints.store import CheckpointStore
from trieye.exceptions import ConfigurationError
from trieye.history.table import read_history
from trieye.training.evaluating import Evaluator

EVERY = {"steps": 150, "evaluate_every_steps": 50}


def rated(run_dir):
    entries = CheckpointStore(run_dir / "checkpoints", read_only=True).entries()
    return {entry.step: entry.objective for entry in entries}


def evaluations(run_dir):
    table = read_history(run_dir, ["eval/return"]).to_pydict()
    return {
        step: value
        for metric, step, value in zip(table["metric"], table["step"], table["value"], strict=True)
        if metric == "eval/return"
    }


@pytest.fixture
def trained(train_config):
    def make(engine=DQN, **overrides):
        loop = EVERY | overrides.pop("loop", {})
        config = train_config(**{"persistence": {"keep_last": 0}} | overrides, loop=loop)
        result = trieye.run_experiment(engine, config)
        return result, config.persistence.get_run_base_dir()

    return make


class SlowPolicy(QPolicy):
    """Holds a background evaluation back until training has made some steps."""

    trains = threading.Event()

    def act(self, obs, state, ctx):
        if threading.current_thread() is not threading.main_thread():
            assert SlowPolicy.trains.wait(30)
        return super().act(obs, state, ctx)


class WaitingDQN(Noisy, policy=SlowPolicy):
    """An evaluation of step 50 ends after step 75, and each one before the next is due, however busy the machine."""

    outcome = None

    def evaluate_saved(self, checkpoint):
        self.outcome = super().evaluate_saved(checkpoint)
        return self.outcome

    def step(self):
        if self.env_steps >= 75:
            SlowPolicy.trains.set()
        if self.outcome is not None and self.env_steps % 50 > 40:
            self.outcome.result(30)
        return super().step()


@pytest.mark.long
def test_background_and_foreground_evaluations_agree(trained):
    _, foreground = trained(Noisy, run_name="foreground")
    SlowPolicy.trains.clear()
    result, background = trained(WaitingDQN, run_name="background", loop={"background_evaluation": True})
    assert evaluations(background) == evaluations(foreground)
    assert len(evaluations(background)) >= 3
    assert rated(background) == evaluations(background)
    assert result.objective == max(evaluations(background).values())
    best = max(evaluations(background), key=lambda step: (evaluations(background)[step], step))
    assert result.best_checkpoint.name == f"checkpoint_step_{best}"
    assert (background / "checkpoints" / "best.pkl").resolve() == result.best_checkpoint
    states = [
        trieye.load_checkpoint(run_dir, "latest").objects["experiment"]["state"] for run_dir in (foreground, background)
    ]
    # an evaluation also leaves the generators of the training untouched, which `Noisy` draws from
    assert all(torch.equal(item, states[1]["policy"][name]) for name, item in states[0]["policy"].items())


def test_a_long_evaluation_skips_the_next_ones_and_retains_its_checkpoint(trained, capfd):
    class Late(DQN, policy=SlowPolicy):
        def step(self):
            if self.env_steps >= 140:
                SlowPolicy.trains.set()
            return super().step()

    SlowPolicy.trains.clear()
    saves = {"keep_last": 1, "checkpoint_save_freq_steps": 20}
    _, run_dir = trained(Late, loop={"background_evaluation": True, "evaluate_every_steps": 30}, persistence=saves)
    first, *others = evaluations(run_dir)
    assert 30 <= first < 40
    assert all(step > 120 for step in others)
    assert capfd.readouterr().err.count("is still running at step") == 1
    newest = CheckpointStore(run_dir / "checkpoints", read_only=True).entries()[-1]
    assert newest.objective is not None


@pytest.mark.long
def test_an_evaluation_whose_process_is_killed_is_repeated(trained, ray_cluster, capfd):
    loop = {"background_evaluation": True, "steps": 250, "evaluate_every_steps": 100}
    _, run_dir = trained(Killing, loop=loop, runtime={"kind": "ray"})
    assert not (run_dir / "flag").exists()
    assert "is repeated: its process died" in capfd.readouterr().err
    assert min(evaluations(run_dir)) < 110
    assert rated(run_dir) == evaluations(run_dir)


class Broken(QPolicy):
    def act(self, obs, state, ctx):
        if not ctx.explore:
            raise ZeroDivisionError("in an evaluation")
        return super().act(obs, state, ctx)


class Breaking(DQN, policy=Broken):
    pass


@pytest.mark.parametrize("in_background", [False, True])
def test_an_error_in_an_evaluation_ends_the_training(trained, in_background):
    with pytest.raises(ZeroDivisionError, match="in an evaluation"):
        trained(Breaking, loop={"background_evaluation": in_background})


class Interrupted(WaitingDQN):
    """Gets a stop signal during an evaluation."""

    def step(self):
        if self.env_steps >= 60 and not self.run.resumed:
            signal.raise_signal(signal.SIGTERM)
        return Noisy.step(self)


def test_a_run_stopped_during_an_evaluation_repeats_it(trained):
    SlowPolicy.trains.clear()
    loop = {"background_evaluation": True, "steps": 100}
    with pytest.raises(trieye.RunInterrupted):
        trained(Interrupted, loop=loop)
    SlowPolicy.trains.set()
    _, run_dir = trained(Interrupted, loop=loop)
    _, whole = trained(Noisy, run_name="whole", loop={"steps": 100})
    assert evaluations(run_dir) == evaluations(whole)
    assert rated(run_dir).items() >= evaluations(run_dir).items()


def test_closing_an_evaluator_cancels_its_evaluation(train_config, trained):
    SlowPolicy.trains.clear()
    _, run_dir = trained(loop={"steps": 20, "evaluate_every_steps": 0})
    evaluator = Evaluator(train_config(), SlowPolicy)
    outcome = evaluator.begin(trieye.load_checkpoint(run_dir, "latest").path)
    evaluator.close()
    SlowPolicy.trains.set()
    with pytest.raises(BaseException, match=r"cancelled|^$"):
        outcome.result(30)


class CustomEvaluation(DQN):
    def evaluate(self):
        return {"eval/return": 1.0}


def test_an_engine_with_a_custom_evaluation_is_pointed_to_evaluate_saved(trained):
    with pytest.raises(
        ConfigurationError, match=r"loop.background_evaluation: CustomEvaluation overrides evaluate\(\).*evaluate_saved"
    ):
        trained(CustomEvaluation, loop={"background_evaluation": True})


def test_a_video_of_a_background_evaluation_is_rejected(train_config):
    with pytest.raises(ValueError, match=r"env.eval_video is not supported by background evaluations"):
        train_config(env={"eval_video": True}, loop={"background_evaluation": True})
