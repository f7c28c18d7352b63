"""Where the arrays of a replay buffer live: ordinary memory, shared memory, or files larger than the memory."""

import contextlib
import errno
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.rows.schema import check_known

Storage = Literal["ram", "shm", "mmap"]
STORAGES: tuple[Storage, ...] = ("ram", "shm", "mmap")

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it
_NO_SPACE = {errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG, errno.EINVAL}
_GIB = 2**30
_UNLIMITED = 1 << 62
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of a control group, version 2 and 1: its limit, what it uses, and in `memory.stat` the part that the system can take
back; bytes."""


@dataclass(frozen=True)
class MemoryHandle:
    """What another process of this machine needs to look at the same arrays; can be pickled.

    Attributes:
        pid: The process that owns the memory.
        arrays: File descriptor, identity (device and inode), dtype and shape of each array, by name.
    """

    pid: int
    arrays: Mapping[str, tuple[int, tuple[int, int], str, tuple[int, ...]]]


class Memory(Protocol):
    """Makes arrays that begin as zeros; each name once."""

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Make an array; with `prefault` false its memory is taken when it is first written."""

    @property
    def handle(self) -> MemoryHandle | None:
        """What another process attaches to; None if it cannot."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays made so far."""

    def close(self) -> None:
        """Let go of the memory; the system takes it back when no array uses it any more."""


def open_memory(
    storage: str, directory: str | Path | None = None, *, prefault: bool = True, is_full_soon: bool = False
) -> Memory:
    """Return the memory of a kind.

    Args:
        storage: `ram`, `shm` or `mmap`.
        directory: Where the files of `mmap` lie.
        prefault: Take the memory, or the disk space, at once.
        is_full_soon: All of it is about to be written, so that `ram` need not be touched before.

    Raises:
        ConfigurationError: The kind is unknown or does not exist on this system, or the directory is missing.
    """
    check_known(f"replay storage {storage!r}", storage, STORAGES)
    if (directory is not None) != (storage == "mmap"):
        raise ConfigurationError(
            f"replay storage_dir is {str(directory)!r}; it is needed for storage='mmap' and for no other, "
            f"and storage is {storage!r}"
        )
    if storage == "ram":
        return RamMemory(prefault=prefault, is_full_soon=is_full_soon)
    if storage == "shm" and not hasattr(os, "memfd_create"):
        raise ConfigurationError("replay storage 'shm' needs Linux; use storage='mmap'")
    if directory is not None and not Path(directory).is_dir():
        raise ConfigurationError(f"replay storage_dir {str(directory)!r} is no directory; make it first")
    return FileMemory(None if directory is None else Path(directory), prefault=prefault)


