"""Encode torch tensors; torch is imported only where one is really there."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.snapshot.nodes import KIND, Collector, Node

_NUMPY_KNOWS = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
_SAFETENSORS_KNOWS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@dataclass(frozen=True, slots=True, eq=False)
class PackedTensor:
    """A tensor as an array: it goes to other processes without a copy, and is encoded without torch.

    Attributes:
        dtype: Name of its dtype.
        array: Its values, or their bits where NumPy does not know the dtype.
        owned: Whether no user code can change the array.
        format_name: What safetensors calls the dtype, where NumPy does not know it.
        shape: Its shape, if `array` is plain bytes.
    """

    dtype: str
    array: NDArray[Any]
    owned: bool
    format_name: str | None = None
    shape: list[int] | None = None


class TensorPacker:
    """Packs the tensors of one state; those that are the same memory, such as tied weights, stay the same one."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[Any, PackedTensor | None]] = {}

    def packed(self, value: Any) -> Any:
        """Return a tensor packed, and anything else as it is."""
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "Tensor") or not isinstance(value, torch.Tensor):
            return value
        key = _memory_of(value)
        if key not in self._seen:
            packed = _packed(value)
            if packed is not None:  # of another order, pickle would copy it
                packed = replace(packed, array=np.asarray(packed.array, order="C"))
            self._seen[key] = (value, packed)
        return self._seen[key][1] or value


def encode_tensor(encoder: Collector, value: Any, path: str) -> Node | None:
    """Return the node of a tensor, or of a torch size, dtype or device; None for anything else."""
    if isinstance(value, PackedTensor):
        return _encode_once(encoder, id(value), value, lambda: value, path)
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):  # half-way through its import in another thread
        return None
    if isinstance(value, torch.Tensor):
        return _encode_once(encoder, _memory_of(value), value, lambda: _packed(value), path)
    if type(value) is torch.Size:
        return {KIND: "torch.Size", "items": list(value)}
    if isinstance(value, torch.dtype | torch.device):
        return {KIND: f"torch.{type(value).__name__}", "name": str(value).removeprefix("torch.")}
    return None


def decode_tensor(node: dict[str, Any], array: NDArray[Any]) -> Any:
    """Return the tensor that `encode_tensor` got, on the CPU; it shares the memory of `array`."""
    import torch

    dtype = _torch_dtype(node["dtype"])
    tensor = torch.from_numpy(array)
    if "shape" not in node:
        return tensor if tensor.dtype == dtype else tensor.view(dtype)
    if not array.nbytes:
        return torch.empty(node["shape"], dtype=dtype)
    return tensor.view(dtype).reshape(node["shape"])


def decode_attribute(node: dict[str, Any]) -> Any:
    """Return the torch size, dtype or device that `encode_tensor` got."""
    import torch

    if node[KIND] == "torch.Size":
        return torch.Size(node["items"])
    return torch.device(node["name"]) if node[KIND] == "torch.device" else _torch_dtype(node["name"])


def _torch_dtype(name: str) -> Any:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise SerializationError(
            f"this torch, {torch.__version__}, has no dtype {name!r}; read the state with a newer one"
        )
    return dtype


def _is_dense(tensor: Any) -> bool:
    import torch

    exact = type(tensor) in {torch.Tensor, torch.nn.Parameter}
    return exact and tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"


def _memory_of(tensor: Any) -> Any:
    """Return what is equal for tensors that are the same memory, such as tied weights."""
    if not _is_dense(tensor) or not tensor.numel():
        return id(tensor)
    return (
        tensor.device,
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _encode_once(
    encoder: Collector, key: Any, held: Any, pack: Callable[[], PackedTensor | None], path: str
) -> Node | None:
    """Return the node of a tensor; those of the same key get the same one."""
    if key not in encoder.tensors:
        if (packed := pack()) is None:
            return None
        array = encoder.add_array(path, packed.array, owned=packed.owned, format_name=packed.format_name)
        node: dict[str, Any] = {KIND: "tensor", "dtype": packed.dtype, "array": array}
        if packed.shape is not None:
            node["shape"] = packed.shape
        # the tensor is kept, so that its memory, or its id, is not given to another one meanwhile
        encoder.tensors[key] = (held, node)
    return encoder.tensors[key][1]


def _packed(tensor: Any) -> PackedTensor | None:
    """Return a tensor as an array, which shares its memory where it can; None if it is not that kind of tensor."""
    if not _is_dense(tensor):
        return None
    plain = tensor.detach().resolve_conj().resolve_neg()
    owned = plain.device.type != "cpu" or plain.data_ptr() != tensor.data_ptr()
    plain = plain.cpu()
    dtype = str(plain.dtype).removeprefix("torch.")
    if dtype in _NUMPY_KNOWS:
        return PackedTensor(dtype, plain.numpy(), owned)
    if dtype in _SAFETENSORS_KNOWS:
        return PackedTensor(dtype, _bits(plain), owned, _SAFETENSORS_KNOWS[dtype])
    raw = _raw_bytes(plain)
    return None if raw is None else PackedTensor(dtype, raw, owned=True, shape=list(plain.shape))


def _bits(tensor: Any) -> NDArray[Any]:
    import torch

    bits: NDArray[Any] = tensor.view(torch.uint16 if tensor.element_size() == 2 else torch.uint8).numpy()  # noqa: PLR2004
    return bits


def _raw_bytes(tensor: Any) -> NDArray[np.uint8] | None:
    import torch

    try:
        raw: NDArray[np.uint8] = (
            tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()
        )
    except (RuntimeError, TypeError):  # dtypes of less than a byte, and those that no operator knows
        return None
    return raw
