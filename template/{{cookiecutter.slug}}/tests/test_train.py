"""Test that each algorithm trains, saves and evaluates, and that a killed run resumes bit-identically."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import trieye

from {{ cookiecutter.slug }} import single_file
from {{ cookiecutter.slug }}.config import TrainConfig
from {{ cookiecutter.slug }}.env import SameStart

PROJECT = Path(__file__).parent.parent
NAME = "{{ cookiecutter.slug }}"
AGENTS = {
    "dqn": ["agent=dqn", "env=cartpole", "agent.learning_starts=40"],
    "ppo": ["agent=ppo", "env=cartpole", "agent.rollout_steps=20", "agent.batch_size=10"],
    "ppo_continuous": ["agent=ppo", "env=pendulum", "agent.rollout_steps=20", "agent.batch_size=10"],
    "recurrent_ppo": ["agent=recurrent_ppo", "env=cartpole_positions", "env.num=2", "agent.rollout_steps=20"],
    "sac": ["agent=sac", "env=pendulum", "agent.learning_starts=40", "agent.hidden_sizes=[16]"],
    "td3": ["agent=td3", "env=pendulum", "agent.learning_starts=40", "agent.hidden_sizes=[16]"],
    "blank": ["agent=blank", "env=cartpole"],
}


def overrides_of(root: Path, agent: str, run: str) -> list[str]:
    """Return overrides for a short run."""
    small = ["debug=default", "sinks=[]", "env.max_episode_steps=30", f"persistence.root_data_dir={root}"]
    return [*AGENTS[agent], *small, f"run_name={run}"]


def train(*overrides: str) -> Path:
    config = trieye.compose(overrides, config_path=PROJECT / "conf", config_type=TrainConfig)
    trieye.train(config)
    return config.persistence.get_run_base_dir()


@pytest.mark.parametrize("agent", sorted(AGENTS.keys() - {"dqn"}))
def test_an_algorithm_trains_and_saves_a_checkpoint(tmp_path: Path, agent: str):
    checkpoint = trieye.load_checkpoint(train(*overrides_of(tmp_path, agent, agent)), "latest")
    assert checkpoint.objects["loop"]["updates"] >= 20
    assert checkpoint.objective is not None


def test_dqn_trains_and_its_saved_policy_acts_and_is_evaluated(tmp_path: Path):
    run_dir = train(*overrides_of(tmp_path, "dqn", "one"))
    assert trieye.load_checkpoint(run_dir, "latest").objects["loop"]["updates"] >= 20
    policy, env = trieye.load_policy(run_dir), trieye.make_env(run_dir)
    assert env.action_space.contains(policy.predict(env.reset(seed=0)[0]))
    env.close()
    report = trieye.evaluate(run_dir, episodes=3)
    assert (report["run"], report["episodes"], len(report["returns"])) == ("one", 3, 3)


def test_same_start_resets_every_episode_to_one_state():
    env = SameStart(gym.make("CartPole-v1"), seed=7)
    assert np.array_equal(env.reset(seed=1)[0], env.reset()[0])


def test_the_single_file_resumes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    small = ["learning_starts=50", "loop.evaluate_every_steps=100", "eval_episodes=1", "sinks=[]", "run_name=single"]
    for steps in (100, 200):
        overrides = [*small, f"loop.steps={steps}", f"persistence.root_data_dir={tmp_path}"]
        config = {"config_path": PROJECT / "conf", "config_name": "single_file", "config_type": single_file.Config}
        single_file.train(trieye.compose(overrides, **config))
    assert "continues at step 100" in capfd.readouterr().err


def test_a_killed_run_resumes_with_bit_identical_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    extra = ["loop.steps=200", "loop.evaluate_every_steps=0", "persistence.keep_last=0"]
    uninterrupted = train(*overrides_of(tmp_path, "dqn", "uninterrupted"), *extra)

    command = [sys.executable, "-m", f"{NAME}.train", *overrides_of(tmp_path, "dqn", "killed"), *extra]
    process = subprocess.Popen(command, cwd=PROJECT)
    checkpoints = tmp_path / NAME / "runs" / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("checkpoint_step_*"))) < 3:
        assert process.poll() is None and time.monotonic() < deadline, "fewer than 3 checkpoints were saved"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    resumed = train(*overrides_of(tmp_path, "dqn", "killed"), *extra)
    assert "continues at step" in capfd.readouterr().err
    one, other = (trieye.load_policy(run_dir, "latest").state_dict() for run_dir in (uninterrupted, resumed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((resumed / "run.json").read_text())["attempt"] == 2
