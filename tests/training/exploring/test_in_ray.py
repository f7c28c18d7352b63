"""Explorers as Ray actors, on a real Ray."""

import pytest

from tests.training.algorithms import DQN, PPO
from tests.training.exploring.test_explorers import DQN_PARTS, PPO_PARTS, same, trained

IN_RAY = {"runtime": {"kind": "ray"}}


@pytest.mark.parametrize(("engine", "parts"), [(DQN, DQN_PARTS), (PPO, PPO_PARTS)])
def test_one_explorer_in_ray_trains_as_the_engine_alone(train_config, engine, parts):
    env, loop = {"num": 2}, {"env_steps": 2000}
    alone = trained(train_config, engine, **parts, env=env, loop=loop, run_name="alone")
    helped = trained(
        train_config, engine, **parts, env=env, loop=loop, run_name="helped", explorer={"num": 1}, **IN_RAY
    )
    assert same(alone, helped)
