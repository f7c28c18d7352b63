"""A short training runs, and a killed one resumes exactly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import trieye

from {{ cookiecutter.slug }}.config import TrainConfig
from {{ cookiecutter.slug }}.dqn import DQN
from {{ cookiecutter.slug }}.evaluate import evaluate, print_table

PROJECT = Path(__file__).parent.parent
NAME = "{{ cookiecutter.slug }}"
FAST = ["debug=tiny", "sinks=[]", "persistence.checkpoint_save_freq_steps=10"]


def compose(root: Path, *overrides: str) -> TrainConfig:
    overrides = (*FAST, f"persistence.root_data_dir={root}", *overrides)
    return trieye.compose(overrides, config_path=PROJECT / "conf", config_type=TrainConfig)


def weights(root: Path, run: str, step: int) -> dict[str, torch.Tensor]:
    saved = trieye.load_checkpoint(root / NAME / "runs" / run, step)
    return saved.objects["experiment"]["state"]["q"]


def test_a_short_training_learns_something_and_can_be_evaluated(tmp_path: Path):
    config = compose(tmp_path, "run_name=short")
    result = trieye.run_experiment(DQN, config)
    assert result.step == 30
    assert result.objective is not None
    report = evaluate(result.run_dir, episodes=3)
    assert report["episodes"] == 3
    assert report["return_min"] <= report["return_mean"] <= report["return_max"]
    first = DQN(config).q.state_dict()
    assert any(not torch.equal(first[name], tensor) for name, tensor in weights(tmp_path, "short", 30).items())


def test_a_run_without_any_evaluation_says_that_its_newest_checkpoint_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(DQN, "evaluate", lambda _: {})
    report = evaluate(trieye.run_experiment(DQN, compose(tmp_path, "run_name=blind")).run_dir, episodes=1)
    print_table(report)
    assert report["step"] == 30
    assert "blind: newest checkpoint" in capsys.readouterr().out


def test_a_step_stores_what_happened():
    agent = DQN(trieye.compose(FAST, config_path=PROJECT / "conf", config_type=TrainConfig))
    for _ in range(20):
        agent.step()
    batch = agent.replay.sample(50)
    assert agent.env_steps == len(agent.replay) == 20 * agent.agent.collect_steps
    assert np.isfinite(batch["obs"]).all()
    assert set(np.unique(batch["action"])) <= set(range(agent.num_actions))
    agent.cleanup()


def test_the_learning_rate_of_the_config_counts_on_resume(tmp_path: Path):
    result = trieye.run_experiment(DQN, compose(tmp_path, "run_name=first", "optimizer.lr=1e-3"))
    agent = DQN(compose(tmp_path, "optimizer.lr=5e-4"))
    agent.load_checkpoint(trieye.load_checkpoint(result.run_dir).objects["experiment"]["state"])
    assert agent.updates > 0
    assert [group["lr"] for group in agent.optimizer.param_groups] == [5e-4]


@pytest.mark.parametrize(("option", "saved"), [("default", True), ("fast", False), ("none", False)])
def test_the_replay_buffer_is_saved_where_the_option_of_persistence_says_so(tmp_path: Path, option: str, saved: bool):
    agent = DQN(compose(tmp_path, f"persistence={option}"))
    assert ("replay" in agent.save_checkpoint(tmp_path)) is saved


def test_a_killed_run_resumes_with_bit_identical_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    steps = 200
    typed = [f"loop.steps={steps}", "loop.evaluate_every_steps=0", "persistence.keep_last=0"]
    typed.append("env.id=CartPole-v1")  # an exact resume needs an environment that can be saved inside an episode
    trieye.run_experiment(DQN, compose(tmp_path, *typed, "run_name=whole"))

    typed.append("run_name=killed")
    command = [sys.executable, "-m", f"{NAME}.train", *FAST, f"persistence.root_data_dir={tmp_path}", *typed]
    killed = subprocess.Popen(command, cwd=PROJECT)
    checkpoints = tmp_path / NAME / "runs" / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("checkpoint_step_*"))) < 3:
        assert killed.poll() is None and time.monotonic() < deadline, "no checkpoints appeared"
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (checkpoints / f"checkpoint_step_{steps}").exists()

    trieye.run_experiment(DQN, compose(tmp_path, *typed))
    assert "resumes at step" in capfd.readouterr().err
    whole, again = weights(tmp_path, "whole", steps), weights(tmp_path, "killed", steps)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    record = json.loads((checkpoints.parent / "run.json").read_text())
    assert record["attempt"] == 2
