"""The file of a replay buffer: one uncompressed `.npz` without pickle, replaced atomically."""

import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from trieye.exceptions import SerializationError

_META = "__state__"
_ROWS = "rows/"

# What NumPy, zipfile and json raise for bytes that are not what was written; found by flipping and cutting bytes.
_WRONG_TYPE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
_DAMAGE = (OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, *_WRONG_TYPE)


def write_snapshot(path: Path, state: dict[str, Any]) -> None:
    """Write a buffer's `state_dict()`; a kill at any moment leaves the old file or the new one, whole.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full.
    """
    meta = {key: value for key, value in state.items() if key != "rows"}
    arrays = {_ROWS + name: array for name, array in (state["rows"] or {}).items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **{_META: np.array(json.dumps(meta)), **arrays})
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_snapshot(path: Path) -> dict[str, Any]:
    """Read what `write_snapshot` wrote; the zip container checks each array's CRC-32.

    Raises:
        FileNotFoundError: There is no such file.
        SerializationError: The file is damaged, cut off, or something else.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            state: dict[str, Any] = json.loads(str(archive[_META]))
            state["rows"] = {name.removeprefix(_ROWS): archive[name] for name in archive.files if name != _META}
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise SerializationError(
            f"{path} is no whole replay snapshot ({error}); use an older one or delete it"
        ) from error
    return state
