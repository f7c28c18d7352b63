"""UniformSampler: every row is drawn equally often."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError
from trieye.replay.samplers.base import Draw, Ids, ones


class UniformSampler:
    """Draws rows independently of each other, with replacement; it remembers nothing."""

    def added(self, first_id: int, count: int) -> None:
        """Do nothing: every row is like the others."""

    def forgot(self, low_id: int) -> None:
        """Do nothing: a draw is told which rows there are."""

    def draw(self, n: int, low: int, high: int, rng: np.random.Generator) -> Draw:
        """Draw `n` rows of `[low, high)`."""
        return self.judge(rng.integers(low, high, n), low, high)

    def propose(self, n: int, low: int, high: int, rng: np.random.Generator) -> Ids:
        """Draw `n` ids of `[low, high)`."""
        return rng.integers(low, high, n)

    def pick(self, n: int, ids: Ids, rng: np.random.Generator) -> Ids:
        """Draw `n` of the ids."""
        if not len(ids):
            raise ConfigurationError("none of the rows can be drawn")
        return ids[rng.integers(0, len(ids), n)]

    def judge(self, ids: Ids, low: int, high: int) -> Draw:
        """Return the ids with weights that are all 1."""
        return Draw(ids, ones(len(ids)), {"size": high - low})

    def update(self, ids: Ids, priorities: ArrayLike) -> None:
        """Do nothing, so that an algorithm with priorities runs unchanged."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the generator is the buffer's."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""
