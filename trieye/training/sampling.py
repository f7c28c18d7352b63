"""Sampling: draws batches from the replay buffer and from external data."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import ArrayLike

from trieye.config.base import did_you_mean
from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError, NonFiniteError
from trieye.files.checksum import sums_of
from trieye.process.progress import say
from trieye.replay.exchange import import_minari, import_npz, import_parquet, import_sb3
from trieye.snapshot.nodes import StateParts
from trieye.training.batches import Experience, Minibatch
from trieye.training.config import TrainingConfig, project_class
from trieye.training.finite import OnNonfinite
from trieye.training.spaces import Spaces, as_column, stacks_in

_FORMATS = ".npz, .parquet, minari:ID, or sb3:FILE"


def replay_config(config: TrainingConfig, spaces: Spaces) -> ReplayConfig:
    """Return the config of the replay buffer: the agent's discount, and single frames with `env.frame_stack`.

    A row of four 84x84 frames takes 7 kB instead of 56 kB.
    """
    replay = config.replay.model_copy(update={"gamma": config.agent.gamma})
    stacks = stacks_in(spaces.observation, config.env.frame_stack)
    options = {"frame_stack": stacks, "padding": "reset", "dedup_next": True}  # the padding of the environment
    return replay.model_copy(update=options) if stacks else replay


class Sampling(Protocol):
    """Draws the batches of an engine.

    `sample.kind=my_agent.sampling:MyStrategy` selects a class of the project. It is called with the config of the run
    and the rows of `data`, an `Experience`, or None without `data`. Test it with `trieye.testing.SamplingContract`.
    """

    def minibatch(self, replay: Experience, n: int, device: torch.device, *, updates: int) -> Minibatch:
        """Return a batch.

        Args:
            replay: The replay buffer.
            n: Number of rows.
            device: Device of the tensors.
            updates: Updates made so far.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the replay buffer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


