"""An encoded state as a directory: state.json, state.safetensors, objects.bin, hub.bin, parts/, and MANIFEST.json."""

import errno
import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trieye.checkpoints.manifest import (
    PARTS_DIRECTORY,
    Manifest,
    check_no_link,
    plain_metadata,
    read_manifest,
    verify,
    write_manifest,
)
from trieye.exceptions import CheckpointError, ConfigurationError, SerializationError, UntrustedPickleError
from trieye.files.atomic import fsync_directory, new_directory, recover, replaced
from trieye.files.checksum import Checksum, ChecksumFile, FileEntry, sums_of, verified, verify_file
from trieye.snapshot import signing
from trieye.snapshot.arrays import read_tensors, write_tensors
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.snapshot.nodes import EncodedState, Part, PartFile
from trieye.snapshot.parts import Growing, SavedParts

logger = logging.getLogger(__name__)

TREE_NAME = "state.json"
TENSORS_NAME = "state.safetensors"
OBJECTS_NAME = "objects.bin"
HUB_NAME = "hub.bin"
VERIFIED_EVERY = 16
"""Saves after which each part that is linked from save to save has been read once: a sixteenth of them at each save."""

_MAX_NAMED = 5
_MAGIC = b"trieye-1"
_LENGTH_BYTES = 8
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS}

FindPart = Callable[[str], tuple[Path, FileEntry] | None]
"""Where a part that was saved earlier lies now, and what its manifest says about it."""


def save_state(  # noqa: PLR0913 - all of them are written
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
    """Write a state as the directory `path`, whole or not at all; what was at `path` is replaced.

    Parts that were saved earlier are linked, not written: files that share their bytes on the disk.

    Args:
        path: The directory.
        encoded: The state.
        step: Its global step.
        sequence: Its number among the saves into the same parent directory.
        metadata: Plain values to keep in the manifest.
        hub_state: Bytes for `read_hub_state`, kept in a file of their own: only who goes on from here reads them.
        key: Signs pickled parts; the user's own key if None.
        checksum: What is kept to find damage.
        find_part: Finds parts that were saved earlier; None: in what is at `path` now.

    Raises:
        CheckpointError: A part that was saved earlier is gone.
        ConfigurationError: There are pickled parts, no key that can sign them, and TRIEYE_ALLOW_PICKLE is not set.
        SerializationError: The disk is full, or the directory cannot be written; the message names it.
    """
    kept = plain_metadata(metadata or {})
    try:
        with new_directory(path) as scratch:
            files = _write_own_files(scratch, encoded, key, checksum)
            if hub_state:
                with ChecksumFile(scratch / HUB_NAME, checksum) as file:
                    file.write(hub_state)
                files[HUB_NAME] = FileEntry.of(file)
            files |= _write_parts(scratch, encoded, checksum, find_part or parts_in([path]))
            write_manifest(scratch, Manifest(step=step, sequence=sequence, files=files, metadata=kept))
    except OSError as error:
        raise SerializationError(
            f"{path} could not be saved ({encoded.size_bytes} bytes): {error.strerror or error}; "
            "earlier saves are untouched"
        ) from error
    return path


def load_state(path: Path, *, key: bytes | None = None, allow_pickle: bool | None = None) -> EncodedState:
    """Return the state of the directory `path`; each file is verified while it is read, parts when they are used.

    Raises:
        CheckpointError: A file is missing or damaged.
        UntrustedPickleError: It has pickled parts that this user did not sign, and they were not allowed.
        SerializationError: It cannot be read for another reason.
    """
    check_no_link(path)
    return _read_state(path, read_manifest(path), key=key, allow_pickle=allow_pickle)


def read_hub_state(path: Path) -> bytes:
    """Return the `hub_state` of the directory `path`; empty if it has none.

    Raises:
        CheckpointError: It is missing or damaged.
    """
    entry = read_manifest(path).files.get(HUB_NAME)
    if entry is None:
        return b""
    with verified(path / HUB_NAME, entry) as file:
        return file.read(entry.size_bytes)


def damaged_parts(path: Path) -> set[str]:
    """Return which of the parts are damaged whose turn it is to be read; says so in the log.

    Parts are linked from save to save, all names of the same bytes, so that nothing else would notice. Which ones are
    read depends on the number of the save alone: a sixteenth of them at each, each of them at one of 16.
    """
    try:
        manifest = read_manifest(path)
    except SerializationError:  # deleted by now, or none yet: there is nothing to be linked
        return set()
    found = set()
    for name in manifest.part_names:
        if zlib.crc32(name.encode()) % VERIFIED_EVERY == manifest.sequence % VERIFIED_EVERY:
            try:
                verify_file(path / part_file(name), manifest.files[part_file(name)])
            except CheckpointError as error:
                logger.warning("%s; the next save writes anew what is in it", error)
                found.add(name)
            except SerializationError as error:  # its turn comes again
                logger.warning("%s; it is not known whether it is whole", error)
    return found


def save_parts(path: Path, growing: Growing) -> Path:
    """Write an object as the directory `path`, whole or not at all; of what is there already only the new is written.

    Raises:
        SerializationError: The disk is full, or the directory cannot be written; what was there is untouched.
    """
    recover(path.parent, path.name)
    known, sequence = _known(path)
    return save_state(path, encode(growing, copy=False, known=known), sequence=sequence + 1)


def load_parts(path: Path) -> SavedParts:
    """Verify the directory `path` and return what `save_parts` wrote, for the object's `load_state_dict`.

    Where a kill ended `save_parts` while it replaced the directory, that is what was there before.

    Raises:
        CheckpointError: There is no such directory, or a file of it is missing or damaged.
        SerializationError: It holds something else.
    """
    place = replaced(path.parent).get(path.name, path)
    manifest = verify(place)  # all of it, before anything is taken over
    encoded = load_state(place)
    encoded.parts.update({name: PartFile(place / part_file(name), None) for name in manifest.part_names})
    held: Any = decode(encoded, copy=False)
    if not isinstance(held, SavedParts):
        raise SerializationError(f"{path} holds a {type(held).__name__} and not what save() of a buffer wrote")
    return held


def has_parts(path: Path) -> bool:
    """Tell whether something is at `path`, or was when a kill ended `save_parts`; `load_parts` finds out what."""
    if path.name in replaced(path.parent):
        return True
    return path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None)


