"""Environments: making one, and saving the middle of an episode."""

import copy
import logging
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from trieye import ConfigurationError
from trieye.config.base import did_you_mean

from {{ cookiecutter.slug }}.config import EnvConfig

log = logging.getLogger(__name__)
_SAVABLE = ("gymnasium.envs.classic_control", "gymnasium.envs.toy_text")
_PLAIN = (bool, int, float, str, type(None), np.ndarray, np.generic)


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


def snapshot(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state in the middle of an episode as plain data, or None where that is not possible.

    The classic-control and toy-text environments keep their whole state in plain attributes; others may hide it.
    """
    if not type(env.unwrapped).__module__.startswith(_SAVABLE):
        return None
    layers = [_plain_attributes(layer) for layer in _layers(env)]
    return {"layers": layers, "rng": env.unwrapped.np_random.bit_generator.state}


def restore(env: gym.Env[Any, Any], saved: dict[str, Any] | None) -> np.ndarray | None:
    """Put a snapshot back.

    Returns:
        None if the episode goes on; else the first observation of a new one, because it could not be saved.
    """
    if saved is None:
        log.warning("%s cannot be saved inside an episode: a new episode starts, the resume is not exact", env.spec)
        return env.reset()[0]
    env.reset()
    for layer, attributes in zip(_layers(env), saved["layers"], strict=True):
        vars(layer).update(attributes)
    env.unwrapped.np_random.bit_generator.state = saved["rng"]
    return None


def _complaint(env: gym.Env[Any, Any]) -> str | None:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gym.spaces.Discrete) or actions.start != 0:
        return f"actions {actions}; this agent needs Discrete ones that begin at 0"
    if not observations.is_np_flattenable:
        return f"observations {observations}; this agent needs some of a fixed size: Box, Discrete, MultiBinary, ..."
    return None


def _layers(env: gym.Env[Any, Any]) -> Iterator[gym.Env[Any, Any]]:
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env
    yield env


def _plain_attributes(layer: gym.Env[Any, Any]) -> dict[str, Any]:
    # copies, because some environments change their lists in place
    return {name: copy.deepcopy(value) for name, value in vars(layer).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, (tuple, list)) else isinstance(value, _PLAIN)


def _as_float32(space: gym.Space[Any]) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, space.shape, np.float32)
