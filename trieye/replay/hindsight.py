"""Hindsight: rows drawn as if their goal had been one that was reached later; an argument of a buffer, no config."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.schema import PREFIX, check_known

Ids = NDArray[np.int64]
Data = dict[str, NDArray[Any]]
Strategy = Literal["future", "final", "episode"]
STRATEGIES: tuple[Strategy, ...] = ("future", "final", "episode")
_FAR = 1 << 62  # rows; no episode has so many
RewardFn = Callable[[NDArray[Any], NDArray[Any], Mapping[str, NDArray[Any]]], NDArray[Any]]


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495), applied to drawn rows.

    Of each k + 1 rows, k get another goal: one that a row of the same episode achieved. Their reward is computed anew.

    - `future`: a row at random from this one on; what it achieved is what came after it.
    - `final`: the last row of the episode, or the newest one while it goes on.
    - `episode`: any row of the episode that is still in the buffer.
    """

    def __init__(
        self,
        reward_fn: RewardFn,
        *,
        k: float = 4,
        strategy: Strategy = "future",
        achieved_key: str = "next_achieved_goal",
        goal_keys: Sequence[str] = ("desired_goal",),
        reward_key: str = "reward",
    ) -> None:
        """Choose what is replaced.

        Args:
            reward_fn: `reward_fn(achieved_goal, desired_goal, info)` with arrays `[m, ...]`, as `compute_reward` of
                gymnasium-robotics; `info` holds the drawn values of those rows by key. Gives the rewards `[m]`.
            k: Rows with another goal for each row that keeps its own.
            strategy: Where the other goals come from.
            achieved_key: The goal that was achieved by a row's action.
            goal_keys: The goals that are replaced, and with each of them `next_<key>` where rows have it.
            reward_key: The reward that is computed anew.

        Raises:
            ConfigurationError: The strategy is unknown, or `k` is below 0 or infinite.
        """
        check_known(f"HER strategy {strategy!r}", strategy, STRATEGIES)
        if not 0 <= k < math.inf:
            raise ConfigurationError(
                f"HER k is {k}; it must be at least 0 relabelled rows for each real one, and finite"
            )
        self.reward_fn, self.k, self.strategy = reward_fn, k, strategy
        self.achieved_key, self.goal_keys, self.reward_key = achieved_key, tuple(goal_keys), reward_key

    def relabel(
        self,
        data: Data,
        ids: Ids,
        links: EpisodeLinks,
        achieved: Callable[[Ids], NDArray[Any]],
        low: int,
        rng: np.random.Generator,
    ) -> NDArray[np.bool_]:
        """Replace goals and rewards in the drawn rows.

        Args:
            data: Arrays `[n, ...]` by key, which are written to.
            ids: int64 `[n]`, the rows drawn.
            links: Which row follows which.
            achieved: Gives the values `[m, ...]` of `achieved_key` of rows, int64 `[m]`.
            low: Id of the oldest row of the buffer.
            rng: Decides.

        Returns:
            bool `[n]`, which rows got another goal.

        Raises:
            ConfigurationError: A key is missing, or the rewards have another shape.
        """
        needed = (self.achieved_key, *self.goal_keys, self.reward_key)
        for key in needed:
            if key not in data:
                raise ConfigurationError(
                    f"HER needs the key {key!r} of a row{did_you_mean(key, data)} (drawn: {', '.join(data)})"
                )
        is_new = np.zeros(len(ids), np.bool_)
        is_new[rng.permutation(len(ids))[: round(len(ids) * self.k / (self.k + 1))]] = True
        chosen = np.flatnonzero(is_new)
        if not chosen.size:
            return is_new
        goals = achieved(self._sources(ids[chosen], links, low, rng))
        for key in (*self.goal_keys, *(PREFIX + key for key in self.goal_keys)):
            if key in data:
                data[key][chosen] = goals
        info = {key: array[chosen] for key, array in data.items()}
        rewards = np.asarray(self.reward_fn(info[self.achieved_key], goals, info))
        if rewards.shape != info[self.reward_key].shape:
            raise ConfigurationError(
                f"HER reward_fn gave rewards of shape {rewards.shape} for {chosen.size} rows; "
                f"{info[self.reward_key].shape} is expected"
            )
        data[self.reward_key][chosen] = rewards
        return is_new

    def _sources(self, ids: Ids, links: EpisodeLinks, low: int, rng: np.random.Generator) -> Ids:
        """Return the rows `[n]` whose achieved goals become the goals of rows `[n]`."""
        everything = np.full(len(ids), _FAR)
        last, ahead = links.travel(ids, everything, low=low)
        if self.strategy == "final":
            return last
        first, behind = ids, np.zeros_like(ids)
        if self.strategy == "episode":
            first, behind = links.travel(ids, everything, low=low, backwards=True)
        place = np.floor(rng.random(len(ids)) * (behind + ahead + 1)).astype(np.int64)
        return links.travel(first, place, low=low)[0]