class RamMemory:
    """Ordinary memory of this process.

    NumPy asks for huge pages itself, from 4 MB on.
    """

    handle: MemoryHandle | None = None

    def __init__(self, *, prefault: bool = True, is_full_soon: bool = False) -> None:
        self._prefault, self._is_full_soon = prefault, is_full_soon
        self.size_bytes = 0

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Make an array of zeros.

        Raises:
            ConfigurationError: There is less memory.
        """
        size_bytes = _size(shape, dtype)
        if prefault and self._prefault and size_bytes > (available := available_bytes()):
            raise ConfigurationError(_too_large(name, size_bytes, f"{available / _GIB:.1f} GiB of memory are free"))
        fill = prefault and self._prefault and not self._is_full_soon
        try:
            array: NDArray[Any] = np.empty(shape, dtype) if fill else np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: beyond the address space
            raise ConfigurationError(_too_large(name, size_bytes, "that is more than there is")) from error
        if fill:  # not np.zeros, which asks for no huge pages
            array.reshape(-1).view(np.uint8).fill(0)
        self.size_bytes += size_bytes
        return array

    def close(self) -> None:
        """Do nothing: the arrays are all there is."""


class FileMemory:
    """Files without a name: in the memory (`shm`), or in a directory (`mmap`).

    The system deletes such a file when the last process that has it open or mapped ends, however it ends: nothing is
    left behind by a kill. Another process of the same user on this machine opens it through `/proc`.
    """

    def __init__(self, directory: Path | None, *, prefault: bool = True) -> None:
        self._directory, self._prefault = directory, prefault
        self._arrays: dict[str, tuple[int, tuple[int, int], str, tuple[int, ...]]] = {}
        self._close = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._close.close)
        self.size_bytes = 0

    @property
    def handle(self) -> MemoryHandle | None:
        """What `AttachedMemory` takes; None where the system has no `/proc`, or when this is closed."""
        if not self._finalizer.alive or not Path("/proc/self/fd").is_dir():
            return None
        return MemoryHandle(os.getpid(), dict(self._arrays))

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike, *, prefault: bool = True) -> NDArray[Any]:
        """Make an array of zeros in a file of its own.

        Raises:
            ConfigurationError: There is less memory or disk space.
        """
        size_bytes = max(_size(shape, dtype), 1)
        descriptor = self._open(name)
        try:
            self._reserve(descriptor, size_bytes, whole=prefault and self._prefault)
            memory = _map(descriptor, size_bytes, writable=True)
        except (OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_SPACE:
                raise
            place = "memory" if self._directory is None else f"space in {self._directory}"
            raise ConfigurationError(_too_large(name, size_bytes, f"there is not that much {place}")) from error
        if prefault and self._prefault and self._directory is None:
            with contextlib.suppress(OSError, ValueError):  # an older system: each page is mapped when it is used
                memory.madvise(_MADV_POPULATE_WRITE)
        status = os.fstat(descriptor)
        self._arrays[name] = (descriptor, (status.st_dev, status.st_ino), np.dtype(dtype).str, shape)
        self.size_bytes += size_bytes
        return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)

    def close(self) -> None:
        """Close the files; nobody can attach any more, and arrays in use stay."""
        self._finalizer()

    def _open(self, name: str) -> int:
        if self._directory is None:
            descriptor = os.memfd_create(f"trieye-{name}")
        else:
            with tempfile.TemporaryFile(dir=self._directory) as file:
                descriptor = os.dup(file.fileno())
        self._close.callback(os.close, descriptor)
        return descriptor

    def _reserve(self, descriptor: int, size_bytes: int, *, whole: bool) -> None:
        os.ftruncate(descriptor, size_bytes)
        if not whole:
            return
        if self._directory is None and size_bytes > available_bytes():
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if hasattr(os, "posix_fallocate"):  # a disk that is full later would kill the process that writes a row
            os.posix_fallocate(descriptor, 0, size_bytes)


class AttachedMemory:
    """The arrays of another process, to be read only.

    Args:
        handle: What the owner's `handle` was.
    """

    handle: MemoryHandle | None = None

    def __init__(self, handle: MemoryHandle) -> None:
        self._handle = handle
        self.size_bytes = 0

    def allocate(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        *,
        prefault: bool = True,  # noqa: ARG002 - as others
    ) -> NDArray[Any]:
        """Map the array of that name.

        Raises:
            ConfigurationError: The owner is gone or on another machine, or its array is another one.
        """
        number, identity, own_dtype, own_shape = self._handle.arrays.get(name, (-1, (0, 0), "", ()))
        path = Path(f"/proc/{self._handle.pid}/fd/{number}")
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ConfigurationError(
                f"replay array {name!r} of process {self._handle.pid} cannot be attached: {error.strerror}; that "
                "process has to be alive, on this machine, and of the same user"
            ) from error
        try:
            status = os.fstat(descriptor)
            found = ((status.st_dev, status.st_ino), own_dtype, own_shape)
            if found != (identity, np.dtype(dtype).str, shape):
                raise ConfigurationError(
                    f"replay array {name!r} of process {self._handle.pid} is not the one of this handle; ask the owner "
                    "for a new one"
                )
            size_bytes = max(_size(shape, dtype), 1)
            memory = _map(descriptor, size_bytes, writable=False)
        finally:
            os.close(descriptor)
        self.size_bytes += size_bytes
        return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)

    def close(self) -> None:
        """Do nothing: the maps live as long as the arrays."""


def available_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process can still take, as far as the system tells.

    Args:
        root: Where `proc` and `sys` lie.
    """
    left = [_UNLIMITED if (free := _number(root / "proc/meminfo", "MemAvailable:")) is None else free * 1024]
    left += [_left_in(group, *names) for names in _GROUP_FILES for group in _memory_groups(root)]
    return max(min(left), 0)


def _memory_groups(root: Path) -> Iterator[Path]:
    """Yield the directories that limit the memory of this process: of its control group and of those around it."""
    yield from (mounts := (root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"))  # all that a container sees
    lines = []
    with contextlib.suppress(OSError, ValueError):
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    for line in lines:  # 0::/path, and with version 1 also 4:memory:/path
        _, controllers, path = line.split(":", 2)
        group = Path(path.strip("/"))
        for mount in mounts if controllers in {"", "memory"} else ():
            yield from (mount / around for around in (group, *group.parents))


def _left_in(group: Path, limit: str, usage: str, reclaimable: str) -> int:
    """Return what a control group leaves, in bytes; cached files that nobody uses count as free."""
    most = _number(group / limit)
    if most is None:
        return _UNLIMITED
    used = (_number(group / usage) or 0) - (_number(group / "memory.stat", reclaimable) or 0)
    return most - max(used, 0)


def _number(path: Path, key: str = "") -> int | None:
    """Return the number in a file of the system, or the one behind a key; None if there is none, as with `max`."""
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


def _too_large(name: str, size_bytes: int, found: str) -> str:
    return (
        f"replay storage of {name!r} needs {size_bytes / _GIB:.1f} GiB, and {found}; lower replay.capacity, or use "
        "storage='mmap' in a directory with more space"
    )
