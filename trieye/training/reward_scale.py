"""RewardScale: rewards divided by the standard deviation of discounted returns."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trieye.training.rows import Array

ReturnMoments = tuple[float, float, float]
"""Number, mean and variance of discounted returns."""


class RewardScale:
    """Rewards over the standard deviation of the discounted return so far (Engstrom et al. 2020, section 3).

    Args:
        num_envs: Environments.
        gamma: Discount.

    Attributes:
        newest: Number, mean and variance of the returns in the rewards that were scaled last; None if there were none.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self.newest: ReturnMoments | None = None
        self._count, self._mean, self._variance = 1e-4, 0.0, 1.0
        self.begin(num_envs)

    def begin(self, num_envs: int) -> None:
        """Begin an episode in each environment."""
        self._returns = np.zeros(num_envs)

    def scaled(self, rewards: Array, valid: Array, done: Array) -> Array:
        """Take rewards `[t, n]` into account, and return them scaled."""
        returns = np.empty_like(rewards)
        for t, reward in enumerate(rewards):
            returns[t] = self._returns = self._returns * self._gamma + reward
            self._returns = np.where(done[t], 0.0, self._returns)
        self.newest = None
        if valid.any():
            found = returns[valid]
            self.newest = len(found), float(found.mean()), float(found.var())
            self.merge(*self.newest)
        scaled: Array = np.clip(rewards / np.sqrt(self._variance + 1e-8), -10.0, 10.0)
        return scaled

    def merge(self, num: float, mean: float, variance: float) -> None:
        """Take the moments of returns into account."""
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
        """Return the moments, and the returns under way."""
        return {name: value for name, value in vars(self).items() if name not in {"_gamma", "newest"}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back what `state_dict` returned."""
        vars(self).update(state)
