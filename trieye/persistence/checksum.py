"""Files whose checksum is taken while they are written, and looked at when they are read."""

import hashlib
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 22

Checksum = Literal["crc32", "sha256"]
"""`sha256` in addition to CRC-32, which finds accidental damage as well, 2.4 times as fast (4.2 against 1.8 GB/s)."""


class ChecksumFile:
    """A new file that counts its bytes and sums them up; it is on the disk when the block ends.

    Args:
        path: The file.
        checksum: Which sums are wanted.

    Attributes:
        size_bytes: Bytes written.
        crc32: Their CRC-32.
    """

    def __init__(self, path: Path, checksum: Checksum = "crc32") -> None:
        self._file = path.open("xb", buffering=1 << 20)
        self.size_bytes = 0
        self.crc32 = 0
        self._sha256 = hashlib.sha256() if checksum == "sha256" else None

    @property
    def sha256(self) -> str | None:
        """SHA-256 in hexadecimal, if that was wanted."""
        return None if self._sha256 is None else self._sha256.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; a memoryview is of bytes and contiguous."""
        self._file.write(data)
        self.size_bytes += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        if self._sha256 is not None:
            self._sha256.update(data)

    def write_array(self, array: NDArray[np.generic]) -> None:
        """Append the bytes of a C-contiguous array without copying them."""
        if array.nbytes:
            self.write(array.reshape(-1).view("u1").data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())


def sums_of(path: Path, checksum: Checksum = "crc32") -> tuple[int, int, str | None]:
    """Return size in bytes, CRC-32 and, if wanted, SHA-256 of a file, which is no link.

    Raises:
        OSError: It cannot be read, or is a link.
    """
    size = crc32 = 0
    sha256 = hashlib.sha256() if checksum == "sha256" else None
    with open(path, "rb", buffering=0, opener=_no_link) as file:
        while chunk := file.read(_CHUNK_BYTES):
            size += len(chunk)
            crc32 = zlib.crc32(chunk, crc32)
            if sha256 is not None:
                sha256.update(chunk)
    return size, crc32, None if sha256 is None else sha256.hexdigest()


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
