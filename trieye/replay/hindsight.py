"""HindsightRelabeler: relabels drawn rows with goals achieved later; an argument of a buffer, not a config key."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.episodes import EpisodeLinks
from trieye.replay.rows.schema import PREFIX, Column, as_array, check_known

Ids = NDArray[np.int64]
Data = dict[str, NDArray[Any]]
Strategy = Literal["future", "final", "episode"]
_FAR = 1 << 62  # rows; more than any episode has
RewardFn = Callable[[NDArray[Any], NDArray[Any], Mapping[str, NDArray[Any]]], NDArray[Any]]


class HindsightRelabeler:
    """Hindsight experience replay (Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495), applied to drawn rows.

    Of every k + 1 rows, k get a goal that a row of the same episode achieved, and a reward recomputed for that goal.

    - `future`: the goal achieved by a random row from the drawn row to the end of its episode.
    - `final`: the goal of the episode's last row, or of its newest row if the episode has not ended.
    - `episode`: the goal of any row of the episode that is still in the buffer.
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
        """Configure the relabelling.

        Args:
            reward_fn: `reward_fn(achieved_goal, desired_goal, info)` with arrays `[m, ...]`, as `compute_reward` of
                gymnasium-robotics; `info` contains the drawn values of those rows by key. Returns the rewards `[m]`.
            k: Relabelled rows per row with its original goal.
            strategy: Which rows supply the new goals.
            achieved_key: The goal that was achieved by a row's action.
            goal_keys: The goals to replace; `next_<key>` is replaced as well where rows have it.
            reward_key: The reward to recompute.

        Raises:
            ConfigurationError: The strategy is unknown, or `k` is negative or infinite.
        """
        check_known(f"HER strategy {strategy!r}", strategy, get_args(Strategy))
        if not 0 <= k < math.inf:
            raise ConfigurationError(
                f"HER k is {k}; it must be at least 0 (relabelled rows per original row) and finite"
            )
        self.reward_fn, self.k, self.strategy = reward_fn, k, strategy
        self.achieved_key, self.goal_keys, self.reward_key = achieved_key, tuple(goal_keys), reward_key

    def relabel(
        self,
        data: Data,
        ids: Ids,
        links: EpisodeLinks,
        achieved_of: Callable[[Ids], NDArray[Any]],
        low: int,
        rng: np.random.Generator,
    ) -> NDArray[np.bool_]:
        """Replace goals and rewards in the drawn rows.

        Args:
            data: Arrays `[n, ...]` by key, modified in offset.
            ids: int64 `[n]`, the ids of the drawn rows.
            links: Successor links of the rows.
            achieved_of: Returns the values `[m, ...]` of `achieved_key` for row ids, int64 `[m]`.
            low: Id of the oldest row in the buffer.
            rng: Random generator.

        Returns:
            bool `[n]`, True where a row was relabelled.

        Raises:
            ConfigurationError: A key is missing, or goals or rewards do not fit the shape or dtype in the buffer.
        """
        for key in (self.achieved_key, *self.goal_keys, self.reward_key):
            check_known(f"HER row key {key!r}", key, data)
        is_new = np.zeros(len(ids), np.bool_)
        is_new[rng.permutation(len(ids))[: round(len(ids) * self.k / (self.k + 1))]] = True
        indices = np.flatnonzero(is_new)
        if not indices.size:
            return is_new
        goals = achieved_of(self._sources(ids[indices], links, low, rng))
        for key in (*self.goal_keys, *(PREFIX + key for key in self.goal_keys)):
            if key in data:
                _replace(data, key, indices, goals, f"goals of {self.achieved_key!r}")
        info = {key: array[indices] for key, array in data.items()}
        rewards = self.reward_fn(info[self.achieved_key], goals, info)
        _replace(data, self.reward_key, indices, rewards, "reward_fn")
        return is_new

    def _sources(self, ids: Ids, links: EpisodeLinks, low: int, rng: np.random.Generator) -> Ids:
        """Return, for each row `[n]`, the id of the row whose achieved goal replaces its goal."""
        everything = np.full(len(ids), _FAR)
        last_ids, num_later = links.travel(ids, everything, low=low)
        if self.strategy == "final":
            return last_ids
        first_ids, num_earlier = ids, np.zeros_like(ids)
        if self.strategy == "episode":
            first_ids, num_earlier = links.travel(ids, everything, low=low, backwards=True)
        offset = np.floor(rng.random(len(ids)) * (num_earlier + num_later + 1)).astype(np.int64)
        return links.travel(first_ids, offset, low=low)[0]


def _replace(data: Data, key: str, indices: Ids, values: NDArray[Any], source: str) -> None:
    """Write values into rows of a batch, under the checks of added rows; whole floats may become integers."""
    column = Column(key, data[key].shape[1:], data[key].dtype)
    try:
        array = as_array(key, values)
        if array.dtype.kind in "iuf" and column.dtype.kind in "biu":  # such as the -1.0 and 0.0 of gymnasium-robotics
            with np.errstate(invalid="ignore"):
                exact = array.astype(column.dtype)
            array = exact if np.array_equal(exact, array) else array
        data[key][indices] = column.conform(array, rows=len(indices))
    except ConfigurationError as error:
        raise ConfigurationError(f"HER {source}: {error}") from error
