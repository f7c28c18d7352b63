"""make_envs: creates the vector environment of a model from an environment config."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize, VecTransposeImage

from trieye.config.env import EnvConfig
from trieye.exceptions import ConfigurationError
from trieye.training.environments import make_env
from trieye.training.seeds import FIRST_SEED


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


class SameEpisodes(EvalCallback):
    """`EvalCallback` that plays the same episodes in each evaluation, with the seeds of `trieye.train`.

    A plain `EvalCallback` plays new episodes in each evaluation, so that short evaluations differ more by their
    episodes than by their policies. It needs environments of `make_envs(..., evaluates=True)`.
    """

    def _on_step(self) -> bool:
        if self.eval_freq > 0 and self.n_calls % self.eval_freq == 0:
            start_episodes(self.eval_env, self.n_eval_episodes)
        return super()._on_step()


def start_episodes(envs: VecEnv, episodes: int, first_seed: int = FIRST_SEED) -> None:
    """Let the next episodes have consecutive seeds.

    Args:
        envs: Environments of `make_envs(..., evaluates=True)`.
        episodes: Number of episodes that `evaluate_policy` plays; it distributes them evenly over the environments.
        first_seed: Seed of the first episode.
    """
    for index in range(envs.num_envs):
        envs.env_method("start_at", first_seed, indices=[index])
        first_seed += (episodes + index) // envs.num_envs


class _SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Resets with consecutive seeds."""

    _next_seed = FIRST_SEED

    def start_at(self, seed: int) -> None:
        """Set the seed of the next episode."""
        self._next_seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with the next seed; the argument is ignored."""
        del seed
        self._next_seed += 1
        return self.env.reset(seed=self._next_seed - 1, options=options)


def _make_one(config: EnvConfig, *, evaluates: bool) -> "gym.Env[Any, Any]":
    config = config.for_evaluation() if evaluates else config
    env: Any = make_env(config, render_mode="rgb_array" if evaluates and config.eval_video else None)
    env = Monitor(_SeededEpisodes(env) if evaluates else env)
    return (
        gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward)))) if config.clip_rewards else env
    )
