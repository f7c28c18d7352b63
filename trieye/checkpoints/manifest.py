"""MANIFEST.json: the files, checksums and metadata of a saved directory."""

import json
import math
import os
import re
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.files.checksum import NOT_NOW, ChecksumFile, FileEntry, verify_file

MANIFEST_NAME = "MANIFEST.json"
PARTS_DIRECTORY = "parts"
FORMAT_VERSION = 3
"""In version 2 the hub state was a mapping `hub` in the metadata instead of a separate file."""

_FILE_NAME = re.compile(rf"(?:{PARTS_DIRECTORY}/)?[A-Za-z0-9][A-Za-z0-9_.-]*")
_THREADS = 4


class Manifest(BaseModel):
    """The contents of a saved directory.

    Attributes:
        step: Global step of the state, or None.
        created: Unix time in seconds.
        sequence: Number of the save within the parent directory; gives an order that is independent of clocks.
        files: The files of the state, in the directory itself or in `parts/`; other files are never read.
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
                raise ValueError(f"{name!r} is not a valid file name within this directory")
        return files

    @property
    def part_names(self) -> set[str]:
        """Names of the parts in this directory; see `trieye.snapshot.nodes.StateParts`."""
        return {Path(name).stem for name in self.files if name.startswith(f"{PARTS_DIRECTORY}/")}

    def without_mappings(self) -> Self:
        """Return a copy without mappings in the metadata: an earlier version stored the large hub state there."""
        metadata = {name: value for name, value in self.metadata.items() if not isinstance(value, Mapping)}
        return self.model_copy(update={"metadata": metadata})


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, which includes its own checksum, as the last file of a directory."""
    with ChecksumFile(directory / MANIFEST_NAME) as file:
        file.write(_sealed(manifest.model_dump(mode="json")))


def rewrite_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest of a directory atomically, leaving all other files unchanged.

    Raises:
        OSError: The directory is not writable, or the disk is full; the manifest is unchanged.
    """
    write_atomic(directory / MANIFEST_NAME, _sealed(manifest.model_dump(mode="json")))


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a directory without checking its files.

    Raises:
        CheckpointError: The manifest is missing or damaged.
        SerializationError: A newer version of trieye wrote it, or it is temporarily unreadable.
    """
    path = directory / MANIFEST_NAME
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link; links are not followed")
    try:
        content = _unsealed(path.read_bytes())
        if not (isinstance(content["format"], int) and content["format"] > FORMAT_VERSION):
            return Manifest.model_validate(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno in NOT_NOW:
            raise SerializationError(f"{path} cannot be read: {error.strerror}") from error
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    raise SerializationError(
        f"{path} has format {content['format']}, but this trieye reads up to {FORMAT_VERSION}; use a newer trieye"
    )


def verify(directory: Path, *, parts: bool = True) -> Manifest:
    """Verify the files of a directory against its manifest, and return the manifest.

    Args:
        directory: The directory.
        parts: Verify `parts/` too; if skipped, the state is readable, but rows of a replay may be damaged.

    Raises:
        CheckpointError: A file is missing, truncated or changed; the message names the first one.
        SerializationError: A newer version of trieye wrote it, or a file is temporarily unreadable.
    """
    manifest = read_manifest(directory)
    check_no_link(directory)
    selected_items = [item for item in manifest.files.items() if parts or not item[0].startswith(f"{PARTS_DIRECTORY}/")]
    files = sorted(selected_items, key=lambda item: -item[1].size_bytes)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:  # checksums release the GIL
        for _ in pool.map(lambda item: verify_file(directory / item[0], item[1]), files):
            pass
    return manifest


def check_no_link(directory: Path) -> None:
    """Check that `parts/` of a directory is not a symbolic link.

    Raises:
        CheckpointError: It is a link.
    """
    if (directory / PARTS_DIRECTORY).is_symlink():
        raise CheckpointError(f"{directory / PARTS_DIRECTORY} is a link; links are not followed")


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Convert metadata to JSON values: NumPy scalars become numbers, and non-finite numbers become None.

    Raises:
        SerializationError: A value is not plain; the message contains its key.
    """
    return {str(key): _plain(value, str(key)) for key, value in metadata.items()}


def _plain(value: Any, path: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        # a non-finite objective must not prevent the checkpoint
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise SerializationError(
        f"metadata {path!r} is a {type(value).__name__}; only numbers, strings, lists and mappings are supported"
    )


def _sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps({"manifest": content, "crc32": _seal(content)}, sort_keys=True, indent=1, allow_nan=False)
    return text.encode() + b"\n"


def _unsealed(text: bytes) -> dict[str, Any]:
    sealed = json.loads(text)
    content: dict[str, Any] = sealed["manifest"]
    if _seal(content) != sealed["crc32"] or not text.endswith(b"\n"):
        raise ValueError("the checksum does not match")
    return content


def _seal(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
