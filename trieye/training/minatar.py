"""Registers the games of MinAtar (Young and Tian 2019): `env.id=trieye.training.minatar:MinAtar/Breakout-v1`."""

from typing import Any

import gymnasium as gym

from trieye.config.packages import load

_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_Game: Any = load("minatar.gym", "env.id=trieye.training.minatar:...").BaseEnv


class SeededGame(_Game):  # type: ignore[misc]  # the package has no types
    """A game of MinAtar whose `reset` seeds Gymnasium's generator too, as Gymnasium's rules require."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the game."""
        gym.Env.reset(self, seed=seed)
        obs, info = super().reset(seed, options)
        return obs, info


for _game in _GAMES:
    gym.register(
        f"MinAtar/{_game.title().replace('_', '')}-v1",
        SeededGame,
        kwargs={"game": _game, "use_minimal_action_set": True},
    )
