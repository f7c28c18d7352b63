"""UpdateRatio: computes how many updates are due for the environment steps since learning started."""

from collections.abc import Mapping
from typing import Any


class UpdateRatio:
    """Counts the updates that are due, over the whole run.

    Args:
        per_env_step: Updates per environment step, on average.
        learning_starts: Environment steps that fill an empty replay before the first update.
    """

    def __init__(self, per_env_step: float, learning_starts: int) -> None:
        self._per_env_step, self._learning_starts = per_env_step, learning_starts
        self._env_steps, self._updates = learning_starts, 0

    def due(self, env_steps: int) -> int:
        """Return the total number of updates due after `env_steps` environment steps."""
        return self._updates + max(int((env_steps - self._env_steps) * self._per_env_step), 0)

    def start(self, env_steps: int, updates: int) -> None:
        """Restart counting from `updates` updates at `env_steps` environment steps."""
        self._env_steps, self._updates = env_steps, updates

    def restart(self, env_steps: int, updates: int) -> None:
        """Delay the next update until an empty replay has been filled again."""
        self.start(env_steps + self._learning_starts, updates)

    def state_dict(self) -> dict[str, Any]:
        """Return the start of counting and the ratio."""
        return {name.removeprefix("_"): value for name, value in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any], env_steps: int, updates: int) -> None:
        """Continue after `env_steps` and `updates`; another ratio applies to later environment steps only."""
        self.start(state["env_steps"], state["updates"])
        if env_steps < self._env_steps:  # learning has not started
            self._env_steps += self._learning_starts - state["learning_starts"]
        elif self._per_env_step != state["per_env_step"]:
            self.start(env_steps, updates)
