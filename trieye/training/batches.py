"""Minibatches from a replay buffer as tensors on the device that learns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from trieye.replay.buffer import ReplayBuffer
from trieye.training.rows import Rows


class Experience(ReplayBuffer):
    """A replay buffer that takes what was collected."""

    def extend(
        self,
        batch: Mapping[str, ArrayLike] | Rows,
        env_ids: ArrayLike | None = None,
        *,
        versions: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """Copy rows in and return their ids; of `Rows` the valid ones, each as of its environment."""
        if not isinstance(batch, Rows):
            return super().extend(self.as_own(batch), env_ids, versions=versions)
        rows, env_ids = batch.transitions()
        return super().extend(rows, env_ids, versions=versions) if len(env_ids) else np.zeros(0, np.int64)

    def as_own(self, rows: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """Return rows that are no `Rows` with the keys, shapes and types of an engine's; here they have them."""
        return rows

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set priorities of rows, as `ReplayBuffer` does; rows with the id -1 are not of this buffer."""
        given = np.asarray(ids)
        return super().update_priorities(given[given >= 0], np.asarray(priorities)[given >= 0])

    def minibatch(self, n: int, device: torch.device) -> "Minibatch":
        """Draw `n` rows as tensors on a device; page-locked memory is between where that is faster."""
        return minibatch_of(self.sample, n, device)


def minibatch_of(sample: Callable[..., Any], n: int, device: torch.device) -> "Minibatch":
    """Return what a replay's `sample` draws, as tensors on a device."""
    if device.type != "cpu":
        drawn = sample(n, device=str(device))
        return Minibatch(dict(drawn.data), drawn.ids, drawn.weights)
    drawn = sample(n)
    data = {name: torch.from_numpy(array) for name, array in drawn.data.items()}
    return Minibatch(data, drawn.ids, torch.from_numpy(drawn.weights))


@dataclass(slots=True)
class Minibatch:
    """Rows to learn from, tensors `[n, ...]` by name, or `[n, length, ...]` of sequences.

    There are `obs`, `action`, `reward`, `next_obs`, `terminated`, `truncated`, the extras of the policy, and
    `discount`: the factor of the value of `next_obs`, 0 where the episode terminated. With `replay.n_step` the reward
    is the sum of so many discounted ones, and `next_obs` and `discount` are those after the last of them.

    Attributes:
        data: The tensors by their keys in the buffer; `batch["obs"]` is a dict where the space is one.
        ids: int64 `[n]`, for `replay.update_priorities`.
        weights: float32 `[n]`, importance weights; all 1 without priorities.
    """

    data: dict[str, torch.Tensor]
    ids: NDArray[np.int64]
    weights: torch.Tensor

    def __getitem__(self, name: str) -> Any:
        if name in self.data:
            return self.data[name]
        found = {key.partition("/")[2]: item for key, item in self.data.items() if key.startswith(f"{name}/")}
        if not found:
            raise KeyError(f"{name}; there are {', '.join(self.data)}")
        return found

    def __len__(self) -> int:
        return len(self.ids)
