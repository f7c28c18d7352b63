"""MirrorStore: access to the objects below a URL, in an object store or a directory, through fsspec."""

import contextlib
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from trieye.config.locations import require_packages
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError

MAX_READ_BYTES = 64 << 20
"""Maximum bytes that `read` returns: markers are smaller, but foreign objects may be huge."""

MAX_ERROR = 300


class MirrorStore:
    """Reads, writes, lists and deletes objects by their keys, such as `a/b`.

    All methods block on the network, and raise

    - FileNotFoundError: The object or the bucket does not exist.
    - ConnectionError: The store does not answer, refuses the request, or fails; the message includes its reason.

    Args:
        url: A URL that `check_mirror_url` accepts.
        *inside: Path components below the URL.

    Attributes:
        url: The URL.
        address: The URL with the path components.

    Raises:
        ConfigurationError: The package for the store is missing or unusable.
    """

    def __init__(self, url: str, *path_parts: str) -> None:
        require_packages(url)
        try:
            from fsspec.core import url_to_fs

            is_local = url.startswith("file://")
            options: dict[str, Any] = {"auto_mkdir": True} if is_local else {"use_listings_cache": False}
            # fsspec would share a cached instance and its connections among all threads
            self._fs, root = url_to_fs(url, skip_instance_cache=True, **options)
        except Exception as error:  # the border to fsspec, which imports and configures other libraries
            raise ConfigurationError(f"persistence.mirror={url} cannot be used: {_reason(error)}") from error
        self.url = url
        self.address = posixpath.join(url, *path_parts)
        self._is_local = is_local
        self._root = posixpath.join(root, *path_parts)

    def list(self, prefix: str = "") -> dict[str, int]:
        """Return the key and size in bytes of each object below a prefix, which is empty or a directory."""
        root = posixpath.join(self._root, prefix).rstrip("/")
        with self._explained("list", root):
            if self._is_local:
                sizes = dict(_files_below(root))
            else:
                self._fs.invalidate_cache()
                sizes = {key: int(info["size"]) for key, info in self._fs.find(root, detail=True).items()}
        return {posixpath.join(prefix, key[len(root) :].lstrip("/")): size for key, size in sizes.items()}

    def put(self, path: Path, key: str) -> None:
        """Copy a file to an object atomically."""
        target = self._path(key)
        with self._explained("write", target):
            if self._is_local:  # a direct copy would be visible before it is complete
                self._fs.put_file(str(path), f"{target}.part")
                self._fs.mv(f"{target}.part", target)
            else:
                self._fs.put_file(str(path), target)

    def get(self, key: str, path: Path) -> None:
        """Copy an object to a file; the caller verifies its bytes."""
        source = self._path(key)
        with self._explained("read", source):
            self._fs.get_file(source, str(path))

    def read(self, key: str) -> bytes:
        """Return the bytes of a small object, at most `MAX_READ_BYTES` of them."""
        source = self._path(key)
        with self._explained("read", source):
            return bytes(self._fs.cat_file(source, start=0, end=MAX_READ_BYTES))

    def delete(self, key: str) -> None:
        """Delete an object, and directories that become empty; a missing object is ignored."""
        target = self._path(key)
        with self._explained("delete", target), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(target)
        if self._is_local:
            with contextlib.suppress(OSError):  # a directory is not empty
                for parent in PurePosixPath(target).parents[: key.count("/") + 1]:  # up to the directory of the run
                    self._fs.rmdir(str(parent))

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, key)

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # the border to the store libraries with their various exceptions
            raise ConnectionError(f"the mirror {self.url} cannot {verb}: {_reason(error)} ({path})") from error


def _files_below(directory: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file; unlike fsspec, raise for unreadable directories."""
    for parent, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for name in names:
            path = f"{parent}/{name}"
            with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                yield path, os.lstat(path).st_size


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # not yet created, or deleted in the meantime
        raise error


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return redacted_text(f"{type(error).__name__}: {lines[0]}")[:MAX_ERROR]