class BufferSampling:
    """Draws rows from the replay buffer, and with `data` a part of each batch from external rows.

    Rows from data have the id -1, which `Experience.update_priorities` ignores.

    Args:
        data: The external rows; None draws all rows from the replay.
        ratio: Fraction of each batch drawn from data, at least one row.
        until_update: Number of updates after which all rows come from the replay; None: no limit.
    """

    def __init__(self, data: Experience | None = None, ratio: float = 0.0, until_update: int | None = None) -> None:
        self.data, self._ratio, self._until_update = data, ratio, until_update

    def minibatch(self, replay: Experience, n: int, device: torch.device, *, updates: int) -> Minibatch:
        """Return a batch; see `Sampling`."""
        if self.data is None or (self._until_update is not None and updates >= self._until_update):
            return replay.minibatch(n, device)
        from_data = max(1, round(n * self._ratio))
        external = self.data.minibatch(from_data, device)
        external.ids = np.full(from_data, -1)
        if from_data == n:
            return external
        batch = replay.minibatch(n - from_data, device)
        joined_data = {
            key: torch.cat((batch.data[key], external.data[key])) for key in batch.data if key in external.data
        }
        return Minibatch(
            joined_data, np.concatenate((batch.ids, external.ids)), torch.cat((batch.weights, external.weights))
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the data buffer, whose rows are stored once, with the state of its draws; empty without data."""
        return {} if self.data is None else {"data": self.data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the draws, unless either sampling is without data."""
        if self.data is not None and "data" in state:
            self.data.load_state_dict(state["data"])


def make_sampling(config: TrainingConfig, spaces: Spaces, replay: ReplayConfig) -> Sampling:
    """Create the sampling strategy that `config.sample` selects.

    Args:
        config: Config of the run.
        spaces: Spaces of its environment.
        replay: Config of its replay buffer, with the discount of the agent.

    Raises:
        ConfigurationError: The data cannot be read, or a class of the project does not exist.
    """
    sample_config, data = config.sample, None
    if sample_config.kind == "default":
        return BufferSampling()
    if config.data is not None:
        data = data_of(
            config.data,
            spaces,
            replay.model_copy(update={"kind": "uniform"}),
            seed=config.seed + 1,
            on_nonfinite=OnNonfinite(config.loop.on_nonfinite),
            clip_rewards=config.env.clip_rewards,
        )
    if sample_config.kind not in {"mix", "warmup"}:
        strategy: Sampling = project_class("sample.kind", sample_config.kind)(config, data)
        return strategy
    assert data is not None  # noqa: S101 - the config requires `data` for both kinds
    ratio, until_update = (
        (sample_config.data_ratio, None) if sample_config.kind == "mix" else (1.0, sample_config.warmup_updates)
    )
    return BufferSampling(data, ratio, until_update)


class _WholeStacksError(Exception):
    """Raised if external rows contain stacks instead of single frames; they may lack the order to stack frames."""


class _ExternalExperience(Experience):
    """Accepts rows with the names and shapes of other libraries; ignores the saved state of other data."""

    name: str
    spaces: Spaces
    stacks: Mapping[str, int]
    clip_rewards: bool
    crc32: int | None
    """CRC-32 of the file; None for data that are not a file."""

    def state_parts(self, known_names: Collection[str]) -> StateParts:
        """Return a snapshot with the name and the checksum of the data; see `ReplayBuffer`."""
        parts = super().state_parts(known_names)
        return replace(parts, state={**parts.state, "data": self.name, "crc32": self.crc32})

    def load_state_dict(self, state: Any, *, lazy: bool = False) -> None:
        """Restore the state of the draws of the same data; report a file that was replaced under its name."""
        if state.state.get("data") != self.name:
            return
        if state.state["crc32"] == self.crc32:
            super().load_state_dict(state, lazy=lazy)
        else:
            say(f"data={self.name} has changed since the checkpoint; its new rows are used")

    def as_engine_rows(self, rows: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """Return the rows with the keys, shapes and dtypes of an engine's rows."""
        columns = {name: np.asarray(array) for name, array in rows.items()}
        inner, action = getattr(self.spaces.observation, "spaces", {}), self.spaces.action
        for key in inner:  # other libraries store the parts of a dict under their bare keys
            for bare, name in ((key, f"obs/{key}"), (f"next_{key}", f"next_obs/{key}")):
                if name not in columns and bare in columns:
                    columns[name] = columns.pop(bare)
        spaces = {f"obs/{key}": part for key, part in inner.items()} or {"obs": self.spaces.observation}
        spaces |= {f"next_{name}": space for name, space in spaces.items()}
        if missing_columns := [name for name in (*spaces, "action", "reward") if name not in columns]:
            raise ConfigurationError(f"no column {missing_columns[0]}; columns: {', '.join(columns)}")
        for name, space in spaces.items():
            columns[name] = as_column(columns[name])
            self._check_obs(name, columns[name].shape[1:], space.shape)
        if (size := math.prod(columns["action"].shape[1:])) != math.prod(action.shape):
            raise ConfigurationError(f"an action has {size} numbers, and its space the shape {list(action.shape)}")
        self._check_transitions(columns)
        dtype = np.int64 if action.dtype.kind in "iu" else np.float32
        columns["action"] = columns["action"].reshape(-1, *action.shape).astype(dtype, copy=False)
        reward = columns["reward"].reshape(-1).astype(np.float32, copy=False)
        columns["reward"] = np.sign(reward) if self.clip_rewards else reward
        return columns

    def _check_transitions(self, rows: Mapping[str, Any]) -> None:
        if "discount" in rows:
            raise ConfigurationError("a column discount would replace agent.gamma and terminations; rename the column")
        if not rows.keys() & {"terminated", "done"}:
            raise ConfigurationError(
                "no column terminated, without which values continue after the end of an episode"
                f"{did_you_mean('terminated', rows)}; columns: {', '.join(rows)}. Rename the column, such as terminals "
                "or dones, to terminated, and timeouts to truncated"
            )
        if isinstance(space := self.spaces.action, Discrete):
            actions = rows["action"].reshape(-1)
            wrong = actions[(actions != np.floor(actions)) | (actions < 0) | (actions >= space.n)]
            if len(wrong):
                raise ConfigurationError(
                    f"{len(wrong)} of {len(actions)} actions are not in the action space, such as {wrong[0]}; it has "
                    f"the integers 0 to {space.n - 1}"
                )

    def _check_obs(self, column: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if column.removeprefix("next_") in self.stacks:
            if shape == expected:
                raise _WholeStacksError
            expected = expected[1:]
        if shape != expected:
            hint = "; discrete observations must be one-hot vectors" if shape in {(), (1,)} else ""
            raise ConfigurationError(
                f"{column} has the shape {list(shape)}, and in the environment {list(expected)}{hint}"
            )


def data_of(
    name: str,
    spaces: Spaces,
    replay: ReplayConfig,
    *,
    seed: int,
    on_nonfinite: OnNonfinite | None = None,
    clip_rewards: bool = False,
) -> Experience:
    """Return a buffer with external rows, with the keys, shapes and dtypes of an engine's rows.

    Args:
        name: A file written by `export_npz` or `export_parquet`; `minari:ID` for a Minari dataset, which is downloaded
            if necessary; or `sb3:FILE` for a replay buffer of stable-baselines3.
        spaces: Spaces of the environment.
        replay: Config of the buffer; its capacity must hold all rows. `max_staleness` and `max_reuse` are ignored.
        seed: Seed of its draws.
        on_nonfinite: Handles rows with NaN or infinity; None rejects the data.
        clip_rewards: Replace rewards by their signs.

    Raises:
        ConfigurationError: The data do not exist, do not fit the spaces, exceed the capacity, or are not finite.
    """
    unbounded_config = replay.model_copy(update={"max_staleness": None, "max_reuse": None})
    buffer = _ExternalExperience.from_config(unbounded_config, seed=seed)
    buffer.name, buffer.spaces, buffer.stacks = name, spaces, replay.frame_stack
    buffer.clip_rewards, buffer.on_nonfinite = clip_rewards, on_nonfinite or OnNonfinite()
    try:
        count = _import(buffer, name)
        path = Path(name.removeprefix("sb3:")).resolve()
        buffer.crc32 = sums_of(path)[1] if path.is_file() else None
    except _WholeStacksError:
        unstacked_config = replay.model_copy(update={"frame_stack": {}, "dedup_next": False})
        return data_of(name, spaces, unstacked_config, seed=seed, on_nonfinite=on_nonfinite, clip_rewards=clip_rewards)
    except OSError as error:
        raise ConfigurationError(f"data={name} cannot be read: {error}") from error
    except (ConfigurationError, NonFiniteError) as error:
        raise ConfigurationError(f"data={name}: {error}") from error
    if count > len(buffer):
        raise ConfigurationError(f"data={name} has {count} rows, more than replay.capacity={replay.capacity}; raise it")
    if not count:
        raise ConfigurationError(f"data={name} has no rows")
    return buffer


def _import(buffer: _ExternalExperience, name: str) -> int:
    if name.startswith("minari:"):
        return import_minari(buffer, name.removeprefix("minari:"), download=True)
    if name.startswith("sb3:"):
        return import_sb3(
            buffer, name.removeprefix("sb3:"), allow_pickle=True
        )  # the import restricts the pickle to arrays
    if name.endswith(".npz"):
        return import_npz(buffer, Path(name))
    if name.endswith(".parquet"):
        return import_parquet(buffer, Path(name))
    raise ConfigurationError(f"unknown format; choose from {_FORMATS}")
