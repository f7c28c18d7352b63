"""PrioritizedSampler: rows are drawn in proportion to a power of their priority."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.base import Draw, Ids
from trieye.replay.samplers.sum_tree import SumTree, weights_of

Chances = NDArray[np.float32]


class PrioritizedSampler:
    """Proportional prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952, section 3.3 and 3.4).

    Row i is drawn with P(i) = p_i^alpha / sum_k p_k^alpha, where p_i = priority + epsilon. Its weight is
    (N P(i))^-beta, divided by the largest one of the batch. A draw of n rows takes one from each of n equal parts of
    the sum (stratified). New rows have the largest priority seen so far, which is 1 in the beginning.
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_draws: int | None = None,
        epsilon: float = 1e-6,
    ) -> None:
        """Make a sampler without rows.

        Args:
            capacity: Rows of the ring.
            alpha: How much priorities count; with 0 every row is drawn equally often.
            beta: How much the weights make up for that, in [0, 1]; with 1 wholly.
            beta_draws: The number of batches over which beta grows to 1, linearly; it stays as it is if None.
            epsilon: Added to every priority, so that a row of priority 0 is drawn too; with 0 it never is.

        Raises:
            ConfigurationError: One of them is out of range.
        """
        if not (0 <= alpha < float("inf") and 0 <= epsilon < float("inf")):
            raise ConfigurationError(f"alpha is {alpha} and epsilon {epsilon}; both must be finite and at least 0")
        if not 0 <= beta <= 1:
            raise ConfigurationError(f"beta is {beta}; it must be in [0, 1]")
        if beta_draws is not None and beta_draws < 1:
            raise ConfigurationError(f"beta_draws is {beta_draws}; it must be at least 1 draw, or None")
        self.capacity = capacity
        self.alpha, self.epsilon = alpha, epsilon
        self.max_priority = 1.0
        self._first_beta, self._beta_draws = beta, beta_draws
        self._tree = SumTree(capacity)
        self._draws = 0
        self._low = self._settled = self._end = 0  # rows [_settled, _end) came, but are not in the tree yet

    @property
    def beta(self) -> float:
        """The exponent of the weights of the next batch."""
        if self._beta_draws is None:
            return self._first_beta
        return min(self._first_beta + (1 - self._first_beta) * self._draws / self._beta_draws, 1.0)

    def added(self, first_id: int, count: int) -> None:
        """Give new rows the largest priority seen; at the next draw, as it costs as much for one row as for many."""
        self._end = first_id + count

    def forgot(self, low_id: int) -> None:
        """Take rows out that were removed."""
        self._settle(low_id)

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> Draw:
        """Draw `n` rows of `[low, high)`, sorted by their place in the ring.

        Raises:
            ConfigurationError: All priorities, and epsilon, are 0.
        """
        ids, chances = self.stratified(n, low, rng)
        return self.judge(ids, low, high, chances)

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Give rows that need not be drawn again no chance any more, until their next `update`."""
        if for_good:
            self.set_chances(ids, np.zeros(len(ids), np.float32))

    def handed_out(self, draw: Draw) -> None:  # noqa: ARG002 - a protocol
        """Let beta grow."""
        self._draws += 1

    def stratified(self, n: int, low: int, rng: np.random.Generator) -> tuple[Ids, Chances]:
        """Draw `n` ids of rows from `low` on, one from each of `n` equal parts of the sum; return also p^alpha."""
        return self._find((np.arange(n) + rng.random(n)) / n, low)

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:  # noqa: ARG002  # a protocol
        """Draw `n` ids independently."""
        return self._find(rng.random(n), low)[0]

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of the ids, with the chances that they have among themselves."""
        self._settle(self._low)
        sums = self._tree.weights[ids % self.capacity].cumsum(dtype=np.float64)
        if not (len(ids) and sums[-1]):
            raise ConfigurationError("none of the rows can be drawn")
        places = np.minimum(rng.random(n), 1 - 2**-52) * sums[-1]
        picked: Ids = ids[sums.searchsorted(places, side="right")]
        return picked

    def chances(self, ids: Ids) -> Chances:
        """Return p^alpha of rows, in proportion to which they are drawn."""
        return self._tree.weights.take(ids % self.capacity)

    def judge(self, ids: Ids, low: int, high: int, chances: Chances | None = None) -> Draw:
        """Return the ids of a draw with their weights, of which the largest is 1.

        Args:
            ids: int64 `[n]`.
            low: Id of the oldest row there was.
            high: The id after that of the newest.
            chances: float32 `[n]`, what `chances` told when they were drawn, if that has changed since.
        """
        chances = self.chances(ids) if chances is None else chances
        beta = self.beta
        # N and the sum of all chances are the same for every row, so they are gone when the largest weight is made 1
        least, info = chances.min(), {"size": high - low, "beta": beta}
        return Draw(ids, (chances / least) ** np.float32(-beta), info, None, float(np.float64(least) ** -beta))

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities, float `[n]` and at least 0."""
        values = np.asarray(priorities, np.float64)
        if not len(ids):
            return
        self._settle(self._low)
        self._tree.set(ids % self.capacity, self._weights(values))
        self.max_priority = max(self.max_priority, float(values.max()))

    def set_chances(self, ids: Ids, chances: Chances) -> None:
        """Set p^alpha of rows; with 0 they are not drawn until their next `update`."""
        self._settle(self._low)
        self._tree.set(ids % self.capacity, chances)

    def state_dict(self) -> dict[str, Any]:
        """Return the priorities, to the power of alpha, of the rows that are left, oldest first, and the counters."""
        self._settle(self._low)
        kept = np.arange(max(self._low, self._end - self.capacity), self._end)
        return {
            "weights": self._tree.weights[kept % self.capacity],
            "alpha": self.alpha,
            "end": self._end,
            "max_priority": self.max_priority,
            "draws": self._draws,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; of more rows than the capacity the newest."""
        weights = np.asarray(state["weights"], np.float32)[-self.capacity :]
        if (alpha := state.get("alpha", self.alpha)) != self.alpha and alpha:
            weights = weights ** np.float32(self.alpha / alpha)
        self._end = self._settled = int(state["end"])
        self._low = self._end - len(weights)
        self._tree.load(self._low % self.capacity, weights)
        self.max_priority, self._draws = float(state["max_priority"]), int(state["draws"])

    def _weights(self, priorities: NDArray[np.float64]) -> Chances:
        shifted = priorities + self.epsilon
        weights = weights_of(shifted, self.alpha)
        if not self.epsilon:
            weights[shifted == 0] = 0
        return weights

    def _settle(self, low: int) -> None:
        if self._settled < self._end:
            first = max(self._settled, self._end - self.capacity)
            weight = float(self._weights(np.array([self.max_priority]))[0])
            self._tree.fill(first % self.capacity, self._end - first, weight)
            self._settled = self._end
        forgotten = max(self._low, self._end - self.capacity)
        if low > forgotten:
            self._tree.fill(forgotten % self.capacity, low - forgotten, 0)
        self._low = max(low, self._low)

    def _find(self, shares: NDArray[np.float64], low: int) -> tuple[Ids, Chances]:
        self._settle(low)
        slots, chances = self._tree.find(shares)
        if not chances[0]:
            raise ConfigurationError(
                f"all {self._end - low} rows have priority 0, so none can be drawn; set epsilon above 0, or update them"
            )
        ids = slots + (low - low % self.capacity)
        ids += (ids < low) * self.capacity  # around the end of the ring
        return ids, chances.astype(np.float32)
