"""EventFiles: the event files of a run in one directory, as bytes."""

import os
import re
import socket
import time
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trieye.sinks.tensorboard.summaries import header

_OURS = re.compile(r"events\.out\.tfevents\.(\d{10})\.[^/]+\.trieye")
"""Other files in the directory, of the user's own SummaryWriter for example, are never touched."""
_MAX_PENDING_BYTES = 2**24
_READ_BYTES = 2**20


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
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
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
        """
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


_ALL_ONES = np.uint32(0xFFFFFFFF)
_MASK_DELTA = np.uint32(0xA282EAD8)
_TABLE_STEP = 512
_LENGTH_BYTES = 8
_MAX_TABLE_BYTES = 4096
"""Longer records are rare; the table has 1 KiB for each byte of the longest."""


def frame(records: Sequence[bytes]) -> bytes:
    """Return the records as they stand in an event file: length, its checksum, data, its checksum.

    Args:
        records: At least 4 bytes each, as all events are: their wall time has 9.
    """
    if not records:
        return b""
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    lengths = sizes.astype("<u8").view(np.uint8)
    length_sums = masked_checksums(lengths, np.full(len(records), _LENGTH_BYTES)).astype("<u4").tobytes()
    data_sums = _data_checksums(records, sizes).astype("<u4").tobytes()
    length_bytes = lengths.tobytes()
    parts: list[bytes] = []
    for index, record in enumerate(records):
        parts.append(length_bytes[8 * index : 8 * index + 8])
        parts.append(length_sums[4 * index : 4 * index + 4])
        parts.append(record)
        parts.append(data_sums[4 * index : 4 * index + 4])
    return b"".join(parts)


def _data_checksums(records: Sequence[bytes], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    is_short = sizes <= _MAX_TABLE_BYTES
    checksums = np.empty(len(records), np.uint32)
    if is_short.any():
        short = records if is_short.all() else [records[index] for index in np.flatnonzero(is_short).tolist()]
        checksums[is_short] = masked_checksums(np.frombuffer(b"".join(short), np.uint8), sizes[is_short])
    for index in np.flatnonzero(~is_short).tolist():
        checksums[index : index + 1] = _long_checksum(records[index])
    return checksums


def _long_checksum(record: bytes) -> NDArray[np.uint32]:
    """Return the masked checksum, as an array of one, of a record longer than the table, as a picture is.

    The checksum of one block goes into the first bytes of the next, as if it had been computed in one go.
    """
    state, table = _ALL_ONES, _table(_MAX_TABLE_BYTES // _TABLE_STEP)
    for part in np.array_split(np.frombuffer(record, np.uint8), -(-len(record) // _MAX_TABLE_BYTES)):
        block = part.copy()
        block[:4] ^= np.array([state], "<u4").view(np.uint8)
        state = np.bitwise_xor.reduce(table[np.arange(len(block) - 1, -1, -1), block])
    return _masked(np.array([state ^ _ALL_ONES]))


def masked_checksums(data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the masked CRC-32C of consecutive parts of `data`.

    Args:
        data: uint8 `[sum(sizes)]`.
        sizes: Bytes of each part, int64 `[parts]`, each at least 4.

    Returns:
        uint32 `[parts]`.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    complemented = data.copy()
    for offset in range(4):  # the same as starting from all ones
        complemented[starts + offset] ^= 0xFF
    distances = np.repeat(ends, sizes) - np.arange(1, len(data) + 1)
    contributions = _table(-(-int(sizes.max()) // _TABLE_STEP))[distances, complemented]
    checksums = np.bitwise_xor.reduceat(contributions, starts) ^ _ALL_ONES
    return _masked(checksums)


def _masked(checksums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return ((checksums >> np.uint32(15)) | (checksums << np.uint32(17))) + _MASK_DELTA


@lru_cache(maxsize=4)
def _table(num_steps: int) -> NDArray[np.uint32]:
    """Return uint32 `[distances, 256]`: what a byte contributes to the CRC with so many bytes behind it."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import CRC_TABLE

    table = np.empty((num_steps * _TABLE_STEP, 256), np.uint32)
    table[0] = CRC_TABLE
    for distance in range(1, len(table)):
        before = table[distance - 1]
        table[distance] = (before >> np.uint32(8)) ^ table[0][before & np.uint32(0xFF)]
    return table
