"""NumPy arrays and scalars as nodes of an encoded state and as safetensors files, without intermediate copies.

Dtypes that safetensors lacks are stored as bytes with a dtype description.
"""

import json
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.files.checksum import ChecksumFile, ChecksumReader
from trieye.snapshot.nodes import KIND, ArrayCollector, Node

FORMATS: dict[np.dtype[Any], str] = {
    np.dtype(name): format_name
    for name, format_name in {
        "<f8": "F64", "<f4": "F32", "<f2": "F16",
        "<i8": "I64", "<i4": "I32", "<i2": "I16", "i1": "I8",
        "<u8": "U64", "<u4": "U32", "<u2": "U16", "u1": "U8", "?": "BOOL",
    }.items()
}  # fmt: skip
"""The safetensors name of each NumPy dtype that safetensors supports."""


def encode_array(encoder: ArrayCollector, value: NDArray[Any] | np.generic, path: str) -> Node | None:
    """Return the node of an array or scalar, or None if only pickle can represent it."""
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
    """Invert `encode_array` for an array; the result shares the memory of `array`."""
    if "descr" not in node:
        return array
    return np.ndarray(tuple(node["shape"]), _dtype(node["descr"]), array.data if array.nbytes else b"")


def decode_scalar(node: dict[str, Any]) -> Any:
    """Invert `encode_array` for a scalar."""
    return np.ndarray((), _dtype(node["descr"]), bytearray.fromhex(node["hex"]))[()]


def _encode_scalar(value: np.generic) -> Node | None:
    array = np.asarray(value)
    descr = describe(array.dtype)
    if descr is None or not isinstance(array[()], type(value)):
        return None
    return {KIND: "scalar", "descr": descr, "hex": array.tobytes().hex()}


def describe(dtype: np.dtype[Any]) -> Node | None:
    """Return a JSON description of a dtype, or None if JSON cannot describe it fully."""
    if dtype in FORMATS:
        return dtype.str
    if dtype.hasobject or dtype.metadata or dtype.itemsize == 0 or dtype.isbuiltin == 2:  # noqa: PLR2004 - 2 = user-defined
        return None
    try:
        descr = json.loads(json.dumps(npy_format.dtype_to_descr(dtype)))
        read_dtype = _dtype(descr)
    except (TypeError, ValueError):
        return None
    return descr if read_dtype == dtype and read_dtype.type is dtype.type else None


def _dtype(descr: Node) -> np.dtype[Any]:
    dtype = npy_format.descr_to_dtype(_with_tuples(descr))
    if dtype.hasobject:
        raise ValueError(f"an array of {dtype} cannot be read from bytes")
    return dtype


def _with_tuples(descr: Node) -> Any:
    """Convert the lists of a JSON description back to the tuples of fields and shapes."""
    if not isinstance(descr, list):
        return descr
    return [(_title(name), _with_tuples(kind), *(tuple(shape) for shape in shapes)) for name, kind, *shapes in descr]


def _title(name: Any) -> Any:
    return tuple(name) if isinstance(name, list) else name


_BITS: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F8_E4M3": np.dtype("u1"), "F8_E5M2": np.dtype("u1")}
_DTYPES = {name: dtype for dtype, name in FORMATS.items()} | _BITS
_LENGTH_BYTES = 8


def write_tensors(file: ChecksumFile, arrays: dict[str, NDArray[Any]], formats: dict[str, str]) -> None:
    """Write C-contiguous arrays of dtypes in `FORMATS` as a safetensors file; `formats` overrides format names.

    The safetensors library needs `bytes`, a copy of every tensor.
    """
    # widest dtype first: aligns every tensor to its item size without gaps, which the format forbids
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        array = arrays[name]
        span = [offset, offset + array.nbytes]
        header[name] = {
            "dtype": formats.get(name) or FORMATS[array.dtype],
            "shape": list(array.shape),
            "data_offsets": span,
        }
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
    file.write(text)
    for name in order:
        file.write_array(arrays[name])


def read_tensors(file: ChecksumReader, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of a safetensors file, each in separate memory, and the `formats` for `write_tensors`.

    Args:
        file: The file, at position 0.
        path: Path of the file.

    Raises:
        SerializationError: The file is not a complete safetensors file.
    """
    try:
        entries = _read_header(file, path.stat().st_size)
        arrays = {name: _read_array(file, entry) for name, entry in entries}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SerializationError(f"{path} is not a complete safetensors file: {error}") from error
    formats = {name: entry["dtype"] for name, entry in entries if entry["dtype"] in _BITS}
    return arrays, formats


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as read-only memory maps.

    Raises:
        SerializationError: The file is not a complete safetensors file.
    """
    try:
        with path.open("rb") as file:
            entries = _read_header(file, path.stat().st_size)
            start = file.tell()
        return {name: _mapped(path, entry, start) for name, entry in entries}
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SerializationError(f"{path} is not a complete safetensors file: {error}") from error


def _mapped(path: Path, entry: dict[str, Any], start: int) -> NDArray[Any]:
    shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start + entry["data_offsets"][0], shape)


def _read_header(file: BinaryIO | ChecksumReader, size_bytes: int) -> list[tuple[str, dict[str, Any]]]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size_bytes - _LENGTH_BYTES:
        raise ValueError(f"the header has {length} bytes, the file {size_bytes} bytes")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    end = 0
    for name, entry in entries:
        start, stop = entry["data_offsets"]
        expected_bytes = math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize
        if start != end or stop - start != expected_bytes or min(entry["shape"], default=0) < 0:
            raise ValueError(f"tensor {name!r} takes bytes {start} to {stop}, expected {end} to {end + expected_bytes}")
        end = stop
    if end != size_bytes - _LENGTH_BYTES - length:
        raise ValueError(
            f"the tensors take {end} bytes, the file has {size_bytes - _LENGTH_BYTES - length} bytes for them"
        )
    return entries


def _read_array(file: ChecksumReader, entry: dict[str, Any]) -> NDArray[Any]:
    array = np.empty(entry["shape"], _DTYPES[entry["dtype"]])
    if array.nbytes:
        num_read = file.readinto(array.reshape(-1).view(np.uint8).data)
        if num_read != array.nbytes:
            raise ValueError(f"{num_read} bytes of {array.nbytes}")
    return array
