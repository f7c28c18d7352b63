"""Environments and wrappers of this project, for the files in `conf/env/`."""

from typing import Any

import gymnasium as gym


class SameStart(gym.Wrapper[Any, Any, Any, Any]):
    """Let every episode begin in the same state, that of one seed: for `debug=overfit`."""

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        """Go around an environment."""
        super().__init__(env)
        self.start = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset with the seed of this wrapper, whatever was asked for."""
        return self.env.reset(seed=self.start, options=options)
