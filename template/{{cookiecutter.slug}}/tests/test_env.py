"""Environments are made for the agent, and an episode can be saved where that is possible."""

import gymnasium as gym
import numpy as np
import pytest
import trieye

from {{ cookiecutter.slug }}.config import EnvConfig
from {{ cookiecutter.slug }}.env import make_env, restore, snapshot


class Hidden(gym.Env[np.ndarray, int]):
    """An environment that keeps its state where nobody sees it."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (3,))

    def reset(self, **_: object):
        return np.ones(3, np.float32), {}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1"])
def test_a_saved_episode_goes_on_where_it_was(env_id: str):
    env, twin = (make_env(EnvConfig(id=env_id, max_episode_steps=30)) for _ in range(2))
    env.reset(seed=1)
    env.step(1)
    assert restore(twin, snapshot(env)) is None
    for _ in range(60):  # past the end of the episode, so that the next start is compared, too
        (obs, reward, *ends, _), (twin_obs, twin_reward, *twin_ends, _) = env.step(0), twin.step(0)
        assert np.array_equal(obs, twin_obs)
        assert (reward, ends) == (twin_reward, twin_ends)
        if any(ends):
            assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_a_new_episode_starts_where_the_old_one_cannot_be_saved(caplog: pytest.LogCaptureFixture):
    assert snapshot(Hidden()) is None
    assert restore(Hidden(), None) is not None
    assert "the resume is not exact" in caplog.text


def test_observations_are_flat_and_float32_and_discrete_ones_one_hot():
    obs, _ = make_env(EnvConfig(id="FrozenLake-v1")).reset(seed=1)
    assert obs.dtype == np.float32
    assert obs.tolist() == [1] + [0] * 15


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulum-v1", r"env.id=Pendulum-v1 has actions Box.*; this agent needs Discrete ones"),
        ("CartPol-v1", "env.id=CartPol-v1 cannot be made; did you mean 'CartPole-v1'"),
        ("CartPole-v9", "env.id=CartPole-v9 cannot be made; did you mean 'CartPole-v1'"),
        ("no_such_package:Maze-v0", "env.id=no_such_package:Maze-v0 cannot be made.*no_such_package"),
    ],
)
def test_an_environment_that_cannot_be_used_is_named(env_id: str, message: str):
    with pytest.raises(trieye.ConfigurationError, match=message):
        make_env(EnvConfig(id=env_id))


@pytest.mark.parametrize(
    ("name", "space", "message"),
    [
        ("observation_space", gym.spaces.Sequence(gym.spaces.Discrete(3)), "has observations Sequence"),
        ("action_space", gym.spaces.Discrete(3, start=-1), "has actions Discrete.*begin at 0"),
    ],
)
def test_spaces_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch, name: str, space: gym.Space, message: str):
    monkeypatch.setattr(Hidden, name, space)
    monkeypatch.setitem(gym.registry, "Hidden-v0", gym.envs.registration.EnvSpec("Hidden-v0", entry_point=Hidden))
    with pytest.raises(trieye.ConfigurationError, match=f"env.id=Hidden-v0 {message}"):
        make_env(EnvConfig(id="Hidden-v0"))
