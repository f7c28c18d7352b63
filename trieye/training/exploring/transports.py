"""Transports: deliver weights from the learner to explorers."""

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
from trieye.snapshot.arrays import FORMATS, map_tensors, write_tensors

Weights = Mapping[str, torch.Tensor]

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_BITS = {torch.bfloat16: torch.int16, torch.complex64: torch.int64, **dict.fromkeys(_FLOAT8, torch.uint8)}
"""Integers of the same size for dtypes that NumPy or our files lack."""


class Transport(Protocol):
    """Publishes weights in the learner's process; copies of it fetch them in the explorers' processes.

    `sync.transport=my_agent.transports:MyTransport` selects a class of the project. It is called with the config of the
    run, and its instances must be picklable. Test it with `trieye.testing.TransportContract`.
    """

    def publish(self, version: int, weights: Weights) -> Any:
        """Store weights, copied once for all explorers, and return a small handle that is sent to them.

        Args:
            version: Version of the weights.
            weights: Tensors by name; the caller may change them after the return.
        """

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Return the weights by name, as tensors or as arrays of `as_arrays`; the caller only reads them.

        They remain valid until the next call. If the requested weights are gone, it may raise `SupersededError` with
        others.
        """


class SupersededError(Exception):
    """Raised by `fetch` if other weights, usually newer ones, have replaced the requested ones.

    Attributes:
        version: Version of the other weights.
        weights: The other weights, in the form that `fetch` returns.
    """

    def __init__(self, version: int, weights: Mapping[str, Any]) -> None:
        super().__init__(f"the weights are gone; version {version} replaced them")
        self.version, self.weights = version, weights


class LocalTransport:
    """Copies weights within one process."""

    def publish(self, version: int, weights: Weights) -> Any:
        """Copy the weights; see `Transport`."""
        del version
        return {name: tensor.detach().clone() for name, tensor in weights.items()}

    def fetch(self, handle: Weights) -> Weights:
        """Return the copy."""
        return handle


class CheckpointTransport:
    """Writes weights as files to a shared directory: each file is complete, and its name contains the version.

    Args:
        directory: Directory of the files.
        keep: Number of newest files to retain, at least one more than the assignments in flight of an explorer.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self._directory, self._num_kept = directory, keep

    def publish(self, version: int, weights: Weights) -> Any:
        """Write the weights to a file; see `Transport`.

        Raises:
            ConfigurationError: The file format lacks a dtype.
        """
        arrays = as_arrays(weights)
        if wrong := [f"{array.dtype} of {name}" for name, array in arrays.items() if array.dtype not in FORMATS]:
            raise ConfigurationError(f"sync.transport=checkpoint cannot write {wrong[0]}; set sync.transport=auto")
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"version_{version:012d}.safetensors"
        with replacing(path) as scratch, ChecksumFile(scratch) as file:
            write_tensors(file, arrays, {})
        paths = self.paths()
        kept_paths = paths[: paths.index(path) + 1][-self._num_kept :]  # later ones are of an attempt that was killed
        for other_path in {*paths} - {*kept_paths}:
            other_path.unlink(missing_ok=True)
        return str(path)

    def fetch(self, handle: Any) -> Mapping[str, Any]:
        """Read the weights.

        Raises:
            SupersededError: The file is gone or damaged; the newest intact other file replaces it.
            CheckpointError: No file is intact.
        """
        path = Path(handle)
        for candidate in [path, *(other_path for other_path in reversed(self.paths()) if other_path != path)]:
            try:
                weights = map_tensors(candidate)
            except SerializationError as error:
                if candidate.exists():
                    say(f"skipping damaged weights {candidate}: {error}")
                continue
            if candidate != path:
                raise SupersededError(int(candidate.stem.removeprefix("version_")), weights)
            return weights
        raise CheckpointError(f"{handle} is gone, and {self._directory} contains no intact weights")

    def paths(self) -> list[Path]:
        """Return the files, oldest first."""
        return sorted(self._directory.glob("version_*.safetensors"))


def as_arrays(weights: Weights) -> dict[str, NDArray[Any]]:
    """Return weights as NumPy arrays, serialized many times faster than tensors.

    Tensors of bfloat16, float8 and complex64, which NumPy or our files lack, become integers of the same bits.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    return {name: tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy() for name, tensor in tensors.items()}


def weights_of(module: nn.Module) -> Weights:
    """Return `module.state_dict()`, which refers to the module's tensors.

    Raises:
        ConfigurationError: It contains something other than tensors, which explorers cannot receive.
    """
    weights: Weights = module.state_dict()
    for name, item in weights.items():
        if not isinstance(item, torch.Tensor):
            raise ConfigurationError(
                f"{type(module).__name__}: {name} of the state_dict is of type {type(item).__name__}; explorers "
                "receive tensors only, so replace get_extra_state() by a parameter or a buffer"
            )
    return weights


@torch.no_grad()
def load_weights(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Copy weights into the parameters and buffers of a module, in place.

    Args:
        module: The module to update.
        weights: Tensors or arrays by the names of its `state_dict()`.

    Raises:
        ConfigurationError: Names or shapes do not match; the module is unchanged.
    """
    own_weights = weights_of(module)
    shapes, own_shapes = ({name: list(item.shape) for name, item in each.items()} for each in (weights, own_weights))
    for name in own_shapes | shapes:
        if (shape := shapes.get(name)) != (own_shape := own_shapes.get(name)):
            problem = "is missing" if shape is None else f"has shape {shape}, expected {own_shape}"
            problem = "is unexpected" if own_shape is None else problem
            raise ConfigurationError(f"the weights do not match the module {type(module).__name__}: {name} {problem}")
    for name, value in weights.items():
        _copy(value, own_weights[name])


def _copy(value: Any, to: torch.Tensor) -> None:
    if isinstance(value, torch.Tensor):
        to.copy_(value)
        return
    are_bits = value.dtype.kind in "iu" and value.dtype.itemsize == to.itemsize
    target = to.view(_BITS[to.dtype]) if are_bits and to.dtype in _BITS else to
    if target.device.type == "cpu":
        np.copyto(target.numpy(), value)  # arrays from Ray are read-only, about which torch warns
    else:
        target.copy_(torch.from_numpy(value.copy()))
