"""make_envs: creates the vector environment of a model from an environment config."""

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
    """Create `config.num` environments with all options of `conf/env/`.

    Args:
        config: Config of the environments.
        gamma: Discount factor of the model, for `normalize_rewards`.
        evaluates: Whether the environments are for evaluation: rewards stay unmodified, normalization moments are not
            updated, and `eval_video` enables rendering.

    Raises:
        ConfigurationError: The environments cannot be created, or not in this vector form.
    """
    if config.vector in ("own", "envpool"):
        raise ConfigurationError(
            f"env.vector={config.vector}: Stable-Baselines3 needs single environments; use env.vector=sync or async"
        )
    thunks: list[Callable[[], gym.Env[Any, Any]]] = [partial(_make_one, config, evaluates=evaluates)] * config.num
    envs: VecEnv = SubprocVecEnv(thunks) if config.vector == "async" else DummyVecEnv(thunks)
    space: Any = envs.observation_space
    if is_image_space(space) and not is_image_space_channels_first(space):
        envs = VecTransposeImage(envs)  # as a model does; applied here so that all environments have the same layers
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
    config = config.for_evaluation() if evaluates else config
    env: Any = Monitor(make_env(config, render_mode="rgb_array" if evaluates and config.eval_video else None))
    return (
        gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward)))) if config.clip_rewards else env
    )
