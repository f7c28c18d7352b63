"""Encoded states as directories: state.json, state.safetensors, objects.bin, hub.bin, parts/, and MANIFEST.json."""

import contextlib
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trieye.checkpoints.manifest import (
    MANIFEST_NAME,
    PARTS_DIRECTORY,
    Manifest,
    check_no_link,
    plain_metadata,
    read_manifest,
    verify,
    write_manifest,
)
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.atomic import fsync_directory, link_or_copy, new_directory, recover, replaced
from trieye.files.checksum import Checksum, ChecksumFile, FileEntry, sums_of, verified, verify_file
from trieye.snapshot import signing
from trieye.snapshot.arrays import read_tensors, write_tensors
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, Part, PartFile
from trieye.snapshot.parts import IncrementalState, SavedParts

logger = logging.getLogger(__name__)

TREE_NAME = "state.json"
TENSORS_NAME = "state.safetensors"
OBJECTS_NAME = "objects.bin"
HUB_NAME = "hub.bin"
VERIFIED_EVERY = 16
"""Number of saves within which each linked part is verified once: a sixteenth of the parts at each save."""

_MAX_NAMED = 5
_SAVED_PARTS_NAMES = {MANIFEST_NAME, TREE_NAME, TENSORS_NAME, OBJECTS_NAME, PARTS_DIRECTORY}
_MAGIC = b"trieye-1"
_LENGTH_BYTES = 8

FindPart = Callable[[str], tuple[Path, FileEntry] | None]
"""Returns the path of a previously saved part and its manifest entry, or None."""


def save_state(  # noqa: PLR0913 - each argument is part of the written state
    path: Path,
    encoded: EncodedState,
    *,
    step: int | None = None,
    sequence: int = 0,
    metadata: Mapping[str, Any] | None = None,
    hub_state: bytes = b"",
    key: bytes | None = None,
    checksum: Checksum = "crc32",
    find_part: FindPart | None = None,
) -> Path:
    """Write a state atomically as the directory `path`, replacing an existing one.

    Parts from an earlier save are hard-linked instead of written.

    Args:
        path: The directory.
        encoded: The state.
        step: Global step of the state.
        sequence: Number of the save within the parent directory.
        metadata: Plain values to store in the manifest.
        hub_state: Bytes for `read_hub_state`, in a separate file that only a resuming hub reads.
        key: Key that signs pickled parts; None: the user's key.
        checksum: Checksums to store for damage detection.
        find_part: Finds parts of earlier saves; None searches the present content of `path`.

    Raises:
        CheckpointError: A part of an earlier save is missing.
        ConfigurationError: There are pickled parts, no key that can sign them, and TRIEYE_ALLOW_PICKLE is not set.
        SerializationError: The disk is full, or the directory cannot be written; the message names it.
    """
    plain = plain_metadata(metadata or {})
    try:
        with new_directory(path) as scratch:
            files = _write_own_files(scratch, encoded, key, checksum)
            if hub_state:
                files[HUB_NAME] = _written(scratch / HUB_NAME, checksum, lambda file: file.write(hub_state))
            files |= _write_parts(scratch, encoded, checksum, find_part or parts_in([path]))
            write_manifest(scratch, Manifest(step=step, sequence=sequence, files=files, metadata=plain))
    except OSError as error:
        raise SerializationError(
            f"{path} could not be saved ({encoded.size_bytes} bytes): {error.strerror or error}; "
            "earlier saves are unchanged"
        ) from error
    return path


def load_state(path: Path, *, key: bytes | None = None, allow_pickle: bool | None = None) -> EncodedState:
    """Return the state in the directory `path`; files are verified during the read, parts on first use.

    Raises:
        CheckpointError: A file is missing or damaged.
        UntrustedPickleError: Pickled parts are not signed by this user, and `allow_pickle` is off.
        SerializationError: The directory cannot be read for another reason.
    """
    check_no_link(path)
    return _read_state(path, read_manifest(path), key=key, allow_pickle=allow_pickle)


