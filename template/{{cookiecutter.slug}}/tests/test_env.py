"""Environments are made for the agent, and the middle of an episode can be saved where that is possible."""

import gymnasium as gym
import numpy as np
import pytest
import trieye

from {{ cookiecutter.slug }}.config import EnvConfig, TrainConfig
from {{ cookiecutter.slug }}.dqn import DQN
from {{ cookiecutter.slug }}.env import make_env


class Hidden(gym.Env[np.ndarray, int]):
    """An environment that keeps its state where nobody sees it."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 1, (3,))

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None):
        super().reset(seed=seed)
        self.steps = iter(range(5))
        return self.np_random.random(3, np.float32), {}

    def step(self, action: int):
        return np.ones(3, np.float32), 1.0, next(self.steps) == 4, False, {}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1"])
def test_a_saved_episode_goes_on_where_it_was(env_id: str):
    env, twin = (make_env(EnvConfig(id=env_id, max_episode_steps=30)) for _ in range(2))
    env.reset(seed=1)
    env.step(1)
    assert trieye.EnvState(env).is_exact
    trieye.EnvState(twin).load_state_dict(trieye.EnvState(env).state_dict())
    for _ in range(60):  # past the end of the episode, so that the next start is compared, too
        (obs, reward, *ends, _), (twin_obs, twin_reward, *twin_ends, _) = env.step(0), twin.step(0)
        assert np.array_equal(obs, twin_obs)
        assert (reward, ends) == (twin_reward, twin_ends)
        if any(ends):
            assert np.array_equal(env.reset()[0], twin.reset()[0])


def test_where_an_episode_cannot_be_saved_the_save_waits_for_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(gym.registry, "Hidden-v0", gym.envs.registration.EnvSpec("Hidden-v0", entry_point=Hidden))
    overrides = ["debug=tiny", "env.id=Hidden-v0", "agent.collect_steps=3"]
    agent = DQN(trieye.compose(overrides, config_path="../conf", config_type=TrainConfig))
    made = [(agent.step()["env_steps"], agent.can_save) for _ in range(4)]
    assert made == [(3, False), (2, True), (3, False), (2, True)]


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
