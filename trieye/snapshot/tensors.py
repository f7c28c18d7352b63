"""Encodes torch tensors; imports torch only if the process has already done so, or to decode one."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.snapshot.nodes import KIND, ArrayCollector, Node

_NUMPY_DTYPES = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
_SAFETENSORS_FORMATS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """A tensor as an array, which can be sent to other processes without a copy and encoded without torch.

    Attributes:
        dtype: Name of the torch dtype.
        array: The values, or their bits if NumPy lacks the dtype.
        owned: Whether no user code can change the array.
        format_name: The safetensors name of the dtype, if NumPy lacks the dtype.
        shape: Shape of the tensor, if `array` contains plain bytes.
    """

    dtype: str
    array: NDArray[Any]
    owned: bool
    format_name: str | None = None
    shape: list[int] | None = None


class TensorPacker:
    """Packs the tensors of one state; tensors that share memory, such as tied weights, share one array."""

    def __init__(self) -> None:
        self._packed_tensors: dict[Any, tuple[Any, PackedTensor | None]] = {}

    def packed(self, value: Any) -> Any:
        """Pack a tensor; return any other value unchanged."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor") or not isinstance(value, torch.Tensor):
            return value
        key = _memory_of(value)
        if key not in self._packed_tensors:
            packed_tensor = _packed(value)
            if packed_tensor is not None:  # pickle would copy an array of another order
                packed_tensor = replace(packed_tensor, array=np.asarray(packed_tensor.array, order="C"))
            self._packed_tensors[key] = (value, packed_tensor)
        return self._packed_tensors[key][1] or value


def encode_tensor(encoder: ArrayCollector, value: Any, path: str) -> Node | None:
    """Return the node of a tensor, or of a torch size, dtype or device; None for anything else."""
    if isinstance(value, PackedTensor):
        return _encode_once(encoder, id(value), value, lambda: value, path)
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):  # another thread is importing torch
        return None
    if isinstance(value, torch.Tensor):
        return _encode_once(encoder, _memory_of(value), value, lambda: _packed(value), path)
    if type(value) is torch.Size:
        return {KIND: "torch.Size", "items": list(value)}
    if isinstance(value, torch.dtype | torch.device):
        return {KIND: f"torch.{type(value).__name__}", "name": str(value).removeprefix("torch.")}
    return None


def decode_tensor(node: dict[str, Any], array: NDArray[Any]) -> Any:
    """Invert `encode_tensor` for a tensor, on the CPU; the result shares the memory of `array`."""
    import torch

    dtype = _torch_dtype(node["dtype"])
    tensor = torch.from_numpy(array)
    if "shape" not in node:
        return tensor if tensor.dtype == dtype else tensor.view(dtype)
    if not array.nbytes:
        return torch.empty(node["shape"], dtype=dtype)
    return tensor.view(dtype).reshape(node["shape"])


def decode_attribute(node: dict[str, Any]) -> Any:
    """Invert `encode_tensor` for a torch size, dtype or device."""
    import torch

    if node[KIND] == "torch.Size":
        return torch.Size(node["items"])
    return torch.device(node["name"]) if node[KIND] == "torch.device" else _torch_dtype(node["name"])


def _torch_dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise SerializationError(
            f"torch {torch.__version__} has no dtype {name!r}; load the state with a newer version"
        )
    return dtype


def _is_dense(tensor: Any) -> bool:
    import torch

    exact = type(tensor) in {torch.Tensor, torch.nn.Parameter} and not tensor.is_nested
    return exact and tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"


def _memory_of(tensor: Any) -> Any:
    """Return a key that is equal for tensors on the same memory, such as tied weights."""
    if not _is_dense(tensor) or not tensor.numel():
        return id(tensor)
    view = tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()
    return tensor.device, tensor.data_ptr(), view


def _encode_once(
    encoder: ArrayCollector, key: Any, tensor: Any, pack: Callable[[], PackedTensor | None], path: str
) -> Node | None:
    """Return the node of a tensor; tensors with the same key share a node."""
    if key not in encoder.tensors:
        if (result := pack()) is None:
            return None
        array = encoder.add_array(path, result.array, owned=result.owned, format_name=result.format_name)
        node: dict[str, Any] = {KIND: "tensor", "dtype": result.dtype, "array": array}
        if result.shape is not None:
            node["shape"] = result.shape
        # the reference to the tensor prevents reuse of its memory and its id
        encoder.tensors[key] = (tensor, node)
    return encoder.tensors[key][1]


def _packed(tensor: Any) -> PackedTensor | None:
    """Return a dense tensor as an array that shares its memory if possible; None for other tensors."""
    if not _is_dense(tensor):
        return None
    plain = tensor.detach().resolve_conj().resolve_neg()
    is_owned = plain.device.type != "cpu" or plain.data_ptr() != tensor.data_ptr()
    plain = plain.cpu()
    dtype = str(plain.dtype).removeprefix("torch.")
    if dtype in _NUMPY_DTYPES:
        return PackedTensor(dtype, plain.numpy(), is_owned)
    if dtype in _SAFETENSORS_FORMATS:
        return PackedTensor(dtype, _bits(plain), is_owned, _SAFETENSORS_FORMATS[dtype])
    raw = _raw_bytes(plain)
    return None if raw is None else PackedTensor(dtype, raw, owned=True, shape=list(plain.shape))


def _bits(tensor: Any) -> NDArray[Any]:
    import torch

    return np.asarray(tensor.view(torch.uint16 if tensor.element_size() == 2 else torch.uint8))  # noqa: PLR2004


def _raw_bytes(tensor: Any) -> NDArray[np.uint8] | None:
    import torch

    try:
        return np.asarray(tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8))
    except (RuntimeError, TypeError):  # dtypes of less than a byte or without operators
        return None
