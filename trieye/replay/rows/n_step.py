"""NStep: returns over several rows of an episode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks

Ids = NDArray[np.int64]


@dataclass(slots=True)
class Returns:
    """What n-step learning needs of rows `[n]`, besides `next_*` and the ends of the last rows.

    Attributes:
        last: int64 `[n]`, the last row of each window; its `next_*` values are those to bootstrap from.
        reward: `[n, ...]`, the discounted sum of the window's rewards, in their dtype; float32 for integers.
        discount: float32 `[n]`, the factor of the bootstrapped value; 0 where the episode terminated in the window.
        n: int64 `[n]`, rows in the window.
    """

    last: Ids
    reward: NDArray[Any]
    discount: NDArray[np.float32]
    n: Ids


class NStep:
    """Sums the rewards of a row and of those that follow it in its episode.

    The window of row t has m <= n rows: R = sum of gamma^k r_(t+k) for k < m, and the target is R + discount V(next),
    where discount is gamma^m, or 0 if the last row terminated (Sutton and Barto 2018, equation 7.1).
    A window is shorter than n where the episode ended, terminated or truncated, and at its newest row while it goes on:
    that row's next observation is as good to bootstrap from as any, and no row has to wait before it is drawn.
    """

    def __init__(self, n: int, gamma: float) -> None:
        """Choose the window.

        Args:
            n: Rows in a full window.
            gamma: Discount for each row, in [0, 1].

        Raises:
            ConfigurationError: One of them is out of range.
        """
        if n < 1:
            raise ConfigurationError(f"n_step is {n}; it must be at least 1")
        if not 0 <= gamma <= 1:
            raise ConfigurationError(f"gamma is {gamma}; it must be in [0, 1]")
        self.n, self.gamma = n, gamma
        self._powers = gamma ** np.arange(n + 1, dtype=np.float64)

    def returns(
        self,
        ids: Ids,
        links: EpisodeLinks,
        reward: Callable[[Ids], NDArray[Any]],
        terminated: Callable[[Ids], NDArray[Any]],
    ) -> Returns:
        """Return the windows of rows.

        Args:
            ids: int64 `[n]`.
            links: Which row follows which.
            reward: Gives the rewards `[m, ...]` of rows, int64 `[m]`.
            terminated: Gives bool `[m]`, whether the episode terminated with a row, rather than being truncated.
        """
        windows = links.following(ids, self.n)
        there = windows >= 0
        lengths = there.sum(axis=1)
        last = windows[np.arange(len(ids)), lengths - 1]
        rewards = reward(np.where(there, windows, ids[:, None]).reshape(-1))
        dtype = rewards.dtype if rewards.dtype.kind in "fc" else np.dtype(np.float32)
        shape = rewards.shape[1:]
        rewards = rewards.reshape(*windows.shape, -1)
        terms = np.zeros(rewards.shape, np.result_type(rewards, np.float64))
        # not even multiplied by 0 beyond the window: a reward there may be infinite
        np.multiply(rewards, self._powers[:-1, None], where=there[:, :, None], out=terms)
        summed = terms.sum(axis=1).astype(dtype).reshape(len(ids), *shape)
        discount = np.where(terminated(last), 0, self._powers[lengths]).astype(np.float32)
        return Returns(last, summed, discount, lengths)
