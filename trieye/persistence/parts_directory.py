"""One growing object as a directory of its own; a run's checkpoint holds the same files beside others."""

from pathlib import Path
from typing import Any

from trieye.exceptions import CheckpointError, SerializationError
from trieye.persistence.atomic import recover, replaced
from trieye.persistence.decoding import decode
from trieye.persistence.encoding import encode
from trieye.persistence.manifest import read_manifest, verify
from trieye.persistence.nodes import PartFile
from trieye.persistence.parts import Growing, SavedParts
from trieye.persistence.state_directory import damaged_parts, load_state, part_file, parts_in, save_state


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
    """Return the parts that can be linked, and the number of the save that is there."""
    try:
        manifest = read_manifest(path)
    except CheckpointError:  # none yet, or not whole: everything is written
        return set(), 0
    find = parts_in([path])
    # what somebody has deleted or cut is written again
    there = {name for name in manifest.part_names if find(name) is not None}
    return there - damaged_parts(path), manifest.sequence
