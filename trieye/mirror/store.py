"""MirrorStore: objects below one address, in an object store or in a directory, through fsspec."""

import contextlib
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trieye.config.mirror import require_package
from trieye.config.redaction import redacted_text
from trieye.exceptions import ConfigurationError

MAX_READ_BYTES = 64 << 20
"""Bytes of an object that `read` takes at most: a mark is smaller, what somebody else put there may not be."""

MAX_ERROR = 300


class MirrorStore:
    """Reads, writes, lists and deletes objects by their keys; `a/b` is a key.

    Its calls wait for the network, and raise

    - FileNotFoundError: There is no such object, or no such bucket.
    - ConnectionError: The store does not answer, refuses, or fails otherwise; the message says what it said.

    Args:
        url: An address that `check_mirror_url` allows.
        *inside: Names below it, each one level.

    Attributes:
        url: The address.
        address: The address with the names.

    Raises:
        ConfigurationError: The package that it needs is missing, or cannot be used.
    """

    def __init__(self, url: str, *inside: str) -> None:
        require_package(url)
        try:
            from fsspec.core import url_to_fs

            is_local = url.startswith("file://")
            options: dict[str, Any] = {"auto_mkdir": True} if is_local else {"use_listings_cache": False}
            # an instance of its own: the library would share one, with its connections, among all threads
            self._fs, root = url_to_fs(url, skip_instance_cache=True, **options)
        except Exception as error:  # the border to the library, which imports and configures others
            raise ConfigurationError(f"persistence.mirror={url}: it cannot be used: {_words(error)}") from error
        self.url = url
        self.address = posixpath.join(url, *inside)
        self._is_local = is_local
        self._root = posixpath.join(root, *inside)

    def list(self, prefix: str = "") -> dict[str, int]:
        """Return the keys below a prefix, which is empty or a level of keys, and the size of each object in bytes."""
        root = posixpath.join(self._root, prefix).rstrip("/")
        with self._explained("list", root):
            if self._is_local:
                found = dict(_files_below(root))
            else:
                self._fs.invalidate_cache()
                found = {key: int(about["size"]) for key, about in self._fs.find(root, detail=True).items()}
        return {posixpath.join(prefix, key[len(root) :].lstrip("/")): size for key, size in found.items()}

    def put(self, path: Path, key: str) -> None:
        """Copy a file to an object, which appears when it is whole."""
        target = self._path(key)
        with self._explained("write", target):
            if self._is_local:  # a copy there appears with its first byte
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
        """Delete an object; one that is gone already is no error."""
        target = self._path(key)
        with self._explained("delete", target), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(target)
        if self._is_local:
            with contextlib.suppress(OSError):  # it holds more
                self._fs.rmdir(posixpath.dirname(target))

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, key)

    @contextlib.contextmanager
    def _explained(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # the border to the libraries of the stores, each with errors of its own
            raise ConnectionError(f"the mirror {self.url} cannot {verb}: {_words(error)} ({path})") from error


def _files_below(directory: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of each file; fsspec would leave out a directory that it cannot read, with all below it."""
    for place, _, names in os.walk(directory, onerror=_raise_unless_missing):
        for name in names:
            path = f"{place}/{name}"
            with contextlib.suppress(FileNotFoundError):  # deleted just now
                yield path, os.lstat(path).st_size


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # nothing was put there yet, or it was deleted just now
        raise error


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return redacted_text(f"{type(error).__name__}: {lines[0]}")[:MAX_ERROR]
