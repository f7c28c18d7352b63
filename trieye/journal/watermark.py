"""Watermark: a small file next to a journal with the journal's identity and a position that it has reached.

SQLite accepts a journal that lacks its newest transactions, or belongs to another run. A watermark is written after
the commit of its values, and never synced: after a kill the journal is level with it or ahead, and a journal that ends
before it has lost accepted entries.
"""

import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from trieye.files.run_record import RunRecord
from trieye.journal.schema import owner_of

MAX_BYTES = 64 << 10
"""A larger file is replaced by its newest line."""

MAX_RANGES = 1000
"""A watermark, written about once a second, omits more superseded ranges than this."""


class Watermark(msgspec.Struct, frozen=True):
    """Contents of a journal at a moment.

    Attributes:
        journal: Identity of the journal, empty if it has none; None: the watermark is damaged.
        pos: Position of the newest entry.
        deleted_to: Position of the last deleted entry; all earlier entries are deleted, too.
        cursors: Index and position of each sink.
        superseded: Superseded ranges of indices; None: not recorded.
    """

    journal: str | None = None
    pos: int = 0
    deleted_to: int = 0
    cursors: dict[str, tuple[int, str | None]] = {}
    superseded: tuple[tuple[int, int], ...] | None = None


def watermark_path(path: Path) -> Path:
    """Return the path of a journal's watermark; it sorts before the journal, so an alphabetical copy takes it first."""
    return path.with_name(f"{path.stem}-watermark.jsonl")


def stored_watermark_path(path: Path) -> Path:
    """Return the path of a journal's watermark on disk; it has an earlier name until the journal is opened again."""
    current_path, earlier_path = watermark_path(path), _earlier_path(path)
    return earlier_path if earlier_path.exists() and not current_path.exists() else current_path


def _earlier_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}-witness.jsonl")


def read_watermark(path: Path) -> Watermark | None:
    """Return the newest intact line of a journal's watermark; None if the file is missing, as in earlier versions."""
    try:
        lines = [line for line in stored_watermark_path(path).read_bytes().split(b"\n") if line]
    except FileNotFoundError:
        # the process that opens the journal renames the file
        return read_watermark(path) if watermark_path(path).exists() else None
    except OSError:
        return Watermark()
    watermarks = (watermark for line in reversed(lines) if (watermark := _from_line(line)) is not None)
    return next(watermarks, Watermark()) if lines else None


def delete_watermark(path: Path) -> None:
    """Delete the watermark of a journal."""
    for file_path in (watermark_path(path), _earlier_path(path)):
        file_path.unlink(missing_ok=True)


def _from_line(line: bytes) -> Watermark | None:
    try:
        crc, text = msgspec.json.decode(line, type=tuple[int, str])
        return msgspec.json.decode(text, type=Watermark) if zlib.crc32(text.encode()) == crc else None
    except (msgspec.MsgspecError, UnicodeDecodeError):  # msgspec raises UnicodeDecodeError for invalid UTF-8
        return None


class WatermarkFile:
    """Writes the watermark of an open journal; safe to use from several threads.

    Each line is appended in one write: replacing the file would wait milliseconds for the disk. A line that a kill
    or a full disk truncated is ignored; the line before it is still valid.

    Args:
        path: The journal.

    Attributes:
        lock: A thread of the journal holds it from reading the values of a line to writing that line, so that each
            line is newer than its predecessor.
    """

    def __init__(self, path: Path) -> None:
        self._path, earlier_path = watermark_path(path), _earlier_path(path)
        if self._path.exists():
            earlier_path.unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):
                earlier_path.replace(self._path)
        self.lock = threading.Lock()  # guards the order of the lines; acquired before the lock of the `Journal`

    def write(self, watermark: Watermark) -> None:
        """Append a line; on a full disk the previous line remains the newest."""
        text = msgspec.json.encode(watermark).decode()
        line = b"\n" + msgspec.json.encode((zlib.crc32(text.encode()), text))
        with suppress(OSError):
            if _append(self._path, line) > MAX_BYTES:
                scratch = self._path.with_suffix(".new")
                scratch.unlink(missing_ok=True)  # left by a kill
                _append(scratch, line)
                scratch.replace(self._path)


def _append(path: Path, data: bytes) -> int:
    """Append to a file, never through a link, and return its new size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        os.write(descriptor, data)
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class Expected(NamedTuple):
    """Expectations of a journal before it is opened.

    Attributes:
        watermark: Its watermark; None if there is none.
        run_id: Run that the journal must belong to; empty: unknown, any run is accepted.
        is_begun: Whether run.json or a sink shows that an attempt of the run began in this journal.
    """

    watermark: Watermark | None = None
    run_id: str = ""
    is_begun: bool = False

    @classmethod
    def of_attempt(cls, record: RunRecord, tensorboard_dir: Path) -> Self:
        """Return the expectations at the start of an attempt."""
        # if run.json was deleted, the new record continues the journal of the previous run
        is_new = record.attempt == 1 and record.mlflow_run_id is None
        return cls(run_id="" if is_new else record.run_id, is_begun=record.has_shown(tensorboard_dir))

    @property
    def journal(self) -> str | None:
        """Identity of the journal; None: unknown."""
        return None if self.watermark is None else self.watermark.journal

    def of_missing(self) -> list[str]:
        """Return the error if there is no journal."""
        return ["it is missing"] if self.watermark is not None or self.is_begun else []

    def of_identity(self, journal: str) -> list[str]:
        """Return the error in the identity of a journal."""
        return [] if self.journal in {None, journal} else ["it is not the journal that this run wrote"]

    def of_content(self, mark: bytes | None, last_pos: int) -> list[str]:
        """Return the error in an undamaged journal with this mark of an attempt and this end."""
        if mark is None and self.is_begun:
            return ["it has no attempt of this run"]
        if mark is not None and self.is_of_another_run(mark):
            return [f"it is the journal of another run ({owner_of(mark)} instead of {self.run_id})"]
        reached_pos = 0 if self.watermark is None else self.watermark.pos
        return [f"it ends at position {last_pos}, but had reached {reached_pos}"] if last_pos < reached_pos else []

    def is_of_another_run(self, mark: bytes | None) -> bool:
        """Return whether another run wrote a journal with this mark of an attempt."""
        return bool(self.run_id and mark is not None and owner_of(mark) not in {"", self.run_id})
