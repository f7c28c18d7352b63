"""Encode torch tensors; torch is imported only where one is really there."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.persistence.nodes import KIND, Node

if TYPE_CHECKING:
    from trieye.persistence.encoding import Encoder

_NUMPY_KNOWS = {"float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"}
_SAFETENSORS_KNOWS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def encode_tensor(encoder: "Encoder", value: Any, path: str) -> Node | None:
    """Return the node of a tensor, or of a torch size, dtype or device; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):  # half-way through its import in another thread
        return None
    if isinstance(value, torch.Tensor):
        return _encode_once(encoder, value, path) if _is_dense(value) else None
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


def _encode_once(encoder: "Encoder", tensor: Any, path: str) -> Node | None:
    """Return the node of a tensor; those that are the same memory, such as tied weights, get the same one."""
    if not tensor.numel():
        return _encode_dense(encoder, tensor, path)
    same = (
        tensor.device,
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )
    if same not in encoder.tensors:
        # the tensor is kept, so that its memory is not given to another one meanwhile
        encoder.tensors[same] = (tensor, _encode_dense(encoder, tensor, path))
    return encoder.tensors[same][1]


def _encode_dense(encoder: "Encoder", tensor: Any, path: str) -> Node | None:
    plain = tensor.detach().resolve_conj().resolve_neg()
    owned = plain.device.type != "cpu" or plain.data_ptr() != tensor.data_ptr()
    plain = plain.cpu()
    dtype = str(plain.dtype).removeprefix("torch.")
    if dtype in _NUMPY_KNOWS:
        return {KIND: "tensor", "dtype": dtype, "array": encoder.add_array(path, plain.numpy(), owned=owned)}
    if dtype in _SAFETENSORS_KNOWS:
        name = encoder.add_array(path, _bits(plain), owned=owned, format_name=_SAFETENSORS_KNOWS[dtype])
        return {KIND: "tensor", "dtype": dtype, "array": name}
    raw = _raw_bytes(plain)
    if raw is None:
        return None
    shape = list(plain.shape)
    return {KIND: "tensor", "dtype": dtype, "array": encoder.add_array(path, raw, owned=True), "shape": shape}


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
