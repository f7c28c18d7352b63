"""Atomic writes of files and directories: a crash leaves the old or the new content, never a mixture."""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

_ABANDONED_AFTER_S = 24 * 3600.0
_MAX_HOST_LENGTH = 32
_in_use: set[Path] = set()


def short_host(name: str) -> str:
    """Return a host name as part of file names, of 32 characters at most: names of runs leave 55 bytes for suffixes."""
    safe_name = "".join(char if char.isalnum() or char in "-." else "_" for char in name) or "host"
    if len(safe_name) <= _MAX_HOST_LENGTH:
        return safe_name
    return f"{safe_name[: _MAX_HOST_LENGTH - 9]}-{zlib.crc32(safe_name.encode()):08x}"


_HOST = short_host(socket.gethostname())


def fsync_directory(path: Path) -> None:
    """Flush a directory to disk, so that its entries survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes, *, is_lasting: bool = True) -> None:
    """Replace the content of a file; readers see the old or the new content, even after a crash of this process.

    Args:
        path: The file.
        data: The new content.
        is_lasting: Whether to fsync; without it a power loss may leave an empty file.

    Raises:
        OSError: The directory is missing or not writable, or the disk is full; `path` is unchanged.
    """
    with replacing(path, is_lasting=is_lasting) as scratch, scratch.open("xb") as file:
        file.write(data)
        if is_lasting:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path, *, is_lasting: bool = True) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block ends; the block writes and fsyncs it.

    Raises:
        OSError: See `write_atomic`.
    """
    scratch = _scratch(path, "tmp")
    try:
        yield scratch
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    if is_lasting:
        fsync_directory(path.parent)


def relink(link: Path, target: Path) -> None:
    """Make `link` a relative symbolic link to `target`, and atomically replace a link or file of that name.

    Directories above either may be symbolic links.
    """
    with replacing(link, is_lasting=False) as scratch:
        scratch.symlink_to(os.path.relpath(target.parent.resolve() / target.name, link.parent.resolve()))


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link `target` to `source`, or copy and fsync it if the file system has no links; creates the parent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copyfile(source, target, follow_symlinks=False)
        if not target.is_symlink():
            with target.open("rb") as file:
                os.fsync(file.fileno())


@contextlib.contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield an empty temporary directory, which becomes `path` when the block ends, and is deleted if the block fails.

    An existing directory or file at `path` is replaced by two renames. A kill between them leaves the old content under
    a temporary name, and `recover` restores it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch(path, "tmp")
    _in_use.add(scratch)
    try:
        scratch.mkdir()
        yield scratch
        fsync_directory(scratch)
        _install(scratch, path)
    except BaseException:
        remove(scratch)
        raise
    finally:
        _in_use.discard(scratch)


def _install(scratch: Path, path: Path) -> None:
    if not os.path.lexists(path):
        scratch.rename(path)
        fsync_directory(path.parent)
        return
    old_path = _scratch(path, "old")
    _in_use.add(old_path)
    try:
        path.rename(old_path)
        scratch.rename(path)
        fsync_directory(path.parent)
        remove_directory(old_path)
    except BaseException:  # including Ctrl-C
        if os.path.lexists(old_path) and not os.path.lexists(path):
            old_path.rename(path)
        raise
    finally:
        _in_use.discard(old_path)


def remove_directory(path: Path) -> None:
    """Delete a directory; a kill never leaves a partly deleted directory under its name."""
    scratch = _scratch(path, "tmp")
    path.rename(scratch)
    remove(scratch)


def remove(path: Path) -> None:
    """Delete a file, a link or a directory tree, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def replaced(parent: Path) -> dict[str, Path]:
    """Return entries that are missing after interrupted replacements: names, and the paths with the old content."""
    old_paths = {original_name(path): path for path in sorted(parent.glob(".old-*~*~*~*"))}
    return {name: path for name, path in old_paths.items() if not os.path.lexists(parent / name)}


def recover(parent: Path, name: str | None = None) -> None:
    """Restore the old content after interrupted replacements, and delete temporary files of dead processes.

    Args:
        parent: The directory; no other process may write the entries that are recovered.
        name: The entry to recover; None recovers all entries.
    """
    for missing_name, old_path in replaced(parent).items():
        if name in {None, missing_name} and _is_abandoned(old_path):
            old_path.rename(parent / missing_name)
    for leftover_path in (*abandoned(parent, name), *abandoned(parent, name, "old")):
        remove(leftover_path)


def abandoned(parent: Path, name: str | None = None, kind: str = "tmp") -> list[Path]:
    """Return the temporary paths that dead processes left behind, for one entry or for all."""
    pattern = "*" if name is None else glob.escape(name)
    return sorted(path for path in parent.glob(f".{kind}-{pattern}~*~*~*") if _is_abandoned(path))


def _scratch(path: Path, kind: str) -> Path:
    return path.parent / f".{kind}-{path.name}~{_HOST}~{os.getpid()}~{secrets.token_hex(4)}"


def original_name(path: Path) -> str:
    """Return the name of the entry that a temporary path belongs to."""
    return path.name.split("-", 1)[1].rsplit("~", 3)[0]


def _is_abandoned(path: Path) -> bool:
    if path in _in_use:
        return False
    host, pid = path.name.rsplit("~", 3)[1:3]
    if host == _HOST and pid.isdigit():
        return int(pid) == os.getpid() or not _is_alive(int(pid))
    with contextlib.suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > _ABANDONED_AFTER_S
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
