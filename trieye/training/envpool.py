"""EnvPoolVector: environments of EnvPool, which C++ threads step, as a vector environment of Gymnasium."""

import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.config.env import EnvConfig
from trieye.config.packages import load
from trieye.exceptions import ConfigurationError

_KEY = "env.vector=envpool"
_ATARI_WRAPPERS = {
    "trieye.training.atari:EpisodicLife": "episodic_life",
    "trieye.training.atari:FireOnReset": "use_fire_reset",
}
"""Wrappers that EnvPool has as options of Atari games."""

_RESERVED = {"num_envs", "batch_size", "seed", "env_type", "task_id"}


class EnvPoolVector(VectorEnv[Any, Any, Any]):
    """Environments of EnvPool with next-step autoreset, which is EnvPool's own behavior.

    `reset` creates the environments again, because EnvPool takes seeds only then; member `i` has seed `seed + i`.

    Args:
        config: Config of the environments; the wrappers for Atari become options of EnvPool.

    Raises:
        ConfigurationError: EnvPool is not installed, or lacks the environment or one of its options.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._envpool: Any = load("envpool", _KEY)
        self._id, self._options = self._id_of(config), _options_of(config)
        self._check_options()
        self.num_envs = config.num
        self._seed = 0
        self._pool: Any = self._make()
        self.single_observation_space = self._pool.observation_space
        self.single_action_space = self._pool.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def _id_of(self, config: EnvConfig) -> str:
        name = config.id.rpartition(":")[2].removeprefix("ALE/")
        names = self._envpool.list_all_envs()
        if name not in names:
            raise ConfigurationError(f"{_KEY}: EnvPool has no {name}{did_you_mean(name, names)}; set env.vector=sync")
        return name

    def _check_options(self) -> None:
        option_names = {*self._envpool.make_spec(self._id).config._fields} - _RESERVED
        for name in self._options.keys() - option_names:
            raise ConfigurationError(
                f"env.kwargs.{name}: EnvPool's {self._id} has no such option{did_you_mean(name, option_names)} "
                f"(options: {', '.join(sorted(option_names))})"
            )

    def _make(self) -> Any:
        with warnings.catch_warnings(action="ignore"):  # Gymnasium's, about the precision of bounds
            pool = self._envpool.make(
                self._id, env_type="gymnasium", num_envs=self.num_envs, seed=self._seed, **self._options
            )
            pool.observation_space, pool.action_space  # noqa: B018 - computed on first access
        return pool

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; with a seed, they are created again."""
        del options
        if seed is not None:
            self._seed = int(seed if isinstance(seed, int) else seed[0] or 0) % 2**31
            self._pool.close()
            self._pool = self._make()
        return self._pool.reset()[0], {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all environments; one whose episode has ended is reset instead."""
        obs, rewards, terminated, truncated, _ = self._pool.step(np.asarray(actions))
        return obs, rewards.astype(np.float64), terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        del kwargs
        self._pool.close()


def _options_of(config: EnvConfig) -> dict[str, Any]:
    """Return the options of EnvPool for a config.

    Raises:
        ConfigurationError: A wrapper has no counterpart in EnvPool.
    """
    options = dict(config.kwargs)
    if config.max_episode_steps is not None:
        options["max_episode_steps"] = config.max_episode_steps
    if config.atari:
        options.pop("frameskip", None)  # the wrapper of `env.atari` skips frames, and so does EnvPool
        options |= {"frame_skip": 4, "noop_max": 30, "stack_num": config.frame_stack or 1}
    elif config.frame_stack is not None:
        raise ConfigurationError(f"{_KEY}: frame_stack={config.frame_stack} applies to Atari games only; leave it out")
    for name, wrapper in config.wrappers.items():
        if wrapper is None:
            continue
        if not config.atari or wrapper.name not in _ATARI_WRAPPERS:
            key = f"env.wrappers.{name}"
            raise ConfigurationError(f"{_KEY}: {key}.name={wrapper.name} cannot wrap environments; set {key}=null")
        options[_ATARI_WRAPPERS[wrapper.name]] = True
    return options
