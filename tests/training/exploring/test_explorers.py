"""Training with explorers in threads: the same classes and the same rules as in processes."""

import pytest
import torch

import trieye
from tests.training.algorithms import DQN, PPO

DQN_PARTS = {"agent": {"rollout_steps": 8, "batch_size": 16, "learning_starts": 64}}
PPO_PARTS = {"agent": {"kind": "ppo", "engine": "tests.training.algorithms:PPO", "rollout_steps": 32}}


def weights(run_dir):
    return trieye.load_policy(run_dir, which="latest").state_dict()


def trained(train_config, engine, **given):
    config = train_config(**given)
    trieye.run_experiment(engine, config)
    return weights(config.persistence.get_run_base_dir())


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("engine", "parts"), [(DQN, DQN_PARTS), (PPO, PPO_PARTS)])
@pytest.mark.parametrize("normalized", [False, True])
def test_one_explorer_in_step_trains_as_the_engine_alone(train_config, engine, parts, normalized):
    env = {"num": 2, "normalize_observations": normalized}
    loop = {"env_steps": 2000}
    alone = trained(train_config, engine, **parts, env=env, loop=loop, run_name="alone")
    helped = trained(train_config, engine, **parts, env=env, loop=loop, run_name="helped", explorer={"num": 1})
    assert same(alone, helped)
