"""Minibatches from a replay buffer as tensors on the device that learns."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from trieye.config.base import did_you_mean
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.samplers.base import paired
from trieye.training.finite import OnNonfinite, first_nonfinite, refused_rows
from trieye.training.policy import Obs
from trieye.training.rows import Array, Rows


class Experience(ReplayBuffer):
    """A replay buffer for collected rows.

    Attributes:
        on_nonfinite: Decides about rows and priorities that are NaN or infinite, which it never takes.
    """

    on_nonfinite = OnNonfinite()

    def extend(
        self,
        batch: Mapping[str, ArrayLike] | Rows,
        env_ids: ArrayLike | None = None,
        *,
        versions: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """Copy rows in and return their ids; of `Rows` the valid ones, each as of its environment.

        Raises:
            NonFiniteError: A row has NaN or infinity, and `loop.on_nonfinite` is `stop`; otherwise it is left out.
        """
        rows: Mapping[str, ArrayLike]
        if isinstance(batch, Rows):
            rows, env_ids = batch.transitions()
            if not len(env_ids):
                return np.zeros(0, np.int64)
        else:
            rows = self.as_own(batch)
        parts = finite_parts(rows, env_ids, self.on_nonfinite)
        if parts is None:
            return super().extend(rows, env_ids, versions=versions)
        ids = [np.zeros(0, np.int64)]
        for part, env_id in parts:
            if len(part):
                given = (None if each is None else np.asarray(each)[part] for each in (env_ids, versions))
                taken = {name: np.asarray(array)[part] for name, array in rows.items()}
                ids.append(super().extend(taken, next(given), versions=next(given)))
            self.interrupt(env_id)
        return np.concatenate(ids)

    def as_own(self, rows: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """Return rows that are no `Rows` with the keys, shapes and types of an engine's; here they have them."""
        return rows

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set priorities of rows, as `ReplayBuffer` does; rows with the id -1 are not of this buffer.

        Raises:
            NonFiniteError: A priority is NaN or infinite, and `loop.on_nonfinite` is `stop`; else the old one stays.
        """
        return super().update_priorities(*own_priorities(ids, priorities, self.on_nonfinite))

    def minibatch(self, n: int, device: torch.device) -> "Minibatch":
        """Draw `n` rows as tensors on a device; page-locked memory is between where that is faster."""
        return minibatch_of(self.sample, n, device)


def finite_parts(
    rows: Mapping[str, ArrayLike], env_ids: ArrayLike | None, on_nonfinite: OnNonfinite
) -> list[tuple[NDArray[np.intp], int]] | None:
    """Return the rows `[n, ...]` that a replay takes, or None if it takes all.

    Returns:
        Indices of consecutive finite rows, in parts, each with the environment whose episode does not continue
        after it.

    Raises:
        NonFiniteError: There are such rows, and the training stops for them.
    """
    found = refused_rows(rows)
    if found is None:
        return None
    name, bad = found
    ends, envs = np.flatnonzero(bad), np.zeros(len(bad), np.int64) if env_ids is None else np.asarray(env_ids)
    value = first_nonfinite(np.asarray(rows[name])[ends])
    told = f"{len(ends)} of {len(bad)} rows given to the replay have {value:g} in {name!r}, first that of "
    told += f"environment {envs[ends[0]]} {on_nonfinite.where()}"
    on_nonfinite.found("rows", told.rstrip(), "they are left out", len(ends))
    parts = np.split(np.arange(len(bad)), ends)
    kept = [parts[0], *(part[1:] for part in parts[1:])]
    return list(zip(kept, [*envs[ends].tolist(), int(envs[ends[-1]])], strict=True))


def own_priorities(ids: ArrayLike, priorities: ArrayLike, on_nonfinite: OnNonfinite) -> tuple[Array, Array]:
    """Return ids of rows of this replay and their finite priorities.

    Raises:
        NonFiniteError: There are such priorities, and the training stops for them.
    """
    given, values = paired(ids, priorities)
    kept = given >= 0
    if not np.isfinite(values).all():
        bad = ~np.isfinite(values)
        told = f"{np.count_nonzero(bad)} of {len(bad)} priorities are not finite, the first {values[bad][0]:g}, "
        told += f"{on_nonfinite.where()}; they are what train_step() gave to replay.update_priorities()"
        on_nonfinite.found("priorities", told, "these rows keep theirs", int(np.count_nonzero(bad)))
        kept &= ~bad
    return given[kept], values[kept]


def minibatch_of(sample: Callable[..., Any], n: int, device: torch.device) -> "Minibatch":
    """Return what a replay's `sample` draws, as tensors on a device."""
    if device.type != "cpu":
        drawn = sample(n, device=str(device))
        return Minibatch(dict(drawn.data), drawn.ids, drawn.weights)
    drawn = sample(n)
    data = {name: torch.from_numpy(array) for name, array in drawn.data.items()}
    return Minibatch(data, drawn.ids, torch.from_numpy(drawn.weights))


class Minibatch:
    """Rows to learn from: their columns are attributes, tensors `[n, ...]`, or `[n, length, ...]` of sequences.

    A subclass declares further columns, such as extras of the policy, so that type checkers know them:
    `class PPOBatch(Minibatch): log_prob: torch.Tensor`. `batch["log_prob"]` reads any column.

    Attributes:
        data: The columns by name, the parts of a dict of observations as `obs/<key>` or as a dict.
        obs: Observations, a dict where the space is one.
        action: The chosen actions.
        reward: float32; with `replay.n_step` the sum of so many discounted ones.
        next_obs: The observations after the row, or after the last of `replay.n_step`; from a replay buffer only.
        terminated: Whether the episode terminated.
        truncated: Whether it was cut.
        discount: Factor of the value of `next_obs`, 0 where the episode terminated; from a replay buffer only.
        ids: int64 `[n]`, for `replay.update_priorities`; from a replay buffer only.
        weights: float32 `[n]`, importance weights, all 1 without priorities; from a replay buffer only.
    """

    obs: Obs
    action: torch.Tensor
    reward: torch.Tensor
    next_obs: Obs
    terminated: torch.Tensor
    truncated: torch.Tensor
    discount: torch.Tensor
    ids: NDArray[np.int64]
    weights: torch.Tensor

    def __init__(
        self, data: dict[str, Any], ids: NDArray[np.int64] | None = None, weights: torch.Tensor | None = None
    ) -> None:
        self.data = data
        if ids is not None and weights is not None:
            self.ids, self.weights = ids, weights

    if not TYPE_CHECKING:  # else no attribute would be unknown to a type checker

        def __getattr__(self, name: str) -> Any:
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(f"{type(self).__name__} has no column {error.args[0]}") from None

    def __getitem__(self, name: str) -> Any:
        data = vars(self).get("data", {})  # a copy that is being made has none yet
        if name in data:
            return data[name]
        found = {key.partition("/")[2]: item for key, item in data.items() if key.startswith(f"{name}/")}
        if not found:
            raise KeyError(f"{name!r}{did_you_mean(name, data)} (columns: {', '.join(data)})")
        return found

    def __len__(self) -> int:
        return len(self.action)
