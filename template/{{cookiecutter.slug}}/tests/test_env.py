"""Environments are made for the agent, and an episode can be saved where that is possible."""

import numpy as np
import pytest

from {{ cookiecutter.slug }}.config import EnvConfig
from {{ cookiecutter.slug }}.env import make_env, restore, snapshot


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_a_saved_episode_goes_on_where_it_was(env_id: str):
    env, twin = (make_env(EnvConfig(id=env_id, max_episode_steps=30)) for _ in range(2))
    env.reset(seed=1)
    for _ in range(5):
        env.step(1)
    assert restore(twin, snapshot(env)) is None
    for _ in range(60):  # past the end of the episode, so that the next start is compared, too
        (obs, reward, *ends, _), (twin_obs, twin_reward, *twin_ends, _) = env.step(0), twin.step(0)
        assert np.array_equal(obs, twin_obs)
        assert (reward, ends) == (twin_reward, twin_ends)
        if any(ends):
            assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_a_new_episode_starts_where_the_old_one_cannot_be_saved(caplog: pytest.LogCaptureFixture):
    env = make_env(EnvConfig(id="FrozenLake-v1"))
    env.reset(seed=1)
    assert snapshot(env) is None
    assert restore(env, None) is not None
    assert "the resume is not exact" in caplog.text


def test_observations_are_flat_and_float32():
    obs, _ = make_env(EnvConfig(id="FrozenLake-v1")).reset(seed=1)
    assert (obs.dtype, obs.shape) == (np.float32, (16,))


def test_continuous_actions_are_refused():
    with pytest.raises(ValueError, match="this agent needs discrete ones"):
        make_env(EnvConfig(id="Pendulum-v1"))
