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


class ChecksumReader:
    """A file that counts its bytes and sums them up while they are read, from the first to the last one.

    Args:
        path: The file; opening it raises OSError if it is a link.
        checksum: Which sums are wanted.

    Attributes:
        size_bytes: Bytes read.
        crc32: Their CRC-32.
    """

    def __init__(self, path: Path, checksum: Checksum = "crc32") -> None:
        self._file = open(path, "rb", buffering=0, opener=_no_link)  # noqa: SIM115 - closed by `__exit__`
        self.size_bytes = 0
        self.crc32 = 0
        self._sha256 = hashlib.sha256() if checksum == "sha256" else None

    @property
    def sha256(self) -> str | None:
        """SHA-256 in hexadecimal, if that was wanted."""
        return None if self._sha256 is None else self._sha256.hexdigest()

    def read(self, count: int) -> bytes:
        """Return the next bytes, fewer than `count` at the end only."""
        data = bytearray(count)
        return bytes(data[: self.readinto(memoryview(data))])

    def readinto(self, target: memoryview) -> int:
        """Fill memory with the next bytes and return how many there were; a chunk is summed up while it is cached."""
        filled = 0
        while got := self._file.readinto(chunk := target[filled : filled + _CHUNK_BYTES]):
            self.crc32 = zlib.crc32(chunk[:got], self.crc32)
            if self._sha256 is not None:
                self._sha256.update(chunk[:got])
            filled += got
        self.size_bytes += filled
        return filled

    def finish(self) -> None:
        """Read what is left."""
        rest = memoryview(bytearray(_CHUNK_BYTES))
        while self.readinto(rest):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def sums_of(path: Path, checksum: Checksum = "crc32") -> tuple[int, int, str | None]:
    """Return size in bytes, CRC-32 and, if wanted, SHA-256 of a file, which is no link.

    Raises:
        OSError: It cannot be read, or is a link.
    """
    with ChecksumReader(path, checksum) as file:
        file.finish()
    return file.size_bytes, file.crc32, file.sha256


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
