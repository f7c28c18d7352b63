"""PrioritizedSampler: draws rows in proportion to a power of their priority."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.base import Ids, RowSampler, SampledIds
from trieye.replay.samplers.sum_tree import SumTree, weights_of

Chances = NDArray[np.float32]


class PrioritizedSampler(RowSampler):
    """Proportional prioritized replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952, sections 3.3 and 3.4).

    Row i is drawn with P(i) = p_i^alpha / sum_k p_k^alpha, where p_i = priority + epsilon. Its weight is (N
    P(i))^-beta, divided by the largest weight of the batch. A draw of n rows is stratified: one row from each of n
    equal parts of the sum. New rows get the largest priority seen so far, initially 1.
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
        """Create a sampler without rows.

        Args:
            capacity: Maximum number of rows in the buffer.
            alpha: Exponent of the priorities; 0 is uniform sampling.
            beta: Exponent of the importance weights, in [0, 1]; 1 corrects the bias fully.
            beta_draws: Number of batches until beta, rising linearly, reaches 1; beta is constant if None.
            epsilon: Added to every priority; above 0, rows of priority 0 are drawn too.

        Raises:
            ConfigurationError: An argument is out of range.
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
        self._low = self._settled = self._end = 0  # rows [_settled, _end) were added, but are not in the tree yet

    @property
    def beta(self) -> float:
        """The exponent of the next batch's weights."""
        if self._beta_draws is None:
            return self._first_beta
        return min(self._first_beta + (1 - self._first_beta) * self._draws / self._beta_draws, 1.0)

    def added(self, first_id: int, count: int) -> None:
        """Give new rows the largest priority seen. The next draw does so, at a cost independent of their number."""
        self._end = first_id + count

    def forgot(self, low_id: int) -> None:
        """Remove rows from the tree."""
        self._settle(low_id)

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> SampledIds:
        """Draw `n` rows from `[low, high)`, sorted by ring slot.

        Raises:
            ConfigurationError: All priorities and epsilon are 0.
        """
        ids, chances = self.stratified(n, low, rng)
        return self.judge(ids, low, high, chances)

    def discarded(self, ids: Ids, *, for_good: bool) -> None:
        """Set the chances of rows that need not be drawn again to 0, until their next `update`."""
        if for_good:
            self.set_chances(ids, np.zeros(len(ids), np.float32))

    def handed_out(self, draw: SampledIds) -> None:  # noqa: ARG002 - a protocol
        """Advance beta."""
        self._draws += 1

    def stratified(self, n: int, low: int, rng: np.random.Generator) -> tuple[Ids, Chances]:
        """Draw `n` ids from `low` on, one from each of `n` equal parts of the sum; return ids and p^alpha."""
        return self._find((np.arange(n) + rng.random(n)) / n, low)

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:  # noqa: ARG002  # a protocol
        """Draw `n` ids independently."""
        return self._find(rng.random(n), low)[0]

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of the ids in proportion to their chances."""
        self._settle(self._low)
        sums = self._tree.weights[ids % self.capacity].cumsum(dtype=np.float64)
        if not sums[-1]:
            raise ConfigurationError(
                f"all {len(ids)} rows to choose from have priority 0, so none can be drawn; set epsilon above 0 or "
                "update them"
            )
        points = np.minimum(rng.random(n), 1 - 2**-52) * sums[-1]
        picked_ids: Ids = ids[sums.searchsorted(points, side="right")]
        return picked_ids

    def chances(self, ids: Ids) -> Chances:
        """Return p^alpha of rows; draws are proportional to it."""
        return self._tree.weights.take(ids % self.capacity)

    def judge(self, ids: Ids, low: int, high: int, chances: Chances | None = None) -> SampledIds:
        """Return a draw of the ids with weights, normalized to a maximum of 1.

        Args:
            ids: int64 `[n]`.
            low: Id of the oldest row at the time of the draw.
            high: Id after the newest row at that time.
            chances: float32 `[n]`, the chances of the ids when they were drawn, if they have changed since.
        """
        chances = self.chances(ids) if chances is None else chances
        beta = self.beta
        # N and the sum of all chances are common factors, which the division by the largest weight cancels
        min_chance, info = chances.min(), {"size": high - low, "beta": beta}
        return SampledIds(
            ids, (chances / min_chance) ** np.float32(-beta), info, None, float(np.float64(min_chance) ** -beta)
        )

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities, float `[n]`, at least 0."""
        values = np.asarray(priorities, np.float64)
        if not len(ids):
            return
        self._settle(self._low)
        self._tree.set(ids % self.capacity, self._weights(values))
        self.max_priority = max(self.max_priority, float(values.max()))

    def set_chances(self, ids: Ids, chances: Chances) -> None:
        """Set p^alpha of rows; rows with 0 are not drawn until their next `update`."""
        self._settle(self._low)
        self._tree.set(ids % self.capacity, chances)

    def state_dict(self) -> dict[str, Any]:
        """Return p^alpha of the remaining rows, oldest first, and the counters."""
        self._settle(self._low)
        remaining = np.arange(max(self._low, self._end - self.capacity), self._end)
        return {
            "weights": self._tree.weights[remaining % self.capacity],
            "alpha": self.alpha,
            "end": self._end,
            "max_priority": self.max_priority,
            "draws": self._draws,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, with the newest rows if it has more than the capacity."""
        weights = np.asarray(state["weights"], np.float32)[-self.capacity :]
        if (alpha := state.get("alpha", self.alpha)) != self.alpha and alpha:
            weights = weights ** np.float32(self.alpha / alpha) * (weights > 0)  # 0**0 is 1
        self._end = self._settled = int(state["end"])
        self._low = self._end - len(weights)
        self._tree.load(self._low % self.capacity, weights)
        self.max_priority, self._draws = float(state["max_priority"]), int(state["draws"])

    def _weights(self, priorities: NDArray[np.float64]) -> Chances:
        shifted_priorities = priorities + self.epsilon
        weights = weights_of(shifted_priorities, self.alpha)
        if not self.epsilon:
            weights[shifted_priorities == 0] = 0
        return weights

    def _settle(self, low: int) -> None:
        if self._settled < self._end:
            first_id = max(self._settled, self._end - self.capacity)
            weight = float(self._weights(np.array([self.max_priority]))[0])
            self._tree.fill(first_id % self.capacity, self._end - first_id, weight)
            self._settled = self._end
        first_kept = max(self._low, self._end - self.capacity)
        if low > first_kept:
            self._tree.fill(first_kept % self.capacity, low - first_kept, 0)
        self._low = max(low, self._low)

    def _find(self, shares: NDArray[np.float64], low: int) -> tuple[Ids, Chances]:
        self._settle(low)
        slots, chances = self._tree.find(shares)
        if not chances[0]:
            raise ConfigurationError(
                f"all {self._end - low} rows have priority 0, so none can be drawn; set epsilon above 0 or update them"
            )
        ids = slots + (low - low % self.capacity)
        ids += (ids < low) * self.capacity  # wrap around the end of the ring
        return ids, chances.astype(np.float32)
