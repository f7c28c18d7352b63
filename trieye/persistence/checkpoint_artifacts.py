"""CheckpointArtifacts: checkpoints that trackers are to get, held until they have them, whatever retention deletes."""

import json
import secrets
from pathlib import Path
from typing import Literal

from trieye.persistence.atomic import new_directory, remove, write_atomic
from trieye.persistence.manifest import MANIFEST_NAME, PARTS_DIRECTORY, read_manifest, write_manifest
from trieye.persistence.mirror.local import link_or_copy

ARTIFACT_PATH = "checkpoints"
"""Folder among the artifacts of a run."""

_RECORDED = "recorded.json"


class CheckpointArtifacts:
    """Makes copies of checkpoints that share their bytes with them; one thread at a time uses it.

    Args:
        directory: Where the copies are; made by the first.
        policy: Which checkpoints trackers get: none of them, each that is the best so far, or all.
        with_parts: Whether they get what grows, such as a replay buffer, too.
    """

    def __init__(self, directory: Path, policy: Literal["none", "best", "all"], *, with_parts: bool) -> None:
        self._directory, self._policy, self._with_parts = directory, policy, with_parts

    def stage(self, checkpoint: Path, *, is_best: bool) -> Path | None:
        """Return a copy to hand to the trackers, None if they are not to get this checkpoint.

        Args:
            checkpoint: Its directory.
            is_best: Whether it is the best one so far.

        Raises:
            SerializationError: The checkpoint is gone, or damaged.
            OSError: There is no room.
        """
        if self._policy == "none" or (self._policy == "best" and not is_best):
            return None
        manifest = read_manifest(checkpoint)
        left_out = (
            [] if self._with_parts else [name for name in manifest.files if name.startswith(f"{PARTS_DIRECTORY}/")]
        )
        files = {name: entry for name, entry in manifest.files.items() if name not in left_out}
        target = self._directory / secrets.token_hex(8) / checkpoint.name
        with new_directory(target) as scratch:
            for name in files:
                link_or_copy(checkpoint / name, scratch / name)
            if left_out:
                metadata = {**manifest.metadata, "left_out": left_out}
                write_manifest(scratch, manifest.model_copy(update={"files": files, "metadata": metadata}))
            else:
                link_or_copy(checkpoint / MANIFEST_NAME, scratch / MANIFEST_NAME)
        return target

    def note_recorded(self, staged: Path, end: int) -> None:
        """Take note that the history asks the trackers, before its index `end`, to fetch a copy."""
        write_atomic(staged.parent / _RECORDED, json.dumps(end).encode())

    def release(self, delivered: int, end: int) -> None:
        """Delete the copies that every tracker has.

        Args:
            delivered: Every tracker has what the history has before this index.
            end: Index after the last item of the history: of a copy without note, left by a kill, that is the latest.
        """
        for directory in self._directory.glob("*/"):
            recorded = _index_in(directory / _RECORDED)
            if recorded is None:
                write_atomic(directory / _RECORDED, json.dumps(end).encode())
            elif recorded <= delivered:
                remove(directory)


def _index_in(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
