"""EventFiles: appends, truncates and checks the event files of a run at the level of bytes."""

import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c

from trieye.exceptions import SerializationError, SinkGoneError
from trieye.sinks.tensorboard.summaries import header

_FILE_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.[^/]+\.trieye")
"""Other files in the directory, such as those of a SummaryWriter of the user, are never modified."""
_MAX_PENDING_BYTES = 2**24
_READ_BYTES = 2**20
_MASK_DELTA = 0xA282EAD8


class FilePosition(NamedTuple):
    """A position in the event files to which `EventFiles.go_back` can return.

    Attributes:
        file: Name of the file; empty: before the first file.
        size_bytes: Size of the file at this position.
        crc: CRC-32 of these bytes.
    """

    file: str = ""
    size_bytes: int = 0
    crc: int = 0


class EventFiles:
    """Event files, of which at most one is open; the first flush with data creates it.

    `add` buffers events in memory, and a failed flush leaves unwritten bytes in the buffer, so a retry neither loses
    nor repeats bytes.

    Withdrawn files are truncated to zero bytes instead of removed: a running TensorBoard advances to the next file only
    from an existing one, and its Python loader would never show the run again. File names ascend even if the clock
    goes backwards, so that readers see the files in order.

    Args:
        directory: Directory of the files; created with the first file.
        run_dir: Directory of the run.
    """

    def __init__(self, directory: Path, run_dir: Path) -> None:
        self._directory, self._run_dir = directory, run_dir
        self._pending = bytearray()
        self._file: BinaryIO | None = None
        self._position = FilePosition()

    def add(self, events: list[bytes]) -> None:
        """Add events; the next flush writes them to the file.

        Raises:
            OSError: The buffer was full and could not be flushed; nothing was added.
        """
        if len(self._pending) > _MAX_PENDING_BYTES:
            self.flush()
        self._pending += frame(events)

    def flush(self) -> FilePosition:
        """Write the buffer to the file system and return the resulting position.

        Raises:
            OSError: The write failed, for example because the disk is full; unwritten bytes stay in the buffer.
            SinkGoneError: The file was deleted, so further output would be invisible.
        """
        if self._file is not None and not (self._directory / self._position.file).exists():
            raise SinkGoneError(
                f"{self._directory / self._position.file} was deleted while the run wrote to it; after the run ends, "
                f"`trieye rebuild {self._run_dir} --sink tensorboard` writes all event files again"
            )
        while self._pending:
            file = self._file or self._create_file()
            num_written = file.write(self._pending)
            crc = zlib.crc32(self._pending[:num_written], self._position.crc)
            self._position = FilePosition(self._position.file, self._position.size_bytes + num_written, crc)
            del self._pending[:num_written]
        return self._position

    def go_back(self, position: FilePosition) -> bool:
        """Remove everything after a position, or return False if the bytes before it have changed.

        The next flush creates a new file, because a running TensorBoard remembers its offset in the old one.
        """
        if position.file and not self._is_intact(position):
            return False
        self._reset()
        last_path = self._directory / position.file
        for path in self._files():
            if path.name > position.file:
                os.truncate(path, 0)
        if position.file and last_path.stat().st_size > position.size_bytes:
            os.truncate(last_path, position.size_bytes)
        self._remove_empty()
        self._position = position
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the files contain nothing: never written, cleared or deleted."""
        return not any([path.stat().st_size for path in self._files()])

    def clear(self) -> None:
        """Remove all content."""
        self._reset()
        for path in self._files():
            os.truncate(path, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reset(self) -> None:
        self.close()
        self._pending.clear()
        self._position = FilePosition()

    def _create_file(self) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        files = self._files()
        newest = int(files[-1].name.split(".")[3]) if files else 0
        stamp = max(int(time.time()), newest + 1)
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.trieye"
        is_restarted = bool(files) and not any([path.stat().st_size for path in files])
        self._file = (self._directory / name).open("xb", buffering=0)
        self._position = FilePosition(name)
        self._pending[:0] = frame(header(restarted=is_restarted))
        return self._file

    def _files(self) -> list[Path]:
        """Return the files that trieye wrote, the oldest first."""
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if _FILE_NAME.fullmatch(path.name))

    def _is_intact(self, position: FilePosition) -> bool:
        if not _FILE_NAME.fullmatch(position.file):
            return False
        crc, num_left = 0, position.size_bytes
        try:
            with (self._directory / position.file).open("rb") as file:
                while num_left and (data := file.read(min(num_left, _READ_BYTES))):
                    crc, num_left = zlib.crc32(data, crc), num_left - len(data)
        except FileNotFoundError:
            return False
        return not num_left and crc == position.crc

    def _remove_empty(self) -> None:
        """Remove empty files except the newest: readers have advanced from the others to a later file."""
        for path in self._files()[:-1]:
            if not path.stat().st_size:
                path.unlink()


def frame(records: Sequence[bytes]) -> bytes:
    """Encode records for an event file: length, checksum of the length, data, checksum of the data.

    tensorboard's `RecordWriter` computes checksums in pure Python, which is two thirds of the cost of a point.
    """
    parts: list[bytes] = []
    for record in records:
        length = len(record).to_bytes(8, "little")
        parts += (length, _checksum(length), record, _checksum(record))
    return b"".join(parts)


def unframed(data: bytes) -> Iterator[bytes]:
    """Yield the records in the bytes of an event file.

    Raises:
        SerializationError: The rest is truncated or damaged; the message contains the offset.
    """
    offset = 0
    while offset < len(data):
        length = data[offset : offset + 8]
        end = offset + 12 + int.from_bytes(length, "little")
        record, head, foot = data[offset + 12 : end], data[offset + 8 : offset + 12], data[end : end + 4]
        if len(length) < 8 or head != _checksum(length) or foot != _checksum(record):  # noqa: PLR2004 - bytes
            damage = "truncated" if end + 4 > len(data) else "damaged"
            raise SerializationError(f"it is {damage} from byte {offset} of {len(data)} on")
        yield record
        offset = end + 4


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of data."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF).to_bytes(4, "little")
