"""Rows: the steps that an engine has just collected, `[steps, environments, ...]`, and minibatches of them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.training.policy import Obs, map_state
from trieye.training.spaces import nested

Array = NDArray[Any]


@dataclass(eq=False, slots=True)
class Rows:
    """Steps of several environments.

    After an episode ends, the next step resets its environment instead of stepping it (Gymnasium's next-step
    autoreset). The row of a reset is not valid: its action was not used. The observation after a row is therefore
    always the observation of the next row, also at a truncation, and the same holds for its value.

    Columns are read by name, as in a dict: `obs`, `action`, `reward`, `terminated`, `truncated` and the extras of the
    policy are tensors `[t, n, ...]` on `device`; `obs` is a dict if the space is a `Dict`.

    Attributes:
        arrays: All columns except extras as NumPy arrays; parts of dict observations as `obs/<key>`.
        last_obs: `[n, ...]`, the observation after the last row, with the keys of `arrays`.
        valid: bool `[t, n]`, True for steps, False for resets.
        extras: `Act.extras` of the policy, `[t, n, ...]`.
        state: State of a recurrent policy before the first row.
        device: Device of the tensors returned by name.
        last_state: State of a recurrent policy after the last row, to use with `after`. After a row that is not valid,
            here and between rows, the state is `initial_state`.
        streams: int64 `[n]`, ids of the environments in a replay; None = their indices. If an episode was cut before
            the first row, its environment has a new id.
        stacked: The columns of `arrays` that are stacks of frames, the newest last.
    """

    arrays: dict[str, Array]
    last_obs: dict[str, Array]
    valid: Array
    extras: dict[str, torch.Tensor] = field(default_factory=dict)
    state: Any = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    last_state: Any = None
    streams: Array | None = None
    stacked: Collection[str] = ()

    def __getitem__(self, name: str) -> Any:
        if name in self.extras:
            return self.extras[name]
        if name == "obs" and "obs" not in self.arrays:
            return nested({key: self._tensor(array) for key, array in self.arrays.items() if key.startswith("obs/")})
        return self._tensor(self.arrays[name])

    @classmethod
    def nothing(cls, num_envs: int, device: torch.device) -> Self:
        """Return an instance without rows."""
        return cls({}, {}, np.zeros((0, num_envs), bool), device=device)

    def keys(self) -> list[str]:
        """Return the names of the columns."""
        return ["obs", *(name for name in self.arrays if name.partition("/")[0] != "obs"), *self.extras]

    def __len__(self) -> int:
        """Return the number of valid rows."""
        return int(np.count_nonzero(self.valid))

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    @property
    def after(self) -> Obs:
        """The observations after the last row, `[n, ...]`."""
        return nested({name: self._tensor(array) for name, array in self.last_obs.items()})

    def transitions(self) -> tuple[dict[str, Array], NDArray[np.int64]]:
        """Return the valid rows for a replay buffer, `[rows, ...]` by key, and the environment id of each.

        Observations have the keys `obs` and `next_obs`, or `obs/<key>` and `next_obs/<key>`. Of stacked frames, rows
        have the newest one; the replay stacks them again.
        """
        is_selected = self.valid.reshape(-1)
        arrays = {name: array[:, :, -1] if name in self.stacked else array for name, array in self.arrays.items()}
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
        for name, last_obs in self.last_obs.items():
            newest = last_obs[:, -1] if name in self.stacked else last_obs
            next_obs = np.concatenate((arrays[name][1:], newest[None]))
            flat[f"next_{name}"] = next_obs.reshape(-1, *next_obs.shape[2:])
        for name, tensor in self.extras.items():
            flat[name] = tensor.reshape(-1, *tensor.shape[2:]).cpu().numpy()
        env_ids = np.empty(self.valid.shape, np.int64)
        env_ids[:] = np.arange(self.valid.shape[1]) if self.streams is None else self.streams
        if is_selected.all():
            return flat, env_ids.reshape(-1)
        return {name: array[is_selected] for name, array in flat.items()}, env_ids.reshape(-1)[is_selected]

    def sequences(self) -> Self:
        """Return one row per environment, `[1, n, t, ...]`, so that minibatches contain whole rollouts.

        The extras include `valid` and the `state` before the first row, `[1, n, ...]`.
        """
        extras = {name: tensor.transpose(0, 1)[None] for name, tensor in self.extras.items()}
        extras["valid"] = torch.from_numpy(self.valid.T[None]).to(self.device)
        extras |= {name: item[None] for name, item in named_tensors("state", self.state).items()}
        arrays = {name: array.swapaxes(0, 1)[None] for name, array in self.arrays.items()}
        return type(self)(arrays, {}, np.ones((1, self.valid.shape[1]), bool), extras, device=self.device)

    def as_payload(self) -> dict[str, Array]:
        """Return columns and states as NumPy arrays by name, for transport; `of_payloads` is the inverse."""
        payload = {f"rows/{name}": array for name, array in self.arrays.items()} | {"valid": self.valid}
        payload |= {f"last/{name}": array for name, array in self.last_obs.items()}
        payload |= {f"extras/{name}": tensor.cpu().numpy() for name, tensor in self.extras.items()}
        for name, state in (("state", self.state), ("last_state", self.last_state)):
            payload |= {key: tensor.cpu().numpy() for key, tensor in named_tensors(name, state).items()}
        return payload

    @classmethod
    def of_payloads(cls, payloads: Sequence[Mapping[str, Array]], device: torch.device) -> Self:
        """Return the rows of several fragments of equal length, concatenated along the environment axis."""

        def joined(part: str, axis: int) -> dict[str, Array]:
            names = [name for name in payloads[0] if name.startswith(part)]
            return {
                name.removeprefix(part): np.concatenate([payload[name] for payload in payloads], axis) for name in names
            }

        def state(part: str) -> Any:
            tensors = {name: torch.from_numpy(array).to(device) for name, array in joined(part, 0).items()}
            return tensors.get("", {name.removeprefix("/"): item for name, item in tensors.items()} or None)

        extras = {name: torch.from_numpy(array).to(device) for name, array in joined("extras/", 1).items()}
        valid = np.concatenate([payload["valid"] for payload in payloads], 1)
        return cls(joined("rows/", 1), joined("last/", 0), valid, extras, state("state"), device, state("last_state"))

    def minibatches(
        self, size: int, *, epochs: int = 1, generator: torch.Generator | None = None, **columns: torch.Tensor
    ) -> Iterator[dict[str, Any]]:
        """Yield all valid rows in random order, in batches of nearly equal size, `epochs` times.

        An epoch has `round(steps * environments / size)` batches, at least one, none of them empty. Their number does
        not depend on the number of resets, which only make batches smaller.

        Args:
            size: Rows per batch; exact if it divides the number of rows and all rows are valid.
            epochs: Number of passes over the rows.
            generator: Generator of the order; None = torch's global CPU generator.
            columns: Additional columns `[t, n, ...]`, such as advantages.

        Raises:
            ConfigurationError: `size` is below 1, or the shape of a column does not match.
        """
        if size < 1:
            raise ConfigurationError(f"minibatches({size}): size must be at least 1")
        shape = self.valid.shape
        for name, column in columns.items():
            if tuple(column.shape[:2]) != shape:
                raise ConfigurationError(
                    f"minibatches(): column {name} has shape {[*column.shape]}; the rows have {[*shape]}"
                )
        if not len(self):  # the reset of a single environment
            return
        row_indices = torch.from_numpy(np.flatnonzero(self.valid))
        is_whole = len(row_indices) == self.valid.size

        def flatten(column: torch.Tensor) -> torch.Tensor:
            flat_column = column.reshape(-1, *column.shape[2:])
            return flat_column if is_whole else flat_column[row_indices.to(column.device)]

        flat = {name: map_state(value, flatten) for name, value in {**self, **columns}.items()}
        num_batches = min(max(round(self.valid.size / size), 1), len(row_indices))
        for _ in range(epochs):
            order = torch.randperm(
                len(row_indices), generator=generator, device=None if generator is None else generator.device
            )
            for picked_indices in order.tensor_split(num_batches):
                yield {name: _pick(value, picked_indices) for name, value in flat.items()}


def named_tensors(name: str, state: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a policy state as `name`, or `name/key` for each key of a dict."""
    if isinstance(state, dict):
        return {f"{name}/{key}": item for key, item in state.items()}
    return {} if state is None else {name: state}


def _pick(value: Any, picked: torch.Tensor) -> Any:
    return {key: item[picked] for key, item in value.items()} if isinstance(value, dict) else value[picked]
