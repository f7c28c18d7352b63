"""A resumed training equals an uninterrupted one, or learning accounts for the difference."""

import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import trieye
from tests import warm
from tests.training.algorithms import DQN, PPO, interrupted, resumed
from tests.training.data import gpu_checkpoint
from trieye.experiment.loop import run_alone as run_experiment

AGENTS = {
    "dqn": (DQN, {"kind": "dqn", "rollout_steps": 3, "batch_size": 8, "learning_starts": 20}),
    "ppo": (PPO, {"kind": "ppo", "rollout_steps": 7, "batch_size": 8}),
}


class Pickled(gym.Wrapper, gym.utils.EzPickle):
    """An environment that cannot be saved in the middle of an episode."""

    def __init__(self, env):
        gym.utils.EzPickle.__init__(self)
        gym.Wrapper.__init__(self, env)


@pytest.fixture
def config(train_config):
    def make(name, steps, *, run_name="run", **env):
        return train_config(
            agent=AGENTS[name][1],
            env={"max_episode_steps": 30} | env,
            run_name=run_name,
            persistence={"checkpoint_save_freq_steps": 30},
            loop={"steps": steps, "evaluate_every_steps": 40},
        )

    return make


def state_of(result):
    return trieye.load_checkpoint(result.run_dir, "latest").objects["experiment"]["state"]


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, torch.Generator):
        assert torch.equal(one.get_state(), other.get_state())
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        pytest.param("dqn", {}, marks=pytest.mark.long),
        ("dqn", {"num": 3}),
        pytest.param("ppo", {"num": 4}, marks=pytest.mark.long),
        ("ppo", {"normalize_observations": True}),
    ],
)
def test_weights_moments_generators_and_environments_resume_bit_exactly(config, name, env):
    kind, _ = AGENTS[name]
    whole = run_experiment(kind, config(name, 120, run_name="whole", **env))
    with pytest.raises(trieye.RunInterrupted):  # a lower limit would shorten the last rollout
        run_experiment(interrupted(kind, 70), config(name, 120, run_name="parts", **env))
    parts = run_experiment(kind, config(name, 120, run_name="parts", **env))
    one, other = state_of(whole), state_of(parts)
    for state in (one, other):
        state.pop("replay", None)  # stored in parts; the newest contains only new rows
    assert_same(one, other)
    assert one["collector"]["env_steps"] >= 120


def learn_until(engine, env_steps):
    """Make steps of an engine; return [(environment steps, updates of the step)]."""
    progress = []
    while engine.env_steps < env_steps:
        before = engine.updates
        engine.advance()
        progress.append((engine.env_steps, engine.updates - before))
    return progress


@pytest.mark.parametrize("num_kills", [1, 2])
def test_without_a_saved_replay_learning_restarts_after_learning_starts_steps(train_config, num_kills, capfd):
    config = train_config(
        agent={"rollout_steps": 4, "learning_starts": 40, "updates_per_env_step": 0.5},
        persistence={"save_buffer": False},
    )
    engine = DQN(config)
    learn_until(engine, 100)
    for _ in range(num_kills):
        env_steps, updates = engine.env_steps, engine.updates
        engine = resumed(engine, config)
        assert len(engine.replay) == 0
        capfd.readouterr()
    for env_steps_now, num_updates in learn_until(engine, env_steps + 80):
        assert num_updates == 0 or env_steps_now > env_steps + 40
        assert engine.replay.metrics()["replay/size"] > 0
    assert engine.updates == updates + int((engine.env_steps - env_steps - 40) * 0.5)
    engine.cleanup()


def test_a_resume_without_the_replay_reports_when_learning_restarts(train_config, capfd):
    config = train_config(persistence={"save_buffer": False})
    engine = DQN(config)
    learn_until(engine, 20)
    resumed(engine, config).cleanup()
    assert "learning starts after another agent.learning_starts=8 environment steps" in capfd.readouterr().err


@pytest.mark.parametrize("new_agent", [{"updates_per_env_step": 2.0}, {"updates_per_env_step": 0.25}])
def test_a_new_update_ratio_counts_from_the_resume(train_config, new_agent):
    engine = DQN(train_config())
    learn_until(engine, 100)
    env_steps, updates = engine.env_steps, engine.updates
    engine = resumed(engine, train_config(agent=new_agent))
    learn_until(engine, env_steps + 4)
    assert engine.updates == updates + int((engine.env_steps - env_steps) * new_agent["updates_per_env_step"])
    engine.cleanup()


