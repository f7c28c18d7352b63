"""make_envs: the environments of a model, made as the config of an environment says."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize, VecTransposeImage

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.training.environments import make_env


def make_envs(config: EnvConfig, *, gamma: float = 0.99, evaluates: bool = False) -> VecEnv:
    """Make `config.num` environments, with all that `conf/env/` can say of them.

    Args:
        config: What to make.
        gamma: Discount of the model, for `normalize_rewards`.
        evaluates: Whether they are those of an evaluation: rewards are what they are, moments are those of the
            training, and `eval_video` asks for pictures.

    Raises:
        ConfigurationError: They cannot be made, or not in this form.
    """
    if config.vector == "own":
        raise ConfigurationError("env.vector=own: stable-baselines3 needs single environments; take sync or async")
    thunks: list[Callable[[], gym.Env[Any, Any]]] = [
        partial(_make_one, config, evaluates=evaluates) for _ in range(config.num)
    ]
    envs: VecEnv = SubprocVecEnv(thunks) if config.vector == "async" else DummyVecEnv(thunks)
    space: Any = envs.observation_space
    if is_image_space(space) and not is_image_space_channels_first(space):
        envs = VecTransposeImage(envs)  # as a model does it; here, so that all of them have the same layers
    if config.normalize_observations or config.normalize_rewards:
        envs = VecNormalize(
            envs,
            training=not evaluates,
            norm_obs=config.normalize_observations,
            norm_reward=config.normalize_rewards and not evaluates,
            gamma=gamma,
        )
    return envs


def _make_one(config: EnvConfig, *, evaluates: bool) -> "gym.Env[Any, Any]":
    env: Any = Monitor(make_env(config, render_mode="rgb_array" if evaluates and config.eval_video else None))
    return gym.wrappers.TransformReward(env, _sign) if config.clip_rewards and not evaluates else env


def _sign(reward: Any) -> float:
    return float(np.sign(reward))
