"""Sampling: batches from the replay buffer, and from rows that others collected."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from trieye.config.replay import ReplayConfig
from trieye.exceptions import ConfigurationError, NonFiniteError
from trieye.replay.exchange import import_minari, import_npz, import_parquet, import_sb3
from trieye.training.batches import Experience, Minibatch
from trieye.training.config import TrainingConfig, own_class
from trieye.training.finite import OnNonfinite
from trieye.training.spaces import Spaces, as_column

_FORMATS = ".npz, .parquet, minari:ID, or sb3:FILE"


class Sampling(Protocol):
    """Makes the batches of an engine.

    A class of a project, `sample.kind=my_agent.sampling:MyStrategy`, is called with the config of the run and with the
    rows of `data`, an `Experience`, or None without `data`. It passes `trieye.testing.SamplingContract`.
    """

    def minibatch(self, replay: Experience, n: int, device: torch.device, *, updates: int) -> Minibatch:
        """Return a batch.

        Args:
            replay: The replay buffer.
            n: Rows.
            device: Where to.
            updates: Updates made so far.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return its state, besides that of the replay buffer."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called."""


class FromReplay:
    """All rows are from the replay buffer, as its kind draws them."""

    def minibatch(
        self,
        replay: Experience,
        n: int,
        device: torch.device,
        *,
        updates: int,  # noqa: ARG002 - the same at any time
    ) -> Minibatch:
        """Return a batch; see `Sampling`."""
        return replay.minibatch(n, device)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the replay buffer saves itself."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing."""


class FromData:
    """A part of the rows of some batches is from data; the column `is_data` tells which.

    Rows from data have the id -1, which `Experience.update_priorities` leaves out.

    Args:
        data: The rows.
        ratio: Part of each batch from data.
        until_update: Only batches before this many updates have such rows; None: all.
        name: Of the data; a saved state of other data is left alone.
    """

    def __init__(self, data: Experience, ratio: float, until_update: int | None = None, name: str = "") -> None:
        self.data, self._ratio, self._until, self._name = data, ratio, until_update, name

    def minibatch(self, replay: Experience, n: int, device: torch.device, *, updates: int) -> Minibatch:
        """Return a batch; see `Sampling`."""
        from_data = round(n * self._ratio) if self._until is None or updates < self._until else 0
        if not from_data:
            return _marked(replay.minibatch(n, device), value=False)
        given = _marked(self.data.minibatch(from_data, device), value=True)
        given.ids = np.full(from_data, -1)
        if from_data == n:
            return given
        own = _marked(replay.minibatch(n - from_data, device), value=False)
        joined = {key: torch.cat((own.data[key], given.data[key])) for key in own.data if key in given.data}
        return Minibatch(joined, np.concatenate((own.ids, given.ids)), torch.cat((own.weights, given.weights)))

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, which are saved once, and how far their draws are."""
        return {"data": self.data, "name": self._name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the draws."""
        if "data" in state and state.get("name", self._name) == self._name:  # else the run had none, or others
            self.data.load_state_dict(state["data"])


def _marked(batch: Minibatch, *, value: bool) -> Minibatch:
    batch.data["is_data"] = torch.full((len(batch),), value, device=batch.weights.device)
    return batch


def make_sampling(config: TrainingConfig, spaces: Spaces, replay: ReplayConfig) -> Sampling:
    """Make what `config.sample` describes.

    Args:
        config: Of the run.
        spaces: Of its environment.
        replay: Of its replay buffer, with the discount of the agent.

    Raises:
        ConfigurationError: The data cannot be read, or a class of one's own is not there.
    """
    chosen, given = config.sample, None
    if chosen.kind == "default":
        return FromReplay()
    if config.data is not None:
        uniform, on_nonfinite = replay.model_copy(update={"kind": "uniform"}), OnNonfinite(config.loop.on_nonfinite)
        given = data_of(config.data, spaces, uniform, seed=config.seed + 1, on_nonfinite=on_nonfinite)
    if chosen.kind not in {"mix", "warmup"}:
        made: Sampling = own_class("sample.kind", chosen.kind)(config, given)
        return made
    assert given is not None  # noqa: S101 - the config wants `data` for both
    ratio, until = (chosen.data_ratio, None) if chosen.kind == "mix" else (1.0, chosen.warmup_updates)
    return FromData(given, ratio, until, config.data or "")


class _Foreign(Experience):
    """Takes rows as others name and shape them."""

    spaces: Spaces

    def as_own(self, rows: Mapping[str, ArrayLike]) -> Mapping[str, ArrayLike]:
        """Return the rows as an engine keeps its own."""
        own = {name: np.asarray(array) for name, array in rows.items()}
        inner, action = getattr(self.spaces.observation, "spaces", {}), self.spaces.action
        for key in inner:  # others keep the parts of a dict under their keys alone
            for given, name in ((key, f"obs/{key}"), (f"next_{key}", f"next_obs/{key}")):
                if name not in own and given in own:
                    own[name] = own.pop(given)
        missing = [name for name in ([f"obs/{key}" for key in inner] or ["obs"]) if name not in own]
        if missing:
            raise ConfigurationError(f"the rows have no {missing[0]}; they have {', '.join(own)}")
        observed = {name: array for name, array in own.items() if name.removeprefix("next_").partition("/")[0] == "obs"}
        own |= {name: as_column(array) for name, array in observed.items()}
        dtype = np.int64 if action.dtype.kind in "iu" else np.float32
        own["action"] = own["action"].reshape(-1, *action.shape).astype(dtype, copy=False)
        own["reward"] = own["reward"].reshape(-1).astype(np.float32, copy=False)
        return own


def data_of(
    name: str, spaces: Spaces, replay: ReplayConfig, *, seed: int, on_nonfinite: OnNonfinite | None = None
) -> Experience:
    """Return a buffer with rows that others collected, with the keys, shapes and types of an engine's own.

    Args:
        name: A file that `export_npz` or `export_parquet` wrote, `minari:ID` for a dataset of Minari, which is
            downloaded if need be, or `sb3:FILE` for a replay buffer of stable-baselines3.
        spaces: Of the environment.
        replay: What kind of buffer; its capacity must hold all rows. Rows of others have neither versions nor a bound
            on their uses.
        seed: Of its draws.
        on_nonfinite: Decides about rows with NaN or infinity; None refuses the data.

    Raises:
        ConfigurationError: There is no such data, there are more rows than the buffer holds, or one is not finite.
    """
    unbounded = replay.model_copy(update={"max_staleness": None, "max_reuse": None})
    buffer = _Foreign.from_config(unbounded, seed=seed)
    buffer.spaces, buffer.on_nonfinite = spaces, on_nonfinite or OnNonfinite()
    kind, colon, rest = name.partition(":")
    try:
        if colon and kind == "minari":
            count = import_minari(buffer, rest, download=True)
        elif colon and kind == "sb3":
            count = import_sb3(buffer, rest, allow_pickle=True)  # of which it makes arrays only
        elif name.endswith(".npz"):
            count = import_npz(buffer, Path(name))
        elif name.endswith(".parquet"):
            count = import_parquet(buffer, Path(name))
        else:
            raise ConfigurationError(f"data={name} is of no known form; possible are {_FORMATS}")
    except OSError as error:
        raise ConfigurationError(f"data={name} cannot be read: {error}") from error
    except NonFiniteError as error:
        raise ConfigurationError(f"data={name}: {error}") from error
    if count > len(buffer):
        raise ConfigurationError(f"data={name} has {count} rows, and replay.capacity={replay.capacity} holds fewer")
    if not count:
        raise ConfigurationError(f"data={name} has no rows")
    return buffer