def test_learning_that_has_not_started_waits_for_the_new_learning_starts(train_config):
    engine = DQN(train_config(agent={"learning_starts": 100}))
    learn_until(engine, 20)
    engine = resumed(engine, train_config(agent={"learning_starts": 30}))
    learn_until(engine, 50)
    assert engine.updates == engine.env_steps - 30
    engine.cleanup()


RESUME = """
import sys
from pathlib import Path
import trieye
from tests.training.data import gpu_checkpoint
result = trieye.run_experiment(gpu_checkpoint.OnGPU, gpu_checkpoint.make_config(Path(sys.argv[1]), env_steps=200))
print(result.env_steps)
"""


@pytest.mark.long
def test_a_gpu_checkpoint_resumes_on_the_cpu_with_a_bit_exactness_warning(tmp_path):
    """The GPU states are simulated, see `tests/training/data/gpu_checkpoint.py`."""
    run_dir = gpu_checkpoint.make_config(tmp_path, env_steps=200).persistence.get_run_base_dir()
    shutil.copytree(gpu_checkpoint.DIRECTORY, run_dir / "checkpoints" / "checkpoint_step_78")
    resumed = warm.run(["-c", RESUME, str(tmp_path)], Path.cwd())
    assert resumed.returncode == 0, resumed.stderr
    assert int(resumed.stdout) >= 200
    assert "continues at step 78" in resumed.stderr
    assert resumed.stderr.count("saved on cuda and continue on cpu") == 1
    assert "the resume is not bit-exact" in resumed.stderr


@pytest.mark.long
@pytest.mark.parametrize("explorers", [0, 1])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"gamma": 0.99, "n_step": 1}, {"gamma": 0.9, "n_step": 1}),
        ({"gamma": 0.99, "n_step": 1}, {"gamma": 0.9, "n_step": 3}),
        ({"gamma": 0.99, "n_step": 3}, {"gamma": 0.9, "n_step": 2}),
    ],
)
def test_the_replay_survives_a_change_of_discount_or_n_step(train_config, before, after, explorers):
    """Population-based training changes these hyperparameters."""

    def config(gamma, n_step):
        return train_config(agent={"gamma": gamma}, replay={"n_step": n_step}, explorer={"num": explorers})

    engine = DQN(config(**before))
    learn_until(engine, 40)
    engine = resumed(engine, config(**after))
    batch = engine.replay.minibatch(64, torch.device("cpu"))
    n = batch.data.get("n", torch.ones(64))
    assert n.max() <= after["n_step"]
    assert torch.allclose(batch["discount"], (~batch["terminated"]) * after["gamma"] ** n.float())
    learn_until(engine, 80)
    assert all(weights.isfinite().all() for weights in engine.policy.parameters())
    engine.cleanup()


def test_explorers_that_are_removed_and_added_again_start_with_other_episodes(train_config):
    def config(explorers):
        return train_config(agent=AGENTS["ppo"][1], explorer={"num": explorers})

    engine, starts = PPO(config(0)), []
    for explorers in (2, 0, 2, 0, 2):
        engine = resumed(engine, config(explorers))
        if explorers:
            starts += [tuple(obs) for obs in engine.collect()["obs"][0].tolist()]
    engine.cleanup()
    assert len({*starts}) == len(starts) == 6


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
@pytest.mark.parametrize("name", AGENTS)
def test_a_resume_starts_new_episodes_when_explorers_are_added_or_removed(train_config, name, before, after, capfd):
    kind, agent = AGENTS[name]

    def config(explorers):
        env = {"num": 2, "normalize_rewards": True}
        replay = {"max_staleness": 100} if name == "dqn" else {}
        return train_config(agent=agent, env=env, replay=replay, explorer={"num": explorers})

    engine = kind(config(before))
    learn_until(engine, 60)
    env_steps, num_rows = engine.env_steps, 0 if engine.replay is None else engine.replay.metrics()["replay/size"]
    engine = resumed(engine, config(after))
    assert f"explorer.num was {before} and is {after}" in capfd.readouterr().err
    assert engine.env_steps == env_steps
    assert engine.replay is None or engine.replay.metrics()["replay/size"] >= num_rows
    assert np.max(engine.advance()["episode/interrupted"]) >= 1
    learn_until(engine, env_steps + 60)
    engine.cleanup()
