"""An encoded state as a directory: state.json, state.safetensors, objects.bin, MANIFEST.json."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trieye.exceptions import ConfigurationError, SerializationError, UntrustedPickleError
from trieye.persistence import signing
from trieye.persistence.atomic import new_directory
from trieye.persistence.checksum import ChecksumFile
from trieye.persistence.manifest import FileEntry, Manifest, plain_metadata, verify, write_manifest
from trieye.persistence.nodes import EncodedState
from trieye.persistence.tensor_file import read_tensors, write_tensors

logger = logging.getLogger(__name__)

TREE_NAME = "state.json"
TENSORS_NAME = "state.safetensors"
OBJECTS_NAME = "objects.bin"
_MAGIC = b"trieye-1"
_LENGTH_BYTES = 8


def save_state(
    path: Path,
    encoded: EncodedState,
    *,
    step: int | None = None,
    sequence: int = 0,
    metadata: Mapping[str, Any] | None = None,
    key: bytes | None = None,
) -> Path:
    """Write a state as the directory `path`, whole or not at all; what was at `path` is replaced.

    Args:
        path: The directory.
        encoded: The state.
        step: Its global step.
        sequence: Its number among the saves into the same parent directory.
        metadata: Plain values to keep in the manifest.
        key: Signs pickled parts; the user's own key if None.

    Raises:
        SerializationError: The disk is full, or the directory cannot be written; the message names it.
    """
    kept = plain_metadata(metadata or {})
    try:
        with new_directory(path) as scratch:
            files = write_state(scratch, encoded, key=key)
            write_manifest(scratch, Manifest(step=step, sequence=sequence, files=files, metadata=kept))
    except OSError as error:
        raise SerializationError(
            f"{path} could not be saved ({encoded.size_bytes} bytes): {error.strerror or error}; "
            "earlier saves are untouched"
        ) from error
    return path


def load_state(path: Path, *, key: bytes | None = None, allow_pickle: bool | None = None) -> EncodedState:
    """Verify the directory `path` and return its state.

    Raises:
        CheckpointError: A file is missing or damaged.
        UntrustedPickleError: It has pickled parts that this user did not sign, and they were not allowed.
        SerializationError: It cannot be read for another reason.
    """
    return read_state(path, verify(path), key=key, allow_pickle=allow_pickle)


def write_state(directory: Path, encoded: EncodedState, *, key: bytes | None = None) -> dict[str, FileEntry]:
    """Write the files of a state into an existing directory; return what the manifest says about them."""
    entries: dict[str, FileEntry] = {}
    with ChecksumFile(directory / TREE_NAME) as file:
        file.write(json.dumps(encoded.tree, allow_nan=False, separators=(",", ":")).encode())
    entries[TREE_NAME] = FileEntry(size_bytes=file.size_bytes, crc32=file.crc32)
    if encoded.arrays:
        with ChecksumFile(directory / TENSORS_NAME) as file:
            write_tensors(file, encoded.arrays, encoded.formats)
        entries[TENSORS_NAME] = FileEntry(size_bytes=file.size_bytes, crc32=file.crc32)
    if encoded.objects:
        with ChecksumFile(directory / OBJECTS_NAME) as file:
            _write_objects(file, encoded.objects, key)
        entries[OBJECTS_NAME] = FileEntry(size_bytes=file.size_bytes, crc32=file.crc32)
    return entries


def read_state(
    directory: Path, manifest: Manifest, *, key: bytes | None = None, allow_pickle: bool | None = None
) -> EncodedState:
    """Return the state of a directory whose files were verified against `manifest`."""
    try:
        tree = json.loads((directory / TREE_NAME).read_bytes())
        has_tensors = TENSORS_NAME in manifest.files
        arrays, formats = read_tensors(directory / TENSORS_NAME) if has_tensors else ({}, {})
        has_objects = OBJECTS_NAME in manifest.files
        objects = _read_objects(directory / OBJECTS_NAME, key, allow_pickle=allow_pickle) if has_objects else {}
    except OSError as error:
        raise SerializationError(f"{directory} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise SerializationError(f"{directory / TREE_NAME} does not hold a state: {error}") from error
    return EncodedState(tree, arrays, objects, formats)


def _write_objects(file: ChecksumFile, objects: dict[str, bytes], key: bytes | None) -> None:
    index = json.dumps({name: len(data) for name, data in objects.items()}).encode()
    payload = len(index).to_bytes(_LENGTH_BYTES, "little") + index + b"".join(objects.values())
    file.write(_MAGIC + _signature(payload, key) + payload)


def _signature(payload: bytes, key: bytes | None) -> bytes:
    try:
        return signing.sign(payload, key or signing.load_key())
    except ConfigurationError as error:
        # losing the state would be worse than having to allow its pickled parts by hand
        logger.warning("pickled parts are saved without signature, and reading them will need allow_pickle: %s", error)
        return bytes(signing.SIGNATURE_BYTES)


def _read_objects(path: Path, key: bytes | None, *, allow_pickle: bool | None) -> dict[str, bytes]:
    content = path.read_bytes()
    start = len(_MAGIC) + signing.SIGNATURE_BYTES
    signature, payload = content[len(_MAGIC) : start], content[start:]
    if not signing.pickles_allowed(allow_pickle) and not _is_trusted(payload, signature, key):
        raise UntrustedPickleError(
            f"{path} holds pickled objects that are not signed with this user's key ({signing.key_path()}), and "
            "reading them could run any code; if you trust where it comes from, pass allow_pickle=True or set "
            f"{signing.ALLOW_PICKLE_VARIABLE}=1, or point {signing.KEY_FILE_VARIABLE} at the key that signed it"
        )
    return _split(payload)


def _is_trusted(payload: bytes, signature: bytes, key: bytes | None) -> bool:
    if key is None and not signing.key_path().exists():
        return False  # a key made now could not have signed it
    return signing.is_signed(payload, signature, key or signing.load_key())


def _split(payload: bytes) -> dict[str, bytes]:
    position = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
    objects: dict[str, bytes] = {}
    for name, size in json.loads(payload[_LENGTH_BYTES:position]).items():
        objects[name] = payload[position : position + size]
        position += size
    return objects
