"""MANIFEST.json: what a saved directory holds, and how one sees that it is whole."""

import json
import math
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trieye.exceptions import CheckpointError, SerializationError
from trieye.persistence.checksum import ChecksumFile, crc32_of

MANIFEST_NAME = "MANIFEST.json"
FORMAT_VERSION = 1


class FileEntry(BaseModel):
    """Size and checksum of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_bytes: int = Field(ge=0)
    crc32: int = Field(ge=0)


class Manifest(BaseModel):
    """What a saved directory holds.

    Attributes:
        step: Global step of the state; None for a state that has none.
        created: Unix time in seconds.
        sequence: Counts the saves into the same parent directory, so that their order does not depend on a clock.
        files: The files that belong to the state; others in the directory are never read.
        metadata: Plain JSON values of the caller: objective, config hash, attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT_VERSION
    step: int | None = Field(default=None, ge=0)
    created: float = Field(default_factory=time.time)
    sequence: int = Field(default=0, ge=0)
    files: dict[str, FileEntry] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, with a checksum of itself, as the last file of a directory."""
    with ChecksumFile(directory / MANIFEST_NAME) as file:
        file.write(_sealed(manifest.model_dump(mode="json")))


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a directory, without looking at its files.

    Raises:
        CheckpointError: It is missing or damaged.
        SerializationError: A newer version of trieye wrote it, or it may not be read.
    """
    path = directory / MANIFEST_NAME
    try:
        content = _unsealed(path.read_bytes())
        _check_version(path, content["format"])
        return Manifest.model_validate(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} is missing") from error
    except PermissionError as error:
        raise SerializationError(f"{path} cannot be read: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def verify(directory: Path) -> Manifest:
    """Return the manifest of a directory after comparing every file with it.

    Raises:
        CheckpointError: A file is missing, cut or changed; the message names the first one.
        SerializationError: A newer version of trieye wrote it, or a file may not be read.
    """
    manifest = read_manifest(directory)
    for name, entry in manifest.files.items():
        path = directory / name
        try:
            size, crc32 = path.stat().st_size, crc32_of(path)
        except PermissionError as error:
            raise SerializationError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise CheckpointError(f"{path} is damaged: {error.strerror or error}") from error
        if size != entry.size_bytes:
            raise CheckpointError(f"{path} is damaged: it has {size} bytes, {entry.size_bytes} were written")
        if crc32 != entry.crc32:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
    return manifest


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON values; NumPy scalars become numbers, and numbers that are not finite become None.

    Raises:
        SerializationError: A value is not plain; the message names it.
    """
    return {str(key): _plain(value, str(key)) for key, value in metadata.items()}


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        # an objective that diverged must not cost the checkpoint
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise SerializationError(
        f"metadata {path!r} is a {type(value).__name__}; only numbers, strings, lists and mappings can be kept there"
    )


def _check_version(path: Path, version: int) -> None:
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise SerializationError(
            f"{path} has format {version}, and this trieye reads up to {FORMAT_VERSION}; read it with a newer trieye"
        )


def _sealed(content: dict[str, Any]) -> bytes:
    seal = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    text = json.dumps({"manifest": content, "crc32": seal}, sort_keys=True, indent=1, allow_nan=False)
    return text.encode() + b"\n"


def _unsealed(text: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)["manifest"]
    if _sealed(content) != text:
        raise ValueError("its checksum does not match")
    return content
