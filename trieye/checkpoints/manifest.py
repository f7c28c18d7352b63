"""MANIFEST.json: what a saved directory holds, and how one sees that it is whole."""

import json
import math
import os
import re
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.files.checksum import NOT_NOW, ChecksumFile, FileEntry, verify_file

MANIFEST_NAME = "MANIFEST.json"
PARTS_DIRECTORY = "parts"
FORMAT_VERSION = 3
"""2: the state of the hub was a mapping in the metadata, named `hub`, and not a file of its own."""

_FILE_NAME = re.compile(rf"(?:{PARTS_DIRECTORY}/)?[A-Za-z0-9][A-Za-z0-9_.-]*")
_THREADS = 4


class Manifest(BaseModel):
    """What a saved directory holds.

    Attributes:
        step: Global step of the state; None for a state that has none.
        created: Unix time in seconds.
        sequence: Counts the saves into the same parent directory, so that their order does not depend on a clock.
        files: The files that belong to the state, in the directory itself or in `parts/`; others are never read.
        metadata: Plain JSON values of the caller: objective, config hash, attempt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT_VERSION
    step: int | None = Field(default=None, ge=0)
    created: float = Field(default_factory=time.time)
    sequence: int = Field(default=0, ge=0)
    files: dict[str, FileEntry] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _files_are_inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        for name in files:
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a file in this directory")
        return files

    @property
    def part_names(self) -> set[str]:
        """Names of the parts that are here; see `trieye.snapshot.nodes.StateParts`."""
        return {Path(name).stem for name in self.files if name.startswith(f"{PARTS_DIRECTORY}/")}


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, with a checksum of itself, as the last file of a directory."""
    with ChecksumFile(directory / MANIFEST_NAME) as file:
        file.write(_sealed(manifest.model_dump(mode="json")))


def rewrite_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a directory whose files stay as they are; a reader sees the old or the new one.

    Raises:
        OSError: The directory is not writable, or the disk is full; the manifest is then as it was.
    """
    write_atomic(directory / MANIFEST_NAME, _sealed(manifest.model_dump(mode="json")))


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a directory, without looking at its files.

    Raises:
        CheckpointError: It is missing or damaged.
        SerializationError: A newer version of trieye wrote it, or it cannot be read now.
    """
    path = directory / MANIFEST_NAME
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link; only what was written here is read")
    try:
        content = _unsealed(path.read_bytes())
        _check_version(path, content["format"])
        return Manifest.model_validate(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in NOT_NOW:
            raise SerializationError(f"{path} cannot be read: {error.strerror}") from error
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def verify(directory: Path, *, parts: bool = True) -> Manifest:
    """Return the manifest of a directory after comparing its files with it.

    Args:
        directory: The directory.
        parts: Also what lies in `parts/`; without it the state can be read, although perhaps not all of a replay.

    Raises:
        CheckpointError: A file is missing, cut or changed; the message names the first one.
        SerializationError: A newer version of trieye wrote it, or a file cannot be read now.
    """
    manifest = read_manifest(directory)
    check_no_link(directory)
    chosen = [item for item in manifest.files.items() if parts or not item[0].startswith(f"{PARTS_DIRECTORY}/")]
    files = sorted(chosen, key=lambda item: -item[1].size_bytes)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:  # checksums are computed outside of the GIL
        for _ in pool.map(lambda item: verify_file(directory / item[0], item[1]), files):
            pass
    return manifest


def check_no_link(directory: Path) -> None:
    """Make sure that the parts of a directory are its own.

    Raises:
        CheckpointError: They lie behind a link.
    """
    if (directory / PARTS_DIRECTORY).is_symlink():
        raise CheckpointError(f"{directory / PARTS_DIRECTORY} is a link; only what was written here is read")


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
    text = json.dumps({"manifest": content, "crc32": _seal(content)}, sort_keys=True, indent=1, allow_nan=False)
    return text.encode() + b"\n"


def _unsealed(text: bytes) -> dict[str, Any]:
    held = json.loads(text)
    content: dict[str, Any] = held["manifest"]
    if _seal(content) != held["crc32"] or not text.endswith(b"\n"):
        raise ValueError("its checksum does not match")
    return content


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