def _known(path: Path) -> tuple[set[str], int]:
    """Return the parts in a directory that can be linked, and the number of the save that is there."""
    try:
        manifest = read_manifest(path)
    except CheckpointError:  # none yet, or not whole: everything is written
        return set(), 0
    find = parts_in([path])
    # what somebody has deleted or cut is written again
    there = {name for name in manifest.part_names if find(name) is not None}
    return there - damaged_parts(path), manifest.sequence


def peek(path: Path, *names: str) -> Any:
    """Return plain data from inside the state in a directory, without its arrays; nothing is verified.

    Args:
        path: The directory.
        *names: Keys that lead there.

    Raises:
        SerializationError: There is no such thing, or it is no plain data.
    """
    try:
        node = json.loads((path / TREE_NAME).read_bytes())
        for name in names:
            node = node[name]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise SerializationError(f"{path} does not hold {'/'.join(names)}: {error}") from error
    return decode(EncodedState(node))


def part_file(name: str) -> str:
    """Return the name of the file that holds a part, relative to the directory of the state."""
    return f"{PARTS_DIRECTORY}/{name}.safetensors"


def parts_in(directories: list[Path]) -> FindPart:
    """Return what finds parts in saved directories, the first ones first; those without whole manifest are left out."""
    files: dict[Path, Mapping[str, FileEntry]] = {}  # there may be thousands of directories, and the first will do

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
    entries: dict[str, FileEntry] = {}
    with ChecksumFile(directory / TREE_NAME, checksum) as file:
        file.write(json.dumps(encoded.tree, allow_nan=False, separators=(",", ":")).encode())
    entries[TREE_NAME] = FileEntry.of(file)
    if encoded.arrays:
        with ChecksumFile(directory / TENSORS_NAME, checksum) as file:
            write_tensors(file, encoded.arrays, encoded.formats)
        entries[TENSORS_NAME] = FileEntry.of(file)
    if encoded.objects:
        with ChecksumFile(directory / OBJECTS_NAME, checksum) as file:
            _write_objects(file, encoded.objects, key)
        entries[OBJECTS_NAME] = FileEntry.of(file)
    return entries


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
            with ChecksumFile(target, checksum) as file:
                write_tensors(file, dict(part), {})
            entries[part_file(name)] = FileEntry.of(file)
            continue
        found = find_part(name)
        if found is None:
            raise CheckpointError(f"part {name!r} was saved earlier and is gone; the next save writes everything anew")
        _link(found[0], target)
        entries[part_file(name)] = _with_sums(target, found[1], checksum)
    fsync_directory(directory / PARTS_DIRECTORY)
    return entries


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)  # a file system without hard links
        with target.open("rb") as file:
            os.fsync(file.fileno())


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
        if HUB_NAME in files:  # without it the run could not go on from here
            verify_file(directory / HUB_NAME, files[HUB_NAME])
    except ConfigurationError:  # a key that cannot be used; it is a ValueError, too
        raise
    except (ValueError, LookupError, RecursionError) as error:
        raise SerializationError(f"{directory / TREE_NAME} does not hold a state: {error}") from error
    places = {name: part_file(name) for name in manifest.part_names}
    parts: dict[str, Part] = {name: PartFile(directory / place, files[place]) for name, place in places.items()}
    return EncodedState(tree, arrays, objects, formats, parts)


