"""RewardScale: rewards divided by the standard deviation of discounted returns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trieye.training.rows import Array

ReturnMoments = tuple[float, float, float]
"""Number, mean and variance of discounted returns."""


class RewardScale:
    """Divides rewards by the running standard deviation of the discounted return (Engstrom et al. 2020, section 3).

    Args:
        num_envs: Number of environments.
        gamma: Discount factor.

    Attributes:
        newest: Number, mean and variance of the returns of the last call of `scaled`; None if it had no valid row.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self.newest: ReturnMoments | None = None
        self._count, self._mean, self._variance = 1e-4, 0.0, 1.0
        self.begin(num_envs)

    def begin(self, num_envs: int) -> None:
        """Start an episode in each environment."""
        self._returns = np.zeros(num_envs)

    def cut(self, env: int) -> None:
        """Start an episode in one environment."""
        self._returns[env] = 0.0

    def scaled(self, rewards: Array, valid: Array, done: Array) -> Array:
        """Update the moments with rewards `[t, n]`, and return the scaled rewards, clipped to [-10, 10]."""
        returns = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            returns[t] = self._returns = self._returns * self._gamma + reward
            self._returns = np.where(done[t], 0.0, self._returns)
        self.newest = None
        if valid.any():
            valid_returns = returns[valid]
            self.newest = len(valid_returns), float(valid_returns.mean()), float(valid_returns.var())
            self.merge(*self.newest)
        scaled: Array = np.clip(rewards / np.sqrt(self._variance + 1e-8), -10.0, 10.0)
        return scaled

    def merge(self, num: float, mean: float, variance: float) -> None:
        """Merge the moments of other returns into the running moments (Chan, Golub and LeVeque 1979)."""
        total, delta = self._count + num, mean - self._mean
        squares = self._variance * self._count + variance * num
        self._variance = (squares + delta**2 * self._count * num / total) / total
        self._mean, self._count = self._mean + delta * num / total, total

    @property
    def moments(self) -> ReturnMoments:
        """Number, mean and variance of all returns so far."""
        return self._count, self._mean, self._variance

    @moments.setter
    def moments(self, moments: ReturnMoments) -> None:
        self._count, self._mean, self._variance = moments

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the returns of the unfinished episodes."""
        return {name: value for name, value in vars(self).items() if name not in {"_gamma", "newest"}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        vars(self).update(state)
