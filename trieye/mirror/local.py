"""The run's side of a mirror: what there is to upload, copies that hold still, and what it knows of its mirror."""

import contextlib
import os
import re
import secrets
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trieye.checkpoints.manifest import MANIFEST_NAME, Manifest, read_manifest
from trieye.exceptions import JournalError, SerializationError
from trieye.files.atomic import link_or_copy, remove, write_atomic
from trieye.files.run_files import (
    BUFFER_PREFIX,
    BUFFERS,
    CHECKPOINT_PREFIX,
    CHECKPOINTS,
    JOURNAL,
    RUN_RECORD,
    RunFiles,
)
from trieye.journal.scan import connect_read_only
from trieye.journal.schema import checked_name
from trieye.mirror.layout import COMPOSED_CONFIG, CONFIG, SaveKeys, part_keys, save_key

MIRROR_DIRECTORY = "mirror"
_PREFIX = {CHECKPOINTS: CHECKPOINT_PREFIX, BUFFERS: BUFFER_PREFIX}


class MirrorRecord(BaseModel):
    """State of the mirror that the directory of a run records, because no listing of the mirror shows it.

    Attributes:
        generation: The newest state of the mirror that this directory wrote, or began with.
        elsewhere: What the mirror has of the run and this directory never had, the oldest first.
        note: Words about a restore that the mirror logs when the run opens.
        restoring: A restore began here, and is not complete.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    generation: int = Field(default=0, ge=0)
    elsewhere: SaveKeys = Field(default_factory=list)
    note: str | None = None
    restoring: bool = False


@dataclass(frozen=True)
class LocalSave:
    """A checkpoint or a buffer on the disk.

    Attributes:
        path: Its directory.
        folder: Which of the two it is.
        key: Its key in the mirror.
        manifest: What is in it.
        parts: Keys of those of its files that it shares with others.
    """

    path: Path
    folder: str
    key: str
    manifest: Manifest
    parts: frozenset[str]


class LocalRun:
    """Reads the directory of a run for its mirror; what it writes is in `<run>/mirror/`.

    Args:
        paths: File names of the run.

    Attributes:
        folders: Where saved directories lie, by their folder in the mirror.
        files: What a state of the mirror has besides the history, by its name there.
    """

    def __init__(self, paths: RunFiles) -> None:
        self.paths = paths
        self.directory = paths.run_base_dir / MIRROR_DIRECTORY
        self.folders = {CHECKPOINTS: paths.checkpoint_dir, BUFFERS: paths.buffer_dir}
        self.files = {
            COMPOSED_CONFIG: paths.composed_config_path,
            CONFIG: paths.config_path,
            JOURNAL: paths.journal_path,
            RUN_RECORD: paths.run_record_path,  # the last one: it makes a directory that of a run
        }
        self._record_path = self.directory / "known.json"
        self._seen: dict[tuple[str, int, int], LocalSave] = {}

    def record(self) -> MirrorRecord:
        """Return the record of the directory; an empty one if the directory never had a mirror.

        Raises:
            SerializationError: It cannot be read; nobody knows then whether the mirror has this run or a later one.
        """
        try:
            return MirrorRecord.model_validate_json(self._record_path.read_bytes())
        except FileNotFoundError:
            return MirrorRecord()
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a whole record"
            raise SerializationError(
                f"{self._record_path}, which says what this directory has mirrored, cannot be read: {reason}; restore "
                "it from a backup, or delete it and give another persistence.mirror, which then gets all of the run"
            ) from error

    def keep(self, record: MirrorRecord) -> None:
        """Write down what is known of the mirror."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._record_path, record.model_dump_json(indent=1).encode())

    def is_lost(self) -> bool:
        """Tell whether there is nothing of the run here, or only what a restore that was killed has brought.

        Raises:
            SerializationError: What is known of the mirror cannot be read.
        """
        if self.record().restoring:
            return True
        files, folders = (
            [self.paths.run_record_path, self.paths.journal_path],
            [*self.folders.values(), self.paths.history_dir],
        )
        return not any(path.exists() for path in files) and not any(any(folder.glob("*")) for folder in folders)

    def saves(self) -> list[LocalSave]:
        """Return what is saved, the oldest first; a directory without a readable manifest is left out."""
        seen = {}
        for folder, directory in self.folders.items():
            for entry in _entries(directory, _PREFIX[folder]):
                try:
                    about = entry.stat(follow_symlinks=False)
                    mark = (entry.path, about.st_ino, about.st_mtime_ns)  # there may be thousands of directories
                    seen[mark] = self._seen.get(mark) or _read(folder, Path(entry.path))
                except (OSError, SerializationError):  # being deleted, or damaged
                    continue
        self._seen = seen
        return sorted(seen.values(), key=lambda save: (save.manifest.sequence, save.manifest.created, save.path.name))

    @contextlib.contextmanager
    def outgoing(self) -> Iterator[Path]:
        """Give a directory for copies, on the file system of the run; it vanishes at the end."""
        directory = self.directory / f"outgoing-{os.getpid()}-{secrets.token_hex(4)}"
        directory.mkdir(parents=True)
        try:
            yield directory
        finally:
            remove(directory)

    def clean_up(self) -> None:
        """Delete what processes that were killed left behind; nobody else may be uploading."""
        for leftover in self.directory.glob("outgoing-*"):
            remove(leftover)

    def hold(self, save: LocalSave, directory: Path) -> bool:
        """Link the files of a saved directory into another directory, so that retention may delete the first one.

        Returns:
            Whether all of it was there; somebody may have deleted it, a file of it, or saved another one in its place.
        """
        names = [*save.manifest.files, MANIFEST_NAME]
        if not all(link_if_there(save.path / name, directory / name) for name in names):
            return False
        return save_key(save.folder, save.path.name, _crc32(directory)) == save.key

    def copy_journal(self, target: Path) -> list[str]:
        """Copy the journal as it is at one moment, and return which files of the history it knows.

        The hub, which writes the journal, is not held up. The copy goes through SQLite: if this process opened and
        closed the file itself, the hub would lose its locks.

        Raises:
            JournalError: It cannot be read now.
        """
        with (
            contextlib.closing(connect_read_only(self.paths.journal_path)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            try:
                copy.execute("PRAGMA synchronous = OFF")  # the upload deletes the copy
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file, whatever the journal has beside it
                return [checked_name(name) for (name,) in copy.execute("SELECT name FROM segments ORDER BY first")]
            except sqlite3.Error as error:
                raise JournalError(f"the journal {self.paths.journal_path} cannot be copied: {error}") from error


def link_if_there(source: Path, target: Path) -> bool:
    """Link a file to a new name, and tell whether there was such a file."""
    target.unlink(missing_ok=True)
    try:
        link_or_copy(source, target)
    except FileNotFoundError:
        return False
    return True


def _crc32(directory: Path) -> int:
    return zlib.crc32((directory / MANIFEST_NAME).read_bytes())


def _read(folder: str, path: Path) -> LocalSave:
    key = save_key(folder, path.name, _crc32(path))
    manifest = read_manifest(path).model_copy(update={"metadata": {}})  # the state of the hub, which may be large
    return LocalSave(path, folder, key, manifest, part_keys(manifest))


def _entries(directory: Path, prefix: str) -> list[os.DirEntry[str]]:
    if not directory.is_dir():
        return []
    name = re.compile(re.escape(prefix) + r"\d+")
    with os.scandir(directory) as entries:
        return [entry for entry in entries if name.fullmatch(entry.name) and not entry.is_symlink()]
