"""The run's side of a mirror: what there is to upload, copies of it that hold still, what is known of the mirror."""

import contextlib
import os
import re
import secrets
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trieye.checkpoints.manifest import MANIFEST_NAME, PARTS_DIRECTORY, Manifest, read_manifest
from trieye.exceptions import JournalError, SerializationError
from trieye.files.atomic import remove, write_atomic
from trieye.files.run_files import BUFFER_PREFIX, CHECKPOINT_PREFIX, RunFiles
from trieye.journal.look import connect_read_only
from trieye.journal.schema import checked_name
from trieye.mirror.layout import BUFFERS, CHECKPOINTS, PARTS, Folder, SavedName, save_directory

MIRROR_DIRECTORY = "mirror"
_KNOWN, _RESTORING = "known.json", "restoring"
_PREFIX: dict[Folder, str] = {CHECKPOINTS: CHECKPOINT_PREFIX, BUFFERS: BUFFER_PREFIX}


class MirrorRecord(BaseModel):
    """What the directory of a run knows of its mirror.

    Attributes:
        owner: Tells this directory from others that the run lived in.
        generation: The newest state of the mirror that this directory wrote, or began with.
        elsewhere: What the mirror has of the run and this directory never had.
        note: What is still to be said about a restore.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    owner: str = Field(default_factory=lambda: secrets.token_hex(16))
    generation: int = Field(default=0, ge=0)
    elsewhere: list[SavedName] = Field(default_factory=list)
    note: str | None = None


@dataclass(frozen=True)
class LocalSave:
    """A checkpoint or a buffer on the disk.

    Attributes:
        saved: Its names.
        path: Its directory.
        manifest: What is in it.
        manifest_crc32: CRC-32 of its MANIFEST.json.
    """

    saved: SavedName
    path: Path
    manifest: Manifest
    manifest_crc32: int

    def key_of(self, file_name: str) -> str:
        """Return the key of one of its files; parts are shared."""
        shared = file_name.startswith(f"{PARTS_DIRECTORY}/")
        return f"{PARTS}/{Path(file_name).name}" if shared else f"{self.saved.key}/{file_name}"

    @property
    def parts(self) -> list[str]:
        """Keys of its parts."""
        return sorted(self.key_of(name) for name in self.manifest.files if name.startswith(f"{PARTS_DIRECTORY}/"))


class LocalRun:
    """Reads the directory of a run for its mirror; what it writes is in `<run>/mirror/`.

    Args:
        paths: File names of the run.
    """

    def __init__(self, paths: RunFiles) -> None:
        self.paths = paths
        self.directory = paths.run_base_dir / MIRROR_DIRECTORY
        self.folders: dict[Folder, Path] = {CHECKPOINTS: paths.checkpoint_dir, BUFFERS: paths.buffer_dir}
        self._seen: dict[Path, tuple[tuple[int, int], LocalSave]] = {}

    # what is known of the mirror

    def record(self) -> MirrorRecord:
        """Return what is known of the mirror; that of a directory which never had one if there is nothing.

        Raises:
            SerializationError: It cannot be read; nobody knows then whether the mirror has this run or a later one.
        """
        path = self.directory / _KNOWN
        try:
            return MirrorRecord.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return MirrorRecord()
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a whole record"
            raise SerializationError(
                f"{path}, which says what this directory has mirrored, cannot be read: {reason}; restore it from a "
                "backup, or delete it and give another persistence.mirror, which then gets all of the run"
            ) from error

    def keep(self, record: MirrorRecord) -> None:
        """Write down what is known of the mirror."""
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomic(self.directory / _KNOWN, record.model_dump_json(indent=1).encode())

    def is_lost(self) -> bool:
        """Tell whether there is nothing of the run here, or only what a restore that was killed has brought."""
        if (self.directory / _RESTORING).exists():
            return True
        some = [self.paths.run_record_path, self.paths.journal_path]
        folders = [*self.folders.values(), self.paths.history_dir]
        return not any(path.exists() for path in some) and not any(_has_entries(folder) for folder in folders)

    def note_restoring(self, *, under_way: bool) -> None:
        """Write down that a restore began, or that it is complete."""
        if under_way:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / _RESTORING, b"")
        else:
            (self.directory / _RESTORING).unlink(missing_ok=True)

    # what there is

    def saves(self, folder: Folder) -> list[LocalSave]:
        """Return what is saved, the oldest first; what has no readable manifest is left out."""
        found = [
            save for path in _entries(self.folders[folder], _PREFIX[folder]) if (save := self._look_at(folder, path))
        ]
        self._seen = {path: seen for path, seen in self._seen.items() if path.exists()}
        return sorted(found, key=lambda save: (save.manifest.sequence, save.manifest.created, save.saved.step))

    def _look_at(self, folder: Folder, path: Path) -> LocalSave | None:
        try:
            about = (path / MANIFEST_NAME).stat()
            mark = (about.st_ino, about.st_mtime_ns)
            if path in self._seen and self._seen[path][0] == mark:  # there may be thousands of them
                return self._seen[path][1]
            crc32 = zlib.crc32((path / MANIFEST_NAME).read_bytes())
            saved = SavedName(folder=folder, name=path.name, key=save_directory(folder, path.name, crc32))
            # the state of the hub, which may be large, is of no use here
            manifest = read_manifest(path).model_copy(update={"metadata": {}})
        except (OSError, SerializationError):  # being deleted, or damaged
            return None
        save = LocalSave(saved, path, manifest, crc32)
        self._seen[path] = (mark, save)
        return save

    # copies that hold still

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

    def hold(self, save: LocalSave, directory: Path) -> None:
        """Put links to the files of a saved directory into another one, so that retention may delete it meanwhile.

        Raises:
            FileNotFoundError: It was deleted, or replaced by another one.
        """
        for name in [*save.manifest.files, MANIFEST_NAME]:
            link_or_copy(save.path / name, directory / name)
        if zlib.crc32((directory / MANIFEST_NAME).read_bytes()) != save.manifest_crc32:
            raise FileNotFoundError(f"{save.path} was replaced meanwhile")

    def copy_journal(self, target: Path) -> list[str]:
        """Copy the journal as it is at one moment, and return which files of the history it knows.

        The one who writes it is not held up. Its file is not opened otherwise: closing it would end his locks.

        Raises:
            JournalError: It cannot be read now.
        """
        with (
            contextlib.closing(connect_read_only(self.paths.journal_path)) as source,
            contextlib.closing(sqlite3.connect(target)) as copy,
        ):
            try:
                copy.execute("PRAGMA synchronous = OFF")  # uploaded at once, and deleted
                source.backup(copy)
                # a file of its own, whatever the other one needs beside it
                copy.execute("PRAGMA journal_mode = DELETE")
                return [checked_name(name) for (name,) in copy.execute("SELECT name FROM segments ORDER BY first")]
            except sqlite3.Error as error:
                raise JournalError(f"the journal {self.paths.journal_path} cannot be copied: {error}") from error


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, or a copy where the file system knows no links; makes its directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)


def _entries(directory: Path, prefix: str) -> list[Path]:
    if not directory.is_dir():
        return []
    name = re.compile(re.escape(prefix) + r"\d+")
    return [path for path in directory.iterdir() if name.fullmatch(path.name) and not path.is_symlink()]


def _has_entries(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())