def read_hub_state(path: Path) -> bytes:
    """Return the `hub_state` in the directory `path`; empty if none was saved.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    entry = read_manifest(path).files.get(HUB_NAME)
    if entry is None:
        return b""
    with verified(path / HUB_NAME, entry) as file:
        return file.read(entry.size_bytes)


def damaged_parts(path: Path) -> set[str]:
    """Verify the parts that are due in this save, and return and log the damaged ones.

    Successive saves link the same part files, so nothing else would detect damage. The sequence number of the save
    selects a sixteenth of the parts; each part is verified in one of 16 saves.
    """
    try:
        manifest = read_manifest(path)
    except SerializationError:  # deleted or not yet written: no parts to link
        return set()
    damaged_names = set()
    for name in manifest.part_names:
        if zlib.crc32(name.encode()) % VERIFIED_EVERY == manifest.sequence % VERIFIED_EVERY:
            try:
                verify_file(path / part_file(name), manifest.files[part_file(name)])
            except CheckpointError as error:
                logger.warning("%s; the next save rewrites the file", error)
                damaged_names.add(name)
            except SerializationError as error:  # a later save verifies the part again
                logger.warning("%s; a later save verifies the file", error)
    return damaged_names


def save_parts(path: Path, state: IncrementalState) -> Path:
    """Write an object atomically as the directory `path`; parts that exist there are linked instead of written.

    If `path` is a symbolic link, its target is written.

    Raises:
        ConfigurationError: `path` is a file, a directory with content other than an earlier save, or contains the
            working directory.
        SerializationError: The disk is full, or the directory cannot be read or written; its content is unchanged.
    """
    with _reporting_access(path):
        path = path.resolve()
        recover(path.parent, path.name)
        manifest = _earlier_save(path)
        linkable = _linkable_parts(path, manifest)
    return save_state(path, encode(state, copy=False, known_parts=linkable), sequence=manifest.sequence + 1)


def load_parts(path: Path) -> SavedParts:
    """Verify the directory `path` and return the output of `save_parts`, for the object's `load_state_dict`.

    If a crash interrupted `save_parts` while it replaced the directory, this is the previous content.

    Raises:
        CheckpointError: The directory does not exist, or one of its files is missing or damaged.
        SerializationError: The directory contains another kind of state, or cannot be read.
    """
    with _reporting_access(path):
        path = path.resolve()
        directory = replaced(path.parent).get(path.name, path)
    manifest = verify(directory)  # everything, before the object changes
    encoded = load_state(directory)
    encoded.parts.update({name: PartFile(directory / part_file(name), None) for name in manifest.part_names})
    state: Any = decode(encoded, copy=False)
    if not isinstance(state, SavedParts):
        raise SerializationError(f"{path} contains a {type(state).__name__}, not the output of a buffer's save()")
    return state


def has_parts(path: Path) -> bool:
    """Return whether `path` has content for `load_parts`, possibly moved by an interrupted `save_parts`.

    Raises:
        SerializationError: The directory cannot be read.
    """
    with _reporting_access(path):
        path = path.resolve()
        if path.name in replaced(path.parent):
            return True
        return path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None)


@contextlib.contextmanager
def _reporting_access(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        raise SerializationError(f"{path} cannot be accessed: {error}") from error


def _earlier_save(path: Path) -> Manifest:
    """Return the manifest of the output of `save_parts`, or an empty one; raise a ConfigurationError for other content.

    A damaged save has its manifest, too.
    """
    if path.is_file():
        raise ConfigurationError(f"{path} is a file; choose a directory")
    names = {child.name for child in path.iterdir()} if path.exists() else set()
    foreign_names = names if MANIFEST_NAME not in names else names - _SAVED_PARTS_NAMES
    parts = path / PARTS_DIRECTORY
    if parts.is_dir() and not foreign_names:
        foreign_names = {f"{PARTS_DIRECTORY}/{file.name}" for file in parts.iterdir() if file.suffix != ".safetensors"}
    if foreign_names:
        listing = ", ".join(sorted(foreign_names)[:_MAX_NAMED])
        raise ConfigurationError(f"{path} is not an earlier save: it contains {listing}; choose another directory")
    with contextlib.suppress(FileNotFoundError):  # the working directory was deleted
        if Path.cwd().is_relative_to(path):  # a save replaces the directory
            raise ConfigurationError(f"{path} is or contains the working directory; choose another directory")
    try:
        manifest = read_manifest(path)
    except CheckpointError:  # no save yet, or a damaged one
        return Manifest()
    if manifest.step is not None:
        raise ConfigurationError(f"{path} is the checkpoint of a run at step {manifest.step}; choose another directory")
    return manifest


def _linkable_parts(path: Path, manifest: Manifest) -> set[str]:
    """Return the names of the intact parts in a directory; deleted or truncated parts are written again."""
    find_part = parts_in([path])
    return {name for name in manifest.part_names if find_part(name) is not None} - damaged_parts(path)


def peek(path: Path, *names: str) -> Any:
    """Return plain data from within the state in a directory, without verification and without arrays.

    Args:
        path: The directory.
        *names: Path of keys.

    Raises:
        SerializationError: The value does not exist, or is not plain data.
    """
    try:
        node = json.loads((path / TREE_NAME).read_bytes())
        for name in names:
            node = node[name]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SerializationError(
            f"the checkpoint {path} lacks {'/'.join(names)} ({error!r}); `trieye verify RUN` checks the run for damage"
        ) from error
    return decode(EncodedState(node))


def part_file(name: str) -> str:
    """Return the file name of a part, relative to the directory of the state."""
    return f"{PARTS_DIRECTORY}/{name}.safetensors"


def parts_in(directories: list[Path]) -> FindPart:
    """Return a function that searches directories in order for a part; it skips damaged manifests."""
    files: dict[Path, Mapping[str, FileEntry]] = {}  # read lazily: the first of thousands may have the part

    def find(name: str) -> tuple[Path, FileEntry] | None:
        file_name = part_file(name)
        for directory in directories:
            if directory not in files:
                files[directory] = _files_of(directory)
            entry = files[directory].get(file_name)
            path = directory / file_name
            if entry is not None and path.is_file() and path.stat().st_size == entry.size_bytes:
                return path, entry
        return None

    return find


def _files_of(directory: Path) -> Mapping[str, FileEntry]:
    try:
        return read_manifest(directory).files
    except SerializationError:
        return {}


def _write_own_files(
    directory: Path, encoded: EncodedState, key: bytes | None, checksum: Checksum
) -> dict[str, FileEntry]:
    tree = json.dumps(encoded.tree, allow_nan=False, separators=(",", ":")).encode()
    writers: dict[str, Callable[[ChecksumFile], None]] = {TREE_NAME: lambda file: file.write(tree)}
    if encoded.arrays:
        writers[TENSORS_NAME] = lambda file: write_tensors(file, encoded.arrays, encoded.formats)
    if encoded.objects:
        writers[OBJECTS_NAME] = lambda file: _write_objects(file, encoded.objects, key)
    return {name: _written(directory / name, checksum, write) for name, write in writers.items()}


def _written(path: Path, checksum: Checksum, write: Callable[[ChecksumFile], None]) -> FileEntry:
    with ChecksumFile(path, checksum) as file:
        write(file)
    return FileEntry.of(file)


def _write_parts(
    directory: Path, encoded: EncodedState, checksum: Checksum, find_part: FindPart
) -> dict[str, FileEntry]:
    entries: dict[str, FileEntry] = {}
    if not encoded.parts:
        return entries
    (directory / PARTS_DIRECTORY).mkdir()
    for name, part in encoded.parts.items():
        target = directory / part_file(name)
        if isinstance(part, Mapping):
            entries[part_file(name)] = _written(target, checksum, partial(write_tensors, arrays=dict(part), formats={}))
            continue
        stored_part = find_part(name)
        if stored_part is None:
            raise CheckpointError(f"part {name!r} of an earlier save is missing; the next save writes everything again")
        link_or_copy(stored_part[0], target)
        entries[part_file(name)] = _with_sums(target, stored_part[1], checksum)
    fsync_directory(directory / PARTS_DIRECTORY)
    return entries


def _with_sums(path: Path, entry: FileEntry, checksum: Checksum) -> FileEntry:
    if checksum == "crc32" or entry.sha256 is not None:
        return entry
    return entry.model_copy(update={"sha256": sums_of(path, checksum)[2]})


def _read_state(directory: Path, manifest: Manifest, *, key: bytes | None, allow_pickle: bool | None) -> EncodedState:
    files = manifest.files
    arrays: dict[str, NDArray[Any]] = {}
    formats: dict[str, str] = {}
    objects: dict[str, bytes] = {}
    try:
        with verified(directory / TREE_NAME, files[TREE_NAME]) as file:
            tree = json.loads(file.read(files[TREE_NAME].size_bytes))
        if TENSORS_NAME in files:
            with verified(directory / TENSORS_NAME, files[TENSORS_NAME]) as file:
                arrays, formats = read_tensors(file, directory / TENSORS_NAME)
        if OBJECTS_NAME in files:
            with verified(directory / OBJECTS_NAME, files[OBJECTS_NAME]) as file:
                content = file.read(files[OBJECTS_NAME].size_bytes)
            objects = _checked_objects(content, directory / OBJECTS_NAME, key, allow_pickle=allow_pickle)
        if HUB_NAME in files:  # resuming needs it
            verify_file(directory / HUB_NAME, files[HUB_NAME])
    except ConfigurationError:  # an unusable key; it is a ValueError, too
        raise
    except (ValueError, LookupError, RecursionError) as error:
        raise SerializationError(f"{directory / TREE_NAME} does not contain a state: {error}") from error
    file_names = {name: part_file(name) for name in manifest.part_names}
    parts: dict[str, Part] = {name: PartFile(directory / file, files[file]) for name, file in file_names.items()}
    return EncodedState(tree, arrays, objects, formats, parts)


def _write_objects(file: ChecksumFile, objects: dict[str, bytes], key: bytes | None) -> None:
    index = json.dumps({name: len(data) for name, data in objects.items()}).encode()
    payload = len(index).to_bytes(_LENGTH_BYTES, "little") + index + b"".join(objects.values())
    try:
        signature = signing.sign(payload, key or signing.load_key())
    except ConfigurationError as error:
        if not signing.pickles_allowed(None):  # no run could resume from an unsigned pickle
            names = ", ".join(sorted(objects)[:_MAX_NAMED])
            raise ConfigurationError(
                f"{names}: saved as pickle, which cannot be signed: {error}; or set "
                f"{signing.ALLOW_PICKLE_VARIABLE}=1 both for saving and for loading"
            ) from error
        signature = bytes(signing.SIGNATURE_BYTES)
    file.write(_MAGIC + signature + payload)


def _checked_objects(content: bytes, path: Path, key: bytes | None, *, allow_pickle: bool | None) -> dict[str, bytes]:
    start = len(_MAGIC) + signing.SIGNATURE_BYTES
    signature, payload = content[len(_MAGIC) : start], content[start:]
    if not signing.pickles_allowed(allow_pickle) and not _is_trusted(payload, signature, key):
        raise UntrustedPickleError(
            f"{path} contains pickled objects that are not signed with this user's key ({signing.key_source()}), and "
            "loading them could execute arbitrary code; if you trust the source, pass allow_pickle=True, set "
            f"{signing.ALLOW_PICKLE_VARIABLE}=1, or set {signing.KEY_VARIABLE} or {signing.KEY_FILE_VARIABLE} to the "
            "key that signed them"
        )
    return _split(payload)


def _is_trusted(payload: bytes, signature: bytes, key: bytes | None) -> bool:
    user_key = key or signing.existing_key()
    return user_key is not None and signing.is_signed(payload, signature, user_key)


def _split(payload: bytes) -> dict[str, bytes]:
    position = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
    objects: dict[str, bytes] = {}
    for name, size in json.loads(payload[_LENGTH_BYTES:position]).items():
        objects[name] = payload[position : position + size]
        position += size
    return objects
