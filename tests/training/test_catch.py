"""Catch follows its own rules and Gymnasium's."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as checker_of_gymnasium

import trieye
from trieye.config.env import EnvConfig
from trieye.training.environments import check_env, make_env

ID = "trieye.training.catch:Catch-v0"


@pytest.fixture
def env():
    catch = make_env(EnvConfig(id=ID), render_mode="rgb_array")
    yield catch
    catch.close()


def test_the_id_creates_an_environment_that_passes_gymnasiums_checker(env):
    checker_of_gymnasium(env.unwrapped)
    check_env(EnvConfig(id=ID), ("discrete",))
    assert env.observation_space == gym.spaces.Box(0.0, 1.0, (1, 10, 10), np.float32)


@pytest.mark.parametrize("misses", [False, True])
def test_a_paddle_under_the_ball_wins_and_any_other_loses_after_nine_steps(env, misses):
    columns = set()
    for seed in range(60):
        obs, _ = env.reset(seed=seed)
        column = int(obs[0, 0].argmax())
        columns.add(column)
        goal = (column + 5) % 10 if misses else column
        rewards, paddle, terminated = [], 5, False
        while not terminated:
            obs, reward, terminated, truncated, _ = env.step(np.int64(1 + np.sign(goal - paddle)))
            paddle += np.sign(goal - paddle)
            assert obs[0, 9, paddle] == obs[0, len(rewards) + 1, column] == 1.0
            assert obs.sum() == (1.0 if terminated and not misses else 2.0)
            rewards.append(reward)
        assert rewards == [0.0] * 8 + [-1.0 if misses else 1.0]
        assert not truncated
    assert len(columns) == 10


def test_the_paddle_stays_on_the_board(env):
    for action, edge in ((0, 0), (2, 9)):
        env.reset(seed=0)
        for _ in range(7):
            obs, *_ = env.step(np.int64(action))
        assert obs[0, 9, edge] == 1.0


def test_a_saved_episode_resumes_exactly_in_another_environment(env):
    state = trieye.EnvState(env)
    env.reset(seed=3)
    for _ in range(4):
        env.step(np.int64(0))
    assert state.is_exact
    other = make_env(EnvConfig(id=ID), render_mode="rgb_array")
    trieye.EnvState(other).load_state_dict(state.state_dict())
    for _ in range(5):
        assert np.array_equal(env.step(np.int64(2))[0], other.step(np.int64(2))[0])
    assert np.array_equal(env.reset()[0], other.reset()[0])
    assert np.array_equal(env.render(), other.render())
    assert env.render().shape == (160, 160, 3)
    other.close()
