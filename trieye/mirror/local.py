"""The run directory as the source of a mirror: saved directories, stable copies, and the record of the mirror."""

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
    """Mirror state that the run directory records, because a listing of the mirror does not show it.

    Attributes:
        generation: The newest state that this directory uploaded or was restored from.
        elsewhere: Keys of saved directories that exist in the mirror, but never in this directory, the oldest first.
        note: Text about a restore, logged and deleted when the run opens for the first time after it.
        restoring: Whether a restore into this directory has started, but not completed.
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
        folder: `checkpoints` or `buffers`.
        key: Its key in the mirror.
        manifest: Its manifest without mappings in the metadata.
        parts: Keys of the files that it shares with others.
    """

    path: Path
    folder: str
    key: str
    manifest: Manifest
    parts: frozenset[str]


class LocalRun:
    """Reads the directory of a run for its mirror; it writes only to `<run>/mirror/`.

    Args:
        paths: File names of the run.

    Attributes:
        folders: Parent directory of saved directories, by their folder in the mirror.
        files: Path of each file of a mirror state except the history, by its name in the mirror.
    """

    def __init__(self, paths: RunFiles) -> None:
        self.paths = paths
        self.directory = paths.run_base_dir / MIRROR_DIRECTORY
        self.folders = {CHECKPOINTS: paths.checkpoint_dir, BUFFERS: paths.buffer_dir}
        self.files = {
            COMPOSED_CONFIG: paths.composed_config_path,
            CONFIG: paths.config_path,
            JOURNAL: paths.journal_path,
            RUN_RECORD: paths.run_record_path,  # last: it turns a directory into a run directory
        }
        self._record_path = self.directory / "known.json"
        self._cache: dict[tuple[str, int, int], LocalSave] = {}

    def record(self) -> MirrorRecord:
        """Return the record of the directory; an empty one if the directory never had a mirror.

        Raises:
            SerializationError: The record is unreadable, so that the mirror may have a later state of the run.
        """
        try:
            return MirrorRecord.model_validate_json(self._record_path.read_bytes())
        except FileNotFoundError:
            return MirrorRecord()
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a complete record"
            raise SerializationError(
                f"{self._record_path}, the record of what this directory has mirrored, cannot be read: {reason}; "
                "restore it from a backup, or delete it and set another persistence.mirror, which then gets the "
                "whole run"
            ) from error

    def store_record(self, record: MirrorRecord) -> None:
        """Write the record of the mirror atomically."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self._record_path, record.model_dump_json(indent=1).encode())

    def is_lost(self) -> bool:
        """Return whether the directory contains nothing of the run, or only files of an interrupted restore.

        Raises:
            SerializationError: The record of the mirror cannot be read.
        """
        if self.record().restoring:
            return not self.paths.run_record_path.exists()  # a restore writes it last
        files = [self.paths.run_record_path, self.paths.journal_path]
        folders = [*self.folders.values(), self.paths.history_dir]
        return not any(path.exists() for path in files) and not any(any(folder.glob("*")) for folder in folders)

    def lacks_checkpoints(self) -> bool:
        """Return whether the directory of a mirrored run has no checkpoint, not even a damaged one.

        Raises:
            SerializationError: The record of the mirror cannot be read.
        """
        return self.record().generation > 0 and not any(self.paths.checkpoint_dir.glob(f"{CHECKPOINT_PREFIX}*"))

    def saves(self) -> list[LocalSave]:
        """Return the checkpoints and buffers, the oldest first, without those with unreadable manifests."""
        saves = {}
        for folder, directory in self.folders.items():
            for entry in _entries(directory, _PREFIX[folder]):
                try:
                    stat = entry.stat(follow_symlinks=False)
                    key = (entry.path, stat.st_ino, stat.st_mtime_ns)  # there may be thousands of directories
                    saves[key] = self._cache.get(key) or _read(folder, Path(entry.path))
                except (OSError, SerializationError):  # being deleted, or damaged
                    continue
        self._cache = saves
        return sorted(saves.values(), key=lambda save: (save.manifest.sequence, save.manifest.created, save.path.name))

    @contextlib.contextmanager
    def outgoing(self) -> Iterator[Path]:
        """Yield a temporary directory for copies on the run's file system, and delete it afterwards."""
        directory = self.directory / f"outgoing-{os.getpid()}-{secrets.token_hex(4)}"
        directory.mkdir(parents=True)
        try:
            yield directory
        finally:
            remove(directory)

    def clean_up(self) -> None:
        """Delete leftovers of crashed processes; no other process may be uploading."""
        for leftover in self.directory.glob("outgoing-*"):
            remove(leftover)

    def link_files(self, save: LocalSave, directory: Path) -> bool:
        """Link the files of a saved directory into another directory, which survives deletion of the former.

        Returns:
            True if all files existed; False if the saved directory was deleted, damaged or replaced.
        """
        names = [*save.manifest.files, MANIFEST_NAME]
        if not all(link_if_exists(save.path / name, directory / name) for name in names):
            return False
        return save_key(save.folder, save.path.name, _crc32(directory)) == save.key

    def copy_journal(self, target: Path) -> list[str]:
        """Copy a consistent snapshot of the journal, and return the names of its history files.

        The copy does not block the hub, which writes the journal. It uses SQLite: if this process opened and closed
        the file directly, the hub would lose its locks.

        Raises:
            JournalError: The journal is temporarily unreadable.
        """
        with (
            contextlib.closing(connect_read_only(self.paths.journal_path)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            try:
                copy.execute("PRAGMA synchronous = OFF")  # the upload deletes the copy
                source.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # one file without -wal and -shm
                return [checked_name(name) for (name,) in copy.execute("SELECT name FROM segments ORDER BY first")]
            except sqlite3.Error as error:
                raise JournalError(f"the journal {self.paths.journal_path} cannot be copied: {error}") from error


def link_if_exists(source: Path, target: Path) -> bool:
    """Link a file to a new name, and return whether the file existed."""
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
    manifest = read_manifest(path).without_mappings()
    return LocalSave(path, folder, key, manifest, part_keys(manifest))


def _entries(directory: Path, prefix: str) -> list[os.DirEntry[str]]:
    if not directory.is_dir():
        return []
    name = re.compile(re.escape(prefix) + r"\d+")
    with os.scandir(directory) as entries:
        return [entry for entry in entries if name.fullmatch(entry.name) and not entry.is_symlink()]
