"""Transports: how weights come from the learner to those that act with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError
from trieye.files.atomic import replacing
from trieye.files.checksum import ChecksumFile
from trieye.process.progress import say
from trieye.snapshot.arrays import map_tensors, write_tensors

Weights = Mapping[str, torch.Tensor]


class Transport(Protocol):
    """Takes weights in one process, and gives them out in others, where it is sent.

    A class of a project, `sync.transport=my_agent.ways:MyTransport`, is called with the config of the run, and what it
    makes can be pickled. It passes `trieye.testing.TransportContract`.
    """

    def publish(self, version: int, weights: Weights) -> Any:
        """Take weights, copied once however many fetch them; return a small handle, which is sent to those that do.

        Args:
            version: Their number.
            weights: Tensors by name; they may change when this has returned.
        """

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Return tensors, or arrays as `as_arrays` makes them, by name; they are read, and not changed.

        They hold until the next call. What is not there any more may be given as a `SupersededError`.
        """


class SupersededError(Exception):
    """Raised by `fetch` where newer weights have taken the place of those that a handle names.

    Attributes:
        version: Of the newer ones.
        weights: What `fetch` would return for them.
    """

    def __init__(self, version: int, weights: Mapping[str, Any]) -> None:
        super().__init__(f"the weights are gone, version {version} is in their place")
        self.version, self.weights = version, weights


class LocalTransport:
    """Within one process: a copy in its memory."""

    def publish(self, version: int, weights: Weights) -> Any:
        """Copy the weights; see `Transport`."""
        del version
        return {name: tensor.detach().clone() for name, tensor in weights.items()}

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Return the copy."""
        found: Mapping[str, Any] = handle
        return found


class CheckpointTransport:
    """Files in a directory that all of them see: whole or not there, and the version is in the name.

    Args:
        directory: Of the files.
        keep: How many of the newest stay, at least 2.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self._directory, self._keep = directory, keep

    def publish(self, version: int, weights: Weights) -> Any:
        """Write the weights; see `Transport`."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"version_{version:012d}.safetensors"
        with replacing(path) as scratch, ChecksumFile(scratch) as file:
            write_tensors(file, as_arrays(weights), {})
        older = [other for other in self.paths() if other < path]
        superseded = [other for other in self.paths() if other > path]  # of an attempt that was killed further on
        for other in (*older[: 1 - self._keep], *superseded):
            other.unlink(missing_ok=True)
        return str(path)

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Read the weights; those that have taken their place, or the newest whole ones before, if they are gone."""
        path = Path(handle)
        for found in [path, *(other for other in reversed(self.paths()) if other != path)]:
            try:
                return map_tensors(found)
            except FileNotFoundError:
                continue
            except SerializationError as error:
                say(f"{found} is passed over: {error}")
        raise CheckpointError(f"{handle} is gone, and {self._directory} holds no others that are whole")

    def paths(self) -> list[Path]:
        """Return the files, the oldest first."""
        return sorted(self._directory.glob("version_*.safetensors"))


def as_arrays(weights: Weights) -> dict[str, NDArray[Any]]:
    """Return weights as NumPy arrays, which travel many times faster than tensors; bfloat16 as the bits that it has."""
    arrays = {}
    for name, tensor in weights.items():
        held = tensor.detach().cpu().contiguous()
        arrays[name] = (held.view(torch.int16) if held.dtype == torch.bfloat16 else held).numpy()
    return arrays


@torch.no_grad()
def load_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copy weights into the parameters and buffers of a module, in place.

    Args:
        module: What takes them.
        weights: Tensors or arrays by the names of its `state_dict()`.

    Raises:
        ConfigurationError: They are those of another module; nothing was changed.
    """
    own = module.state_dict()  # of the tensors themselves
    if own.keys() != weights.keys():
        name = next(iter(sorted(own.keys() ^ weights.keys())))
        where = "it has, and they have not" if name in own else "they have, and it has not"
        raise ConfigurationError(f"these are not the weights of a {type(module).__name__}: {name} is what {where}")
    for name, value in weights.items():
        if tuple(value.shape) != tuple(own[name].shape):
            raise ConfigurationError(
                f"these are not the weights of this {type(module).__name__}: {name} is {list(value.shape)}, and needed "
                f"are {list(own[name].shape)}"
            )
    for name, value in weights.items():
        _copy(value, own[name])


def _copy(value: Any, to: torch.Tensor) -> None:
    if isinstance(value, torch.Tensor):
        to.copy_(value)
        return
    target = to.view(torch.int16) if to.dtype == torch.bfloat16 and value.dtype == np.int16 else to
    if target.device.type == "cpu":
        np.copyto(target.numpy(), value)  # what Ray hands out is read only, which torch does not like
    else:
        target.copy_(torch.from_numpy(value.copy()))
