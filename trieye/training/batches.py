"""Minibatches from a replay buffer, as tensors on the learner's device."""

from collections.abc import Callable, Iterator, Mapping
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
        on_nonfinite: Handles rows and priorities that are NaN or infinite; the buffer never stores them.
    """

    on_nonfinite = OnNonfinite()

    def extend(
        self,
        batch: Mapping[str, ArrayLike] | Rows,
        env_ids: ArrayLike | None = None,
        *,
        versions: ArrayLike | None = None,
    ) -> NDArray[np.int64]:
        """Copy rows into the buffer and return their ids; of `Rows`, the valid rows with their environments' ids.

        Raises:
            NonFiniteError: A row has NaN or infinity, and `loop.on_nonfinite` is `stop`. Other modes omit the row.
        """
        rows: Mapping[str, ArrayLike]
        if isinstance(batch, Rows):
            rows, env_ids = batch.transitions()
            if not len(env_ids):
                return np.zeros(0, np.int64)
        else:
            rows = self.as_engine_rows(batch)
        ids = []
        for part_rows, part_env_ids, part_versions, env_id in finite_parts(rows, env_ids, versions, self.on_nonfinite):
            ids.append(super().extend(part_rows, part_env_ids, versions=part_versions))
            if env_id is not None:
                self.interrupt(env_id, lost_rows=True)
        return np.concatenate(ids) if len(ids) > 1 else ids[0]

    def as_engine_rows(self, rows: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """Return rows that are not `Rows` with the keys, shapes and dtypes of an engine's rows; here unchanged."""
        return rows

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> int:
        """Set priorities of rows, as `ReplayBuffer` does; the id -1 marks rows from elsewhere, which are ignored.

        Raises:
            NonFiniteError: A priority is NaN or infinite, and `loop.on_nonfinite` is `stop`. Other modes keep the old
                priority.
        """
        return super().update_priorities(*valid_priorities(ids, priorities, self.on_nonfinite))

    def minibatch(self, n: int, device: torch.device) -> "Minibatch":
        """Sample `n` rows as tensors on a device, through page-locked memory where that is faster."""
        return minibatch_of(self.sample, n, device)


def finite_parts(
    rows: Mapping[str, ArrayLike],
    env_ids: ArrayLike | None,
    versions: ArrayLike | None,
    on_nonfinite: OnNonfinite,
) -> Iterator[tuple[Mapping[str, ArrayLike], ArrayLike | None, ArrayLike | None, int | None]]:
    """Yield parts of rows `[n, ...]` between non-finite rows, which are omitted.

    Yields:
        Consecutive finite rows, possibly none, their `env_ids` and `versions`, and the environment of the omitted row
        after them; None after the last part.

    Raises:
        NonFiniteError: A row is not finite, and `loop.on_nonfinite` is `stop`.
    """
    fault = refused_rows(rows)
    if fault is None:
        yield rows, env_ids, versions, None
        return
    name, is_bad = fault
    ends, envs = np.flatnonzero(is_bad), np.zeros(len(is_bad), np.int64) if env_ids is None else np.asarray(env_ids)
    value = first_nonfinite(np.asarray(rows[name])[ends])
    message = f"{len(ends)} of {len(is_bad)} rows for the replay have {value:g} in {name!r}, the first from "
    message += f"environment {envs[ends[0]]} {on_nonfinite.where()}"
    on_nonfinite.handle("rows", message.rstrip(), "these rows are omitted", len(ends))
    for start, end in zip([0, *ends + 1], [*ends, len(is_bad)], strict=True):
        part_rows = {name: np.asarray(array)[start:end] for name, array in rows.items()}
        part_env_ids, part_versions = (
            None if each is None else np.asarray(each)[start:end] for each in (env_ids, versions)
        )
        yield part_rows, part_env_ids, part_versions, int(envs[end]) if end < len(is_bad) else None


def valid_priorities(ids: ArrayLike, priorities: ArrayLike, on_nonfinite: OnNonfinite) -> tuple[Array, Array]:
    """Return the ids that belong to this replay, with their finite priorities.

    Raises:
        NonFiniteError: A priority is not finite, and `loop.on_nonfinite` is `stop`.
    """
    row_ids, values = paired(ids, priorities)
    is_selected = row_ids >= 0
    if not np.isfinite(values).all():
        bad = ~np.isfinite(values)
        message = f"{np.count_nonzero(bad)} of {len(bad)} priorities are not finite, the first {values[bad][0]:g}, "
        message += f"{on_nonfinite.where()}; train_step() passed them to replay.update_priorities()"
        on_nonfinite.handle("priorities", message, "these rows keep their old priorities", int(np.count_nonzero(bad)))
        is_selected &= ~bad
    return row_ids[is_selected], values[is_selected]


def minibatch_of(sample: Callable[..., Any], n: int, device: torch.device) -> "Minibatch":
    """Return the result of a replay's `sample` as tensors on a device."""
    if device.type != "cpu":
        batch = sample(n, device=str(device))
        return Minibatch(dict(batch.data), batch.ids, batch.weights)
    batch = sample(n)
    data = {name: torch.from_numpy(array) for name, array in batch.data.items()}
    return Minibatch(data, batch.ids, torch.from_numpy(batch.weights))


class Minibatch:
    """Rows to learn from; their columns are attributes, tensors `[n, ...]`, or `[n, length, ...]` for sequences.

    A subclass declares further columns, such as extras of the policy, for type checkers:
    `class PPOBatch(Minibatch): log_prob: torch.Tensor`. `batch["log_prob"]` reads any column.

    Attributes:
        data: The columns by name; parts of dict observations as `obs/<key>`, or as a dict.
        obs: Observations; a dict if the space is a `Dict`.
        action: The chosen actions.
        reward: float32; the discounted sum over `replay.n_step` steps.
        next_obs: The observations after the row, or after the last of `replay.n_step`; from a replay buffer only.
        terminated: Whether the episode terminated.
        truncated: Whether the episode was truncated.
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

    if not TYPE_CHECKING:  # otherwise type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            try:
                return self[name]
            except KeyError as error:
                raise AttributeError(f"{type(self).__name__} has {error.args[0]}") from None

    def __getitem__(self, name: str) -> Any:
        data = vars(self).get("data", {})  # copy() calls this before data exists
        if name in data:
            return data[name]
        parts = {key.partition("/")[2]: item for key, item in data.items() if key.startswith(f"{name}/")}
        if not parts:
            raise KeyError(f"no column {name!r}{did_you_mean(name, data)} (columns: {', '.join(data)})")
        return parts

    def __len__(self) -> int:
        return len(self.action)
