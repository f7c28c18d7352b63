"""Environments and wrappers of this project, used by the files in `conf/env/`."""

from typing import Any

import gymnasium as gym


class SameStart(gym.Wrapper[Any, Any, Any, Any]):
    """Start every episode in the same state, for `debug=overfit`."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        """Wrap an environment whose resets all use `seed`."""
        super().__init__(env)
        self.start_seed = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with the seed of this wrapper; ignore the `seed` argument."""
        return self.env.reset(seed=self.start_seed, options=options)


class SelectFeatures(gym.ObservationWrapper[Any, Any, Any]):
    """Hide all features but some, for `env=cartpole_positions`."""

    def __init__(self, env: gym.Env[Any, Any], indices: list[int]) -> None:
        """Wrap an environment whose observations are vectors; `indices` are those of the visible features."""
        super().__init__(env)
        self.indices = indices
        space: Any = env.observation_space
        self.observation_space = gym.spaces.Box(space.low[indices], space.high[indices], dtype=space.dtype)

    def observation(self, observation: Any) -> Any:
        """Return the visible features."""
        return observation[self.indices]
