"""Allocators for the arrays of a replay buffer: ordinary memory, shared memory, or files larger than the memory."""

import contextlib
import errno
import math
import mmap
import os
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.schema import check_known

Storage = Literal["ram", "shm", "mmap"]

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no constant for it
_NO_SPACE = {errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG, errno.EINVAL}
_GIB = 2**30
_UNLIMITED = 1 << 62
_SMALL_BYTES = 1 << 20
"""Arrays up to this size are allocated without reading the free memory, which takes longer than the allocation."""
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, version 2 and 1, in bytes: its limit, its usage, and the key of its reclaimable part in
`memory.stat`."""


@dataclass(frozen=True)
class MemoryHandle:
    """Identifies arrays for other processes of this machine; can be pickled.

    Attributes:
        pid: The process that owns the memory.
        arrays: File descriptor and identity (device and inode) of each array, by name.
    """

    pid: int
    arrays: Mapping[str, tuple[int, tuple[int, int]]]


class Memory(ABC):
    """Allocates arrays of zeros, each name once.

    Attributes:
        size_bytes: Total size in bytes of the arrays that were allocated with `prefault`.
    """

    size_bytes = 0

    @property
    def handle(self) -> MemoryHandle | None:
        """The handle for other processes; None if they cannot attach."""
        return None

    @abstractmethod
    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Allocate an array; without `prefault`, its memory is allocated on the first write."""

    def close(self) -> None:  # noqa: B027 - ordinary memory is released with the arrays
        """Release the memory; the system reclaims it when no array uses it."""


def open_memory(storage: str, directory: str | Path | None = None, *, prefault: bool = True) -> Memory:
    """Create an allocator.

    Args:
        storage: `ram`, `shm` or `mmap`.
        directory: Directory of the `mmap` files.
        prefault: Allocate memory or disk space immediately.

    Raises:
        ConfigurationError: The storage is unknown or unsupported by this system, or the directory is missing.
    """
    check_known(f"replay storage {storage!r}", storage, get_args(Storage))
    if (directory is not None) != (storage == "mmap"):
        raise ConfigurationError(
            f"replay storage_dir is {str(directory)!r} and storage is {storage!r}; storage='mmap' requires "
            "storage_dir, and other storages do not accept it"
        )
    if storage == "ram":
        return RamMemory(prefault=prefault)
    if storage == "shm" and not hasattr(os, "memfd_create"):
        raise ConfigurationError("replay storage 'shm' needs Linux; use storage='mmap'")
    if directory is not None and not Path(directory).is_dir():
        raise ConfigurationError(f"replay storage_dir {str(directory)!r} is not a directory; create it first")
    return FileMemory(None if directory is None else Path(directory), prefault=prefault)


class RamMemory(Memory):
    """Ordinary memory of this process.

    From 4 MB on, NumPy requests huge pages itself.
    """

    def __init__(self, *, prefault: bool = True) -> None:
        self._prefault = prefault

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Allocate an array of zeros.

        Raises:
            ConfigurationError: There is not enough memory.
        """
        size_bytes, fill = _size(shape, dtype), prefault and self._prefault
        if fill and size_bytes > _SMALL_BYTES and size_bytes > (available := available_bytes()):
            raise ConfigurationError(
                _too_large(name, size_bytes, f"only {available / _GIB:.1f} GiB of memory are free")
            )
        try:
            array: NDArray[Any] = np.empty(shape, dtype) if fill else np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: beyond the address space
            raise ConfigurationError(_too_large(name, size_bytes, "the system has less")) from error
        if fill:  # not np.zeros, which requests no huge pages
            array.reshape(-1).view(np.uint8).fill(0)
        self.size_bytes += size_bytes * prefault
        return array


class FileMemory(Memory):
    """Unnamed files in memory (`shm`) or in a directory (`mmap`).

    The system deletes such a file when the last process that has it open or mapped exits, even by SIGKILL, so nothing
    is left behind. Another process of the same user on this machine opens it through `/proc`.
    """

    def __init__(self, directory: Path | None, *, prefault: bool = True) -> None:
        self._directory, self._prefault = directory, prefault
        self._arrays: dict[str, tuple[int, tuple[int, int]]] = {}
        self._close = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._close.close)

    @property
    def handle(self) -> MemoryHandle | None:
        """The argument of `AttachedMemory`; None without `/proc`, or after `close`."""
        if not self._finalizer.alive or not Path("/proc/self/fd").is_dir():
            return None
        return MemoryHandle(os.getpid(), dict(self._arrays))

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Allocate an array of zeros in its own file.

        Raises:
            ConfigurationError: There is not enough memory or disk space.
        """
        size_bytes = max(_size(shape, dtype), 1)
        descriptor = self._open(name)
        try:
            self._reserve(descriptor, size_bytes, is_whole=prefault and self._prefault)
            memory = _map(descriptor, size_bytes, writable=True)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_SPACE:
                raise
            resource = "memory" if self._directory is None else f"space in {self._directory}"
            raise ConfigurationError(_too_large(name, size_bytes, f"there is not enough {resource}")) from error
        if prefault and self._prefault and self._directory is None:
            with contextlib.suppress(OSError, ValueError):  # older kernels map each page on its first use
                memory.madvise(_MADV_POPULATE_WRITE)
        status = os.fstat(descriptor)
        self._arrays[name] = descriptor, (status.st_dev, status.st_ino)
        self.size_bytes += size_bytes * prefault
        return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)

    def close(self) -> None:
        """Close the files; no process can attach afterwards, and arrays in use remain valid."""
        self._finalizer()

    def _open(self, name: str) -> int:
        if self._directory is None:
            descriptor = os.memfd_create(f"trieye-{name}")
        else:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                descriptor = os.dup(file.fileno())
        self._close.callback(os.close, descriptor)
        return descriptor

    def _reserve(self, descriptor: int, size_bytes: int, *, is_whole: bool) -> None:
        os.ftruncate(descriptor, size_bytes)
        if not is_whole:
            return
        if self._directory is None and size_bytes > _SMALL_BYTES and size_bytes > available_bytes():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if hasattr(os, "posix_fallocate"):  # if the disk filled up later, writing a row would kill the process
            os.posix_fallocate(descriptor, 0, size_bytes)


