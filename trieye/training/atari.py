"""Wrappers for Atari games: episodes that end with each life, and FIRE at their start, for `env.wrappers`."""

from typing import Any

import gymnasium as gym


class EpisodicLife(gym.Wrapper[Any, Any, Any, Any]):
    """End the episode with each lost life; the game itself is reset only when it is over (Mnih et al. 2015).

    Set `training_only=true`, so that evaluations count whole games.

    Args:
        env: A game that reports `lives` in its `info`.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._lives, self._continues = 0, False

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game; a lost life terminates the episode."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        # 0 lives are not the end: some games continue for a few frames, such as Q*bert
        self._continues = 0 < info["lives"] < self._lives and not (terminated or truncated)
        self._lives = info["lives"]
        return obs, reward, terminated or self._continues, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Continue with the next life by one no-op, or reset a game that is over; with a seed, reset it in any case."""
        has_ended = not self._continues or seed is not None
        if not has_ended:
            obs, _, terminated, truncated, info = self.env.step(0)
            has_ended = terminated or truncated
        if has_ended:
            obs, info = self.env.reset(seed=seed, options=options)
        self._lives, self._continues = info["lives"], False
        return obs, info


class FireOnReset(gym.Wrapper[Any, Any, Any, Any]):
    """Press FIRE, which starts each life of some games: after a reset, and after a lost life within an episode.

    Games without FIRE are unchanged. The next action of the game follows, as in OpenAI Baselines (2017).

    Args:
        env: A game of ale-py; `EpisodicLife` belongs inside this wrapper.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._actions = (1, 2) if env.unwrapped.get_action_meanings()[1:2] == ["FIRE"] else ()
        self._lives = 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game, and start the next life if one was lost."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lost_life, self._lives = info["lives"] < self._lives, info["lives"]
        for start in self._actions if lost_life else ():
            if terminated or truncated:
                break
            obs, second_reward, terminated, truncated, info = self.env.step(start)
            reward = float(reward) + float(second_reward)
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the game, and start it."""
        obs, info = self.env.reset(seed=seed, options=options)
        for start in self._actions:
            obs, _, terminated, truncated, info = self.env.step(start)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._lives = info["lives"]
        return obs, info
