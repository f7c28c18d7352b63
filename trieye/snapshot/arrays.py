"""Encode NumPy arrays and scalars; the dtypes that safetensors lacks travel as bytes with their description."""

import json
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from trieye.snapshot.nodes import KIND, Collector, Node

FORMATS: dict[np.dtype[Any], str] = {
    np.dtype(name): known
    for name, known in {
        "<f8": "F64", "<f4": "F32", "<f2": "F16",
        "<i8": "I64", "<i4": "I32", "<i2": "I16", "i1": "I8",
        "<u8": "U64", "<u4": "U32", "<u2": "U16", "u1": "U8", "?": "BOOL",
    }.items()
}  # fmt: skip
"""The safetensors name of each NumPy dtype that safetensors knows."""


def encode_array(encoder: Collector, value: NDArray[Any] | np.generic, path: str) -> Node | None:
    """Return the node of an array or scalar, or None where only a pickle can hold it."""
    if isinstance(value, np.generic):
        return _encode_scalar(value)
    if type(value) not in {np.ndarray, np.memmap}:
        return None
    plain = np.asarray(value)
    if plain.dtype in FORMATS:
        return {KIND: "ndarray", "array": encoder.add_array(path, plain, owned=False)}
    descr = describe(plain.dtype)
    if descr is None:
        return None
    raw = np.array(plain, order="C", copy=True).reshape(-1).view(np.uint8)
    name = encoder.add_array(path, raw, owned=True)
    return {KIND: "ndarray", "array": name, "descr": descr, "shape": list(plain.shape)}


def decode_array(node: dict[str, Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that `encode_array` got; it shares the memory of `array`."""
    if "descr" not in node:
        return array
    return np.ndarray(tuple(node["shape"]), _dtype(node["descr"]), array.data if array.nbytes else b"")


def decode_scalar(node: dict[str, Any]) -> Any:
    """Return the scalar that `encode_array` got."""
    return np.ndarray((), _dtype(node["descr"]), bytearray.fromhex(node["hex"]))[()]


def _encode_scalar(value: np.generic) -> Node | None:
    array = np.asarray(value)
    descr = describe(array.dtype)
    if descr is None or not isinstance(array[()], type(value)):
        return None
    return {KIND: "scalar", "descr": descr, "hex": array.tobytes().hex()}


def describe(dtype: np.dtype[Any]) -> Node | None:
    """Return the description of a dtype as JSON, or None if it does not describe it fully."""
    if dtype in FORMATS:
        return dtype.str
    if dtype.hasobject or dtype.metadata or dtype.itemsize == 0 or dtype.isbuiltin == 2:  # noqa: PLR2004 - 2 = user-defined
        return None
    try:
        descr = json.loads(json.dumps(npy_format.dtype_to_descr(dtype)))
        described = _dtype(descr)
    except (TypeError, ValueError):
        return None
    return descr if described == dtype and described.type is dtype.type else None


def _dtype(descr: Node) -> np.dtype[Any]:
    dtype = npy_format.descr_to_dtype(_with_tuples(descr))
    if dtype.hasobject:
        raise ValueError(f"an array of {dtype} cannot be read from bytes")
    return dtype


def _with_tuples(descr: Node) -> Any:
    """Undo what JSON does to a description: fields are tuples inside a list, as are shapes."""
    if not isinstance(descr, list):
        return descr
    return [(_title(name), _with_tuples(kind), *(tuple(shape) for shape in rest)) for name, kind, *rest in descr]


def _title(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name
