"""Write and read named arrays as a safetensors file, with no copy in between."""

import json
import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.files.checksum import ChecksumFile, ChecksumReader
from trieye.snapshot.arrays import FORMATS

_DTYPES = {name: dtype for dtype, name in FORMATS.items()} | {
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
}
_LENGTH_BYTES = 8


def write_tensors(file: ChecksumFile, arrays: dict[str, NDArray[Any]], formats: dict[str, str]) -> None:
    """Write arrays that are C-contiguous and of a dtype in `FORMATS`; `formats` names those that mean something else.

    The safetensors library is not used for it: it wants `bytes`, a copy of every tensor.
    """
    # widest first: every tensor is then aligned to its own size, without the gaps that the format forbids
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
    """Return the arrays of a safetensors file, each in its own memory, and the formats as `write_tensors` takes them.

    Args:
        file: The file, at its beginning.
        path: Where it lies.

    Raises:
        SerializationError: The file is not a whole safetensors file.
    """
    try:
        entries = _read_header(file, path.stat().st_size)
        arrays = {name: _read_array(file, entry) for name, entry in entries}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SerializationError(f"{path} is not a whole safetensors file: {error}") from error
    formats = {name: entry["dtype"] for name, entry in entries if _DTYPES[entry["dtype"]] not in _own(entry["dtype"])}
    return arrays, formats


def map_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file as read-only maps of it, which are read when they are used.

    Raises:
        SerializationError: The file is not a whole safetensors file.
    """
    try:
        with path.open("rb") as file:
            entries = _read_header(file, path.stat().st_size)
            start = file.tell()
        return {name: _mapped(path, entry, start) for name, entry in entries}
    except OSError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SerializationError(f"{path} is not a whole safetensors file: {error}") from error


def _mapped(path: Path, entry: dict[str, Any], start: int) -> NDArray[Any]:
    shape, dtype = tuple(entry["shape"]), _DTYPES[entry["dtype"]]
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", start + entry["data_offsets"][0], shape)


def _own(format_name: str) -> set[np.dtype[Any]]:
    return {dtype for dtype, name in FORMATS.items() if name == format_name}


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


def _read_header(file: _Readable, size_bytes: int) -> list[tuple[str, dict[str, Any]]]:
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > size_bytes - _LENGTH_BYTES:
        raise ValueError(f"a header of {length} bytes in a file of {size_bytes}")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    end = 0
    for name, entry in entries:
        start, stop = entry["data_offsets"]
        expected = math.prod(entry["shape"]) * _DTYPES[entry["dtype"]].itemsize
        if start != end or stop - start != expected or min(entry["shape"], default=0) < 0:
            raise ValueError(f"tensor {name!r} lies at {start}..{stop}, expected {end}..{end + expected}")
        end = stop
    if end != size_bytes - _LENGTH_BYTES - length:
        raise ValueError(f"the tensors end at {end}, the file at {size_bytes - _LENGTH_BYTES - length}")
    return entries


def _read_array(file: ChecksumReader, entry: dict[str, Any]) -> NDArray[Any]:
    array = np.empty(entry["shape"], _DTYPES[entry["dtype"]])
    if array.nbytes:
        got = file.readinto(array.reshape(-1).view(np.uint8).data)
        if got != array.nbytes:
            raise ValueError(f"{got} bytes of {array.nbytes}")
    return array
