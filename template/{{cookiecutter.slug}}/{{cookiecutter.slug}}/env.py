"""Environments: making one that the agent can use."""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
from trieye import ConfigurationError, did_you_mean

from {{ cookiecutter.slug }}.config import EnvConfig


def make_env(config: EnvConfig) -> gym.Env[np.ndarray, Any]:
    """Make the environment; observations come out flat, float32 `[size]`, discrete ones as one-hot vectors.

    Raises:
        ConfigurationError: There is no such environment, or this agent cannot handle its actions or observations.
    """
    try:
        env = gym.make(config.id, max_episode_steps=config.max_episode_steps)
    except (gym.error.Error, ImportError, ValueError) as error:
        hint = "" if config.id in gym.registry else did_you_mean(config.id, gym.registry)
        raise ConfigurationError(f"env.id={config.id} cannot be made{hint}: {error}") from error
    if complaint := _complaint(env):
        env.close()
        raise ConfigurationError(f"env.id={config.id} has {complaint}")
    env = gym.wrappers.FlattenObservation(env)
    return gym.wrappers.TransformObservation(env, np.float32, _as_float32(env.observation_space))


@functools.cache
def check_env(config: EnvConfig) -> None:
    """Make the environment once and close it, so that a sweep over seeds does not make one for each.

    Raises:
        ConfigurationError: It cannot be used.
    """
    make_env(config).close()


def _complaint(env: gym.Env[Any, Any]) -> str | None:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gym.spaces.Discrete) or actions.start != 0:
        return f"actions {actions}; this agent needs Discrete ones that begin at 0"
    if not observations.is_np_flattenable:
        return f"observations {observations}; this agent needs some of a fixed size: Box, Discrete, MultiBinary, ..."
    return None


def _as_float32(space: gym.Space[Any]) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