class AttachedMemory(Memory):
    """The arrays of another process, read-only.

    Args:
        handle: The owner's `handle`.
    """

    def __init__(self, handle: MemoryHandle) -> None:
        self._handle = handle

    def allocate(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        *,
        prefault: bool = True,  # noqa: ARG002 - required by the base class
    ) -> NDArray[Any]:
        """Map the array of that name.

        Raises:
            ConfigurationError: The owner has exited or is on another machine, or the array does not match the handle.
        """
        index, identity = self._handle.arrays[name]
        path = Path(f"/proc/{self._handle.pid}/fd/{index}")
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ConfigurationError(
                f"replay array {name!r} of process {self._handle.pid} cannot be attached: {error.strerror}; that "
                "process must be alive, on this machine, and of the same user"
            ) from error
        try:
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != identity:
                raise ConfigurationError(
                    f"replay array {name!r} of process {self._handle.pid} does not match this handle; get a new handle "
                    "from the owner"
                )
            memory = _map(descriptor, max(_size(shape, dtype), 1), writable=False)
        finally:
            os.close(descriptor)
        return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def available_bytes(root: Path = Path("/")) -> int:
    """Return an estimate of the memory that this process can still allocate, in bytes.

    Args:
        root: Parent directory of `proc` and `sys`.
    """
    free_bytes = [_UNLIMITED if (free := _number(root / "proc/meminfo", "MemAvailable:")) is None else free * 1024]
    free_bytes += [_left_in(group, *names) for names in _GROUP_FILES for group in _memory_groups(root)]
    return max(min(free_bytes), 0)


def _memory_groups(root: Path) -> Iterator[Path]:
    """Yield the directories that limit the memory of this process: its control group and the enclosing ones."""
    yield from (mounts := (root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"))  # inside a container, the only ones
    lines = []
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    for line in lines:  # 0::/path, and with version 1 also 4:memory:/path
        _, controllers, path = line.split(":", 2)
        group = Path(path.strip("/"))
        for root_group in mounts if controllers in {"", "memory"} else ():
            yield from (root_group / ancestor for ancestor in (group, *group.parents))


def _left_in(group: Path, limit: str, usage: str, reclaimable: str) -> int:
    """Return the unused bytes of a control group; unused cached files count as free."""
    limit_bytes = _number(group / limit)
    if limit_bytes is None:
        return _UNLIMITED
    used_bytes = (_number(group / usage) or 0) - (_number(group / "memory.stat", reclaimable) or 0)
    return limit_bytes - max(used_bytes, 0)


def _number(path: Path, key: str = "") -> int | None:
    """Return the number in a system file, or the number after a key; None if there is none, as with `max`."""
    try:
        words = path.read_text("ascii").split()
        return int(words[words.index(key) + 1 if key else 0])
    except (OSError, ValueError, IndexError):
        return None


def _map(descriptor: int, size_bytes: int, *, writable: bool) -> mmap.mmap:
    memory = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _size(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _too_large(name: str, size_bytes: int, reason: str) -> str:
    return (
        f"replay storage of {name!r} needs {size_bytes / _GIB:.1f} GiB, but {reason}; lower replay.capacity, or use "
        "storage='mmap' in a directory with more space"
    )