def _write_objects(file: ChecksumFile, objects: dict[str, bytes], key: bytes | None) -> None:
    index = json.dumps({name: len(data) for name, data in objects.items()}).encode()
    payload = len(index).to_bytes(_LENGTH_BYTES, "little") + index + b"".join(objects.values())
    try:
        signature = signing.sign(payload, key or signing.load_key())
    except ConfigurationError as error:
        if not signing.pickles_allowed(None):  # nobody could go on from it
            named = ", ".join(sorted(objects)[:_MAX_NAMED])
            raise ConfigurationError(
                f"{named}: saved as pickle, which cannot be signed: {error}; or set "
                f"{signing.ALLOW_PICKLE_VARIABLE}=1, now and when it is read"
            ) from error
        signature = bytes(signing.SIGNATURE_BYTES)
    file.write(_MAGIC + signature + payload)


def _checked_objects(content: bytes, path: Path, key: bytes | None, *, allow_pickle: bool | None) -> dict[str, bytes]:
    start = len(_MAGIC) + signing.SIGNATURE_BYTES
    signature, payload = content[len(_MAGIC) : start], content[start:]
    if not signing.pickles_allowed(allow_pickle) and not _is_trusted(payload, signature, key):
        raise UntrustedPickleError(
            f"{path} holds pickled objects that are not signed with this user's key ({signing.key_source()}), and "
            "reading them could run any code; if you trust where it comes from, pass allow_pickle=True or set "
            f"{signing.ALLOW_PICKLE_VARIABLE}=1, or give {signing.KEY_VARIABLE} or {signing.KEY_FILE_VARIABLE} the key "
            "that signed it"
        )
    return _split(payload)


def _is_trusted(payload: bytes, signature: bytes, key: bytes | None) -> bool:
    known = key or signing.existing_key()
    return known is not None and signing.is_signed(payload, signature, known)


def _split(payload: bytes) -> dict[str, bytes]:
    position = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
    objects: dict[str, bytes] = {}
    for name, size in json.loads(payload[_LENGTH_BYTES:position]).items():
        objects[name] = payload[position : position + size]
        position += size
    return objects
