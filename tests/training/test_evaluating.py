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

EVERY = {"steps": 300, "evaluate_every_steps": 100}


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
    def make(engine=DQN, **given):
        loop = EVERY | given.pop("loop", {})
        config = train_config(**{"persistence": {"keep_last": 0}, "loop": loop} | given)
        result = trieye.run_experiment(engine, config)
        return result, config.persistence.get_run_base_dir()

    return make


class Slowly(QPolicy):
    """Holds a background evaluation back until training has made some steps."""

    trains = threading.Event()

    def act(self, obs, state, ctx):
        if threading.current_thread() is not threading.main_thread():
            assert Slowly.trains.wait(30)
        return super().act(obs, state, ctx)


class Waited(DQN, policy=Slowly):
    """An evaluation of step 100 ends after step 150, and each one before the next is due, however busy the machine."""

    outcome = None

    def evaluate_saved(self, checkpoint):
        self.outcome = super().evaluate_saved(checkpoint)
        return self.outcome

    def step(self):
        if self.env_steps >= 150:
            Slowly.trains.set()
        if self.outcome is not None and self.env_steps % 100 > 80:
            self.outcome.result(30)
        return super().step()


def test_what_is_found_beside_is_what_would_have_been_found(trained):
    _, waiting = trained(run_name="waiting")
    Slowly.trains.clear()
    result, beside = trained(Waited, run_name="beside", loop={"background_evaluation": True})
    assert evaluations(beside) == evaluations(waiting)
    assert len(evaluations(beside)) >= 3
    assert rated(beside) == evaluations(beside)
    assert result.objective == max(evaluations(beside).values())
    best = max(evaluations(beside), key=lambda step: (evaluations(beside)[step], step))
    assert result.best_checkpoint.name == f"checkpoint_step_{best}"
    assert (beside / "checkpoints" / "best.pkl").resolve() == result.best_checkpoint
    states = [trieye.load_checkpoint(run_dir, "latest").objects["experiment"]["state"] for run_dir in (waiting, beside)]
    assert all(torch.equal(item, states[1]["policy"][name]) for name, item in states[0]["policy"].items())


def test_an_evaluation_beside_draws_nothing_from_the_generators_of_the_training(trained):
    states = []
    for name, beside in (("waiting", False), ("beside", True)):
        _, run_dir = trained(Noisy, run_name=name, loop={"background_evaluation": beside})
        states.append(trieye.load_checkpoint(run_dir, "latest").objects["experiment"]["state"]["policy"])
    assert all(torch.equal(item, states[1][name]) for name, item in states[0].items())


def test_an_evaluation_that_takes_long_leaves_out_the_next_ones_and_keeps_its_checkpoint(trained, capfd):
    class Late(DQN, policy=Slowly):
        def step(self):
            if self.env_steps >= 280:
                Slowly.trains.set()
            return super().step()

    Slowly.trains.clear()
    saves = {"keep_last": 1, "checkpoint_save_freq_steps": 20}
    _, run_dir = trained(Late, loop={"background_evaluation": True, "evaluate_every_steps": 50}, persistence=saves)
    first, *others = evaluations(run_dir)
    assert 50 <= first < 60
    assert all(step > 250 for step in others)
    assert capfd.readouterr().err.count("is still running at step") == 1
    newest = CheckpointStore(run_dir / "checkpoints", read_only=True).entries()[-1]
    assert newest.objective is not None


class Looked(Waited):
    """Records whether the evaluated checkpoint exists, although only the newest is retained."""

    seen: set = set()

    def step(self):
        if 130 <= self.env_steps < 150:
            Looked.seen |= {path.name for path in (self.run.dir / "checkpoints").glob("checkpoint_step_*")}
        return super().step()


def test_retention_leaves_a_checkpoint_alone_that_is_being_evaluated(trained):
    Slowly.trains.clear()
    saves = {"keep_last": 1, "checkpoint_save_freq_steps": 5, "keep_best": 0}
    _, run_dir = trained(Looked, loop={"background_evaluation": True}, persistence=saves)
    begun = min(evaluations(run_dir))
    assert f"checkpoint_step_{begun}" in Looked.seen
    assert list(rated(run_dir)) == [max(evaluations(run_dir))]


@pytest.mark.long
def test_an_evaluation_whose_process_is_killed_is_done_again(trained, ray_cluster, capfd):
    loop = {"background_evaluation": True, "steps": 250}

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


def test_what_an_evaluation_raises_ends_the_training(trained):
    with pytest.raises(ZeroDivisionError, match="in an evaluation"):
        trained(Breaking, loop={"background_evaluation": True})


class Interrupted(Waited):
    """Gets a stop signal during an evaluation."""

    def step(self):
        if self.env_steps >= 120 and not self.run.resumed:
            signal.raise_signal(signal.SIGTERM)
        return DQN.step(self)


def test_a_run_that_is_stopped_during_an_evaluation_does_it_again(trained):
    Slowly.trains.clear()
    loop = {"background_evaluation": True}
    with pytest.raises(trieye.RunInterrupted):
        trained(Interrupted, loop=loop)
    Slowly.trains.set()
    _, run_dir = trained(Interrupted, loop=loop)
    _, whole = trained(run_name="whole")
    assert evaluations(run_dir) == evaluations(whole)
    assert rated(run_dir).items() >= evaluations(run_dir).items()


def test_an_evaluator_that_is_closed_leaves_what_it_does(train_config, trained):
    Slowly.trains.clear()
    _, run_dir = trained(loop={"evaluate_every_steps": 0})
    evaluator = Evaluator(train_config(), Slowly)
    outcome = evaluator.begin(trieye.load_checkpoint(run_dir, "latest").path)
    evaluator.close()
    Slowly.trains.set()
    with pytest.raises(BaseException, match=r"cancelled|^$"):
        outcome.result(30)


class Own(DQN):
    def evaluate(self):
        return {"eval/return": 1.0}


def test_an_engine_with_an_evaluation_of_its_own_says_how_to_evaluate_checkpoints(trained):
    with pytest.raises(
        ConfigurationError, match=r"loop.background_evaluation: Own overrides evaluate\(\).*evaluate_saved"
    ):
        trained(Own, loop={"background_evaluation": True})


def test_a_video_of_an_evaluation_beside_is_refused(train_config):
    with pytest.raises(ValueError, match=r"env.eval_video is not supported by background evaluations"):
        train_config(env={"eval_video": True}, loop={"background_evaluation": True})
