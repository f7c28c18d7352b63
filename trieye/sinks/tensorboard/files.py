"""EventFiles: the event files of a run in one directory, as bytes."""

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

_OURS = re.compile(r"events\.out\.tfevents\.(\d{10})\.[^/]+\.trieye")
"""Other files in the directory, of the user's own SummaryWriter for example, are never touched."""
_MAX_PENDING_BYTES = 2**24
_READ_BYTES = 2**20
_MASK_DELTA = 0xA282EAD8


class Place(NamedTuple):
    """A place in the files to which one can go back.

    Attributes:
        file: Name of the file; empty: before the first one.
        size_bytes: Its size then.
        crc: CRC-32 of its bytes then.
    """

    file: str = ""
    size_bytes: int = 0
    crc: int = 0


class EventFiles:
    """Event files of which at most one is being written, begun by the first flush that has something to write.

    Adding goes to memory and a failed flush leaves the rest there, so that neither is ever half done twice.

    Files that are taken back are emptied and stay, for a living TensorBoard goes on to the next file only from one
    that exists: after a removed one its loader in Python never shows anything of the run again. Names ascend, so that
    a reader takes a later file for a later one, whatever the clock does.

    Args:
        directory: Where the files are; made with the first one.
        run_dir: Directory of the run.
    """

    def __init__(self, directory: Path, run_dir: Path) -> None:
        self._directory, self._run_dir = directory, run_dir
        self._pending = bytearray()
        self._file: BinaryIO | None = None
        self._place = Place()

    def add(self, events: list[bytes]) -> None:
        """Add events; they are in the file after the next flush.

        Raises:
            OSError: So much is waiting that it had to be written first, and that failed; nothing was added.
        """
        if len(self._pending) > _MAX_PENDING_BYTES:
            self.flush()
        self._pending += frame(events)

    def flush(self) -> Place:
        """Hand everything to the file system and return where the files are then.

        Raises:
            OSError: The disk is full, for example; the rest stays in memory.
            SinkGoneError: The file was deleted, and what is written now would never be seen.
        """
        if self._file is not None and not (self._directory / self._place.file).exists():
            raise SinkGoneError(
                f"{self._directory / self._place.file} was deleted while the run wrote to it; when the run has ended, "
                f"`trieye rebuild {self._run_dir} --sink tensorboard` writes all of it anew"
            )
        while self._pending:
            file = self._file or self._begin()
            written = file.write(self._pending)
            crc = zlib.crc32(self._pending[:written], self._place.crc)
            self._place = Place(self._place.file, self._place.size_bytes + written, crc)
            del self._pending[:written]
        return self._place

    def go_back(self, place: Place) -> bool:
        """Take back everything behind a place, or return False if the file is not as it was there.

        What comes next goes to a new file: a living TensorBoard, which may have read further, remembers how far.
        """
        if place.file and not self._is_whole(place):
            return False
        self._forget()
        kept = self._directory / place.file
        for path in self._ours():
            if path.name > place.file:
                os.truncate(path, 0)
        if place.file and kept.stat().st_size > place.size_bytes:
            os.truncate(kept, place.size_bytes)
        self._remove_empty()
        self._place = place
        return True

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, or all of it was taken back or deleted."""
        return not any([path.stat().st_size for path in self._ours()])

    def clear(self) -> None:
        """Take back everything."""
        self._forget()
        for path in self._ours():
            os.truncate(path, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _forget(self) -> None:
        self.close()
        self._pending.clear()
        self._place = Place()

    def _begin(self) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        files = self._ours()
        newest = int(files[-1].name.split(".")[3]) if files else 0
        stamp = max(int(time.time()), newest + 1)
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}.trieye"
        restarted = bool(files) and not any([path.stat().st_size for path in files])
        self._file = (self._directory / name).open("xb", buffering=0)
        self._place = Place(name)
        self._pending[:0] = frame(header(restarted=restarted))
        return self._file

    def _ours(self) -> list[Path]:
        """Return our files, the oldest first."""
        if not self._directory.is_dir():
            return []
        return sorted(path for path in self._directory.iterdir() if _OURS.fullmatch(path.name))

    def _is_whole(self, place: Place) -> bool:
        if not _OURS.fullmatch(place.file):
            return False
        crc, left = 0, place.size_bytes
        try:
            with (self._directory / place.file).open("rb") as file:
                while left and (data := file.read(min(left, _READ_BYTES))):
                    crc, left = zlib.crc32(data, crc), left - len(data)
        except FileNotFoundError:
            return False
        return not left and crc == place.crc

    def _remove_empty(self) -> None:
        """Remove files that were emptied, but the newest: a reader that was there has gone on to a later one."""
        for path in self._ours()[:-1]:
            if not path.stat().st_size:
                path.unlink()


def frame(records: Sequence[bytes]) -> bytes:
    """Return the records as they stand in an event file: length, its checksum, data, its checksum.

    tensorboard's `RecordWriter` computes each checksum byte by byte in Python, which is two thirds of a point's cost.
    """
    parts: list[bytes] = []
    for record in records:
        length = len(record).to_bytes(8, "little")
        parts += (length, _checksum(length), record, _checksum(record))
    return b"".join(parts)


def unframed(data: bytes) -> Iterator[bytes]:
    """Yield the records in the bytes of an event file.

    Raises:
        SerializationError: What follows is cut or damaged; the message says where.
    """
    place = 0
    while place < len(data):
        length = data[place : place + 8]
        end = place + 12 + int.from_bytes(length, "little")
        record, head, foot = data[place + 12 : end], data[place + 8 : place + 12], data[end : end + 4]
        if len(length) < 8 or head != _checksum(length) or foot != _checksum(record):  # noqa: PLR2004 - bytes
            what = "cut" if end + 4 > len(data) else "damaged"
            raise SerializationError(f"it is {what} from byte {place} of {len(data)} on")
        yield record
        place = end + 4


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC-32C of data."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF).to_bytes(4, "little")
