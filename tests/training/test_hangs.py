"""Hanging environments delay others as little as possible, and a signal saves and stops the training."""

import os
import signal
import threading
import time

import pytest

import trieye
from tests.training.algorithms import DQN, PPO
from tests.training.worlds import Hangs
from tests.waiting import wait_until
from trieye.files.run_record import RunRecord
from trieye.training.exploring import group

HANGS = {"id": "tests.training.worlds:HangsOnce-v0"}
PARTS = {"agent": {"rollout_steps": 8, "batch_size": 16, "learning_starts": 16}, "env": HANGS}


@pytest.fixture(autouse=True)
def _hanging():
    Hangs.again()
    yield
    Hangs.released.set()


def signalled(number, event, after_s=0.0):
    """Send a signal to this process when a condition holds; return a list that receives the time."""
    sent = []

    def send():
        event.wait(60)
        time.sleep(after_s)
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    return sent


def saved(config):
    run_dir = config.persistence.get_run_base_dir()
    assert RunRecord.read(run_dir / "run.json").status == "KILLED"
    return trieye.load_checkpoint(run_dir, "latest")


def test_a_hanging_explorer_is_named_while_the_others_continue(train_config, monkeypatch, capsys):
    monkeypatch.setattr(group, "OVERDUE_S", 0.5, raising=False)
    parts = {"agent": {"kind": "ppo", "engine": "tests.training.algorithms:PPO", "rollout_steps": 8}, "env": HANGS}
    engine = PPO(train_config(**parts, explorer={"num": 2}, sync={"style": "fully_async"}))
    is_over = threading.Event()

    def train():
        while not is_over.is_set():
            engine.advance()

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    assert Hangs.hanging.wait(20)
    before = engine.env_steps
    wait_until(lambda: engine.env_steps > before + 100, within_s=15)
    began = time.monotonic()
    state = engine._row_source.state_dict()
    assert time.monotonic() - began < 5
    assert sum(explorer_state["state"] is None for explorer_state in state["explorers"]) == 1
    is_over.set()
    stderr = capsys.readouterr().err
    Hangs.released.set()
    trainer.join(20)
    engine.cleanup()
    hung = next(index for index, explorer_state in enumerate(state["explorers"]) if explorer_state["state"] is None)
    assert f"explorer {hung}: tests.training.worlds:HangsOnce-v0" in stderr


def test_a_signal_saves_and_ends_a_training_while_its_environment_hangs(train_config, capsys):
    config = train_config(**PARTS, loop={"env_steps": 100_000})
    sent = signalled(signal.SIGTERM, Hangs.hanging)
    with pytest.raises(trieye.RunInterrupted) as caught:
        trieye.run_experiment(DQN, config)
    assert time.monotonic() - sent[0] < 10
    assert caught.value.exit_code == 128 + signal.SIGTERM
    assert 8 < saved(config).step <= 16  # the third fragment of 8 steps never arrived
    assert "HangsOnce-v0 did not return" in capsys.readouterr().err
    Hangs.released.set()
    loop = config.loop.model_copy(update={"env_steps": 60})
    assert trieye.run_experiment(DQN, config.model_copy(update={"loop": loop})).env_steps >= 60


def test_a_signal_saves_and_ends_a_training_while_an_explorer_thread_hangs(train_config):
    config = train_config(**PARTS, explorer={"num": 2}, sync={"style": "explorer_driven"}, loop={"env_steps": 100_000})
    sent = signalled(signal.SIGINT, Hangs.hanging)
    with pytest.raises(trieye.RunInterrupted):
        trieye.run_experiment(DQN, config)
    assert time.monotonic() - sent[0] < 10
    assert saved(config).step >= 16
    assert all(thread.daemon for thread in threading.enumerate() if "explorer" in thread.name), "one holds up the exit"


def test_a_signal_interrupts_an_evaluation_which_the_next_start_repeats_first(train_config):
    env = {"id": "tests.training.worlds:Endless-v0", "eval_episodes": 1}
    config = train_config(env=env, loop={"env_steps": 16, "evaluate_every_steps": 16, "axis": "env_steps"})
    evaluating = threading.Event()

    class Evaluating(DQN):
        def evaluate(self):
            evaluating.set()
            return super().evaluate()

    sent = signalled(signal.SIGINT, evaluating, after_s=0.3)
    with pytest.raises(trieye.RunInterrupted):
        trieye.run_experiment(Evaluating, config)
    assert time.monotonic() - sent[0] < 5
    assert saved(config).objective is None

    class Short(DQN):
        def evaluate(self):
            return {"eval/return": 7.0}

    assert trieye.run_experiment(Short, config).objective == 7.0


def test_an_endless_evaluation_episode_is_cut(train_config, capsys):
    env = {"id": "tests.training.worlds:Endless-v0", "eval_episodes": 2, "eval_max_steps": 50}
    result = trieye.run_experiment(DQN, train_config(env=env, loop={"env_steps": 16}))
    assert result.objective == 50.0
    stderr = capsys.readouterr().err
    assert "2 of 2 episodes of tests.training.worlds:Endless-v0 were cut at env.eval_max_steps=50 steps" in stderr
