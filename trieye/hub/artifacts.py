"""Artifacts: files and checkpoints that trackers are to get, held in the directory of the run until they have them."""

import contextlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, read_manifest, write_manifest
from trieye.exceptions import SerializationError
from trieye.files.atomic import link_or_copy, new_directory, remove

CHECKPOINTS_PATH = "checkpoints"
"""Folder for checkpoints among the artifacts of a run."""

_RECORDED = "recorded.json"
_CLONE_BYTES = 64 << 20


class Artifacts:
    """Makes copies: of checkpoints, which never change, with the same bytes; of all else, shared where the disk can.

    Each copy is alone in a directory, so that it keeps its name. Safe to use from several threads.

    Args:
        directory: Where the copies are; made by the first.
        policy: Which checkpoints trackers get: none of them, each that is the best so far, or all.
        with_parts: Whether they get what grows, such as a replay buffer, too.
    """

    def __init__(self, directory: Path, policy: Literal["none", "best", "all"], *, with_parts: bool) -> None:
        self._directory, self._policy, self._with_parts = directory, policy, with_parts
        # each directory and the index from which on it is not needed; None: its copy is being made
        self._held: dict[Path, int | None] = {}
        self._knows_earlier = False

    def hold(self, path: Path) -> Path:
        """Return a copy of a file, or of a directory with all it holds, that the user may change or delete meanwhile.

        Raises:
            SerializationError: It cannot be read, or there is no room for a copy.
        """
        # a lone surrogate, as a file name has that is no UTF-8, cannot be recorded
        name = path.name.encode("utf-8", "backslashreplace").decode() or "root"
        try:
            with self._place(name) as copy:
                if path.is_dir():
                    shutil.copytree(
                        path, copy, ignore=self._not_itself, copy_function=_clone, ignore_dangling_symlinks=True
                    )
                else:
                    _clone(path, copy)
        except OSError as error:
            raise SerializationError(
                f"artifact {path} cannot be copied to {self._directory}: {_reason(error)}"
            ) from error
        return copy

    def stage(self, checkpoint: Path, *, is_best: bool) -> Path | None:
        """Return a copy of a checkpoint to hand to the trackers, None if they are not to get it.

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
        with self._place(checkpoint.name) as target, new_directory(target) as scratch:
            for name in files:
                link_or_copy(checkpoint / name, scratch / name)
            if left_out:
                metadata = {**manifest.metadata, "left_out": left_out}
                write_manifest(scratch, manifest.model_copy(update={"files": files, "metadata": metadata}))
            else:
                link_or_copy(checkpoint / MANIFEST_NAME, scratch / MANIFEST_NAME)
        return target

    def note_recorded(self, copy: Path, end: int) -> None:
        """Take note that the history asks the trackers, before its index `end`, to fetch a copy."""
        with contextlib.suppress(OSError):  # the next attempt takes the end of the history for it
            (copy.parent / _RECORDED).write_text(json.dumps(end))
        self._held[copy.parent] = end

    def drop(self, copy: Path) -> None:
        """Delete a copy."""
        self._drop(copy.parent)

    def has_any(self, end: int) -> bool:
        """Tell whether there are copies, those of earlier attempts included.

        Args:
            end: Index after the last item of the history: of a copy without note, left by a kill, that is the latest.
        """
        if not self._knows_earlier:
            self._knows_earlier = True
            earlier = [place for place in self._directory.glob("*/") if place not in self._held]
            self._held.update({place: _index_in(place / _RECORDED, end) for place in earlier})
        return bool(self._held)

    def release(self, delivered: int) -> None:
        """Delete the copies that every tracker has.

        Args:
            delivered: Every tracker has what the history has before this index.
        """
        for place, recorded in list(self._held.items()):
            if recorded is not None and recorded <= delivered:
                self._drop(place)

    def _drop(self, place: Path) -> None:
        remove(place)
        self._held.pop(place, None)

    @contextlib.contextmanager
    def _place(self, name: str) -> Iterator[Path]:
        """Give a path of that name that nobody else has; what is there is deleted if the block raises."""
        place = self._directory / secrets.token_hex(8)
        self._held[place] = None
        try:
            place.mkdir(parents=True)
            yield place / name
        except BaseException:
            self._drop(place)
            raise

    def _not_itself(self, directory: str, names: Iterable[str]) -> set[str]:
        return {name for name in names if Path(directory, name) == self._directory}


def _clone(source: str | Path, target: str | Path) -> None:
    """Copy a file; on file systems that can (XFS, Btrfs), both share their bytes until one of them is changed."""
    if not Path(source).is_file():
        raise OSError(f"{source} is no file on {socket.gethostname()}")
    done = 0
    if hasattr(os, "copy_file_range"):
        with open(source, "rb") as held, open(target, "xb") as copy, contextlib.suppress(OSError):  # noqa: PTH123 - either
            while num_bytes := os.copy_file_range(held.fileno(), copy.fileno(), _CLONE_BYTES):
                done += num_bytes
    if done < os.stat(source).st_size or not done:  # noqa: PTH116 - either; files that the kernel makes have no size
        shutil.copyfile(source, target)


def _reason(error: OSError) -> str:
    if isinstance(error, shutil.Error):  # one for each file: (source, target, why)
        source, _, why = error.args[0][0]
        return f"{source}: {why}"
    return error.strerror or str(error)


def _index_in(path: Path, otherwise: int) -> int:
    try:
        return int(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return otherwise
