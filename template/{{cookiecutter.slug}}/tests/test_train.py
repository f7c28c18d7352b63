"""Each algorithm trains, is saved and evaluated, and a killed run goes on exactly."""

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
    "sac": ["agent=sac", "env=pendulum", "agent.learning_starts=40", "agent.hidden_sizes=[16]"],
    "blank": ["agent=blank", "env=cartpole"],
}


def typed(root: Path, agent: str, run: str) -> list[str]:
    """Return a command line on a small budget, in updates."""
    small = ["debug=default", "sinks=[]", "env.max_episode_steps=30", f"persistence.root_data_dir={root}"]
    return [*AGENTS[agent], *small, f"run_name={run}"]


def train(*words: str) -> Path:
    config = trieye.compose(words, config_path=PROJECT / "conf", config_type=TrainConfig)
    trieye.train(config)
    return config.persistence.get_run_base_dir()


@pytest.mark.parametrize("agent", AGENTS)
def test_an_algorithm_learns_from_updates_and_is_saved(tmp_path: Path, agent: str):
    saved = trieye.load_checkpoint(train(*typed(tmp_path, agent, agent)), "latest")
    assert saved.objects["loop"]["updates"] >= 20
    assert saved.objective is not None


def test_a_policy_acts_in_the_environment_of_its_run_and_is_evaluated(tmp_path: Path):
    run_dir = train(*typed(tmp_path, "dqn", "one"))
    policy, env = trieye.load_policy(run_dir), trieye.make_env(run_dir)
    assert env.action_space.contains(policy.predict(env.reset(seed=0)[0]))
    env.close()
    report = trieye.evaluate(run_dir, episodes=3)
    assert (report["run"], report["episodes"], len(report["returns"])) == ("one", 3, 3)


def test_debug_overfit_begins_each_episode_in_the_same_state():
    env = SameStart(gym.make("CartPole-v1"), seed=7)
    assert np.array_equal(env.reset(seed=1)[0], env.reset()[0])


def test_the_single_file_goes_on_where_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    small = ["learning_starts=50", "loop.evaluate_every_steps=100", "eval_episodes=1", "sinks=[]", "run_name=single"]
    for steps in (100, 200):
        words = [*small, f"loop.steps={steps}", f"persistence.root_data_dir={tmp_path}"]
        where = {"config_path": PROJECT / "conf", "config_name": "single_file"}
        single_file.train(trieye.compose(words, **where, config_type=single_file.Config))
    assert "resumes at step 100" in capfd.readouterr().err


def test_a_killed_run_resumes_with_bit_identical_weights(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    more = ["loop.steps=200", "loop.evaluate_every_steps=0", "persistence.keep_last=0"]
    whole = train(*typed(tmp_path, "dqn", "whole"), *more)

    command = [sys.executable, "-m", f"{NAME}.train", *typed(tmp_path, "dqn", "killed"), *more]
    killed = subprocess.Popen(command, cwd=PROJECT)
    checkpoints = tmp_path / NAME / "runs" / "killed" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("checkpoint_step_*"))) < 3:
        assert killed.poll() is None and time.monotonic() < deadline, "no checkpoints appeared"
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL

    again = train(*typed(tmp_path, "dqn", "killed"), *more)
    assert "resumes at step" in capfd.readouterr().err
    one, other = (trieye.load_policy(run_dir, "latest").state_dict() for run_dir in (whole, again))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((again / "run.json").read_text())["attempt"] == 2
