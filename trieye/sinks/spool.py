"""Spool: unsent operations of one sink in a file of JSON lines, oldest first."""

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from trieye.exceptions import SerializationError
from trieye.persistence.atomic import fsync_directory
from trieye.sinks.operations import Operation, from_line, to_line

log = logging.getLogger("trieye.sinks")


class Spool:
    """A first-in first-out file; not thread-safe, one process at a time.

    A crash while lines are being sent leaves all of them in the file, so they are sent again by the next attempt; a
    crash while a line is being written costs that line only.

    Attributes:
        weight: Sum of the weights of the operations that wait in the file.
    """

    def __init__(self, path: Path) -> None:
        self.weight = 0
        self._path = path
        self._sent_bytes = 0
        self._reader: BinaryIO | None = None

    def load(self) -> int:
        """Take over what an earlier attempt left, cut off a torn last line and return the weight of the rest."""
        try:
            with self._path.open("r+b") as file:
                whole_bytes = 0
                for line in file:
                    if line.endswith(b"\n"):
                        whole_bytes += len(line)
                        self.weight += self._weight_of(line)
                file.truncate(whole_bytes)
        except FileNotFoundError:
            return 0
        self._remove_if_empty()
        return self.weight

    def append(self, operations: Iterable[Operation]) -> None:
        """Add operations at the end; they survive the death of this process, and that of the machine after `rewrite`.

        Raises:
            OSError: The disk is full or the directory cannot be written; nothing was added.
        """
        operations = list(operations)
        data = b"".join(map(to_line, operations))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(data) != len(data):
                file.truncate(end)
                raise OSError(errno.ENOSPC, "no space left for unsent points", str(self._path))
        self.weight += sum(operation.weight for operation in operations)

    def peek(self) -> tuple[Operation, int] | None:
        """Return the oldest operation and its size in bytes, or None; `pop` takes it away.

        Raises:
            OSError: The file is gone or cannot be read.
        """
        while self.weight:
            if self._reader is None:
                self._reader = self._path.open("rb")
            self._reader.seek(self._sent_bytes)
            line = self._reader.readline()
            if not line:
                raise OSError(errno.EIO, "unsent points were cut off from outside", str(self._path))
            try:
                return from_line(line), len(line)
            except SerializationError as error:
                log.warning("%s: one damaged line is skipped (%s)", self._path, error)
                self._sent_bytes += len(line)
        return None

    def pop(self, operation: Operation, size_bytes: int) -> None:
        """Take the oldest operation away; the file goes when it was the last."""
        self._sent_bytes += size_bytes
        self.weight -= operation.weight
        self._remove_if_empty()

    def forget(self) -> int:
        """Give up what waits in the file, which is left alone, and return its weight."""
        self._close_reader()
        weight, self.weight = self.weight, 0
        self._sent_bytes = self._path.stat().st_size if self._path.exists() else 0
        return weight

    def rewrite(self, before: Iterable[Operation], after: Iterable[Operation]) -> None:
        """Replace the file by `before`, what is unsent of it, and `after`, durably and at once.

        Raises:
            OSError: It cannot be written; the old file is as it was.
        """
        first, last = list(before), list(after)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".tmp")
        with draft.open("wb") as file:
            file.writelines(map(to_line, first))
            file.write(self._unsent_bytes())
            file.writelines(map(to_line, last))
            file.flush()
            os.fsync(file.fileno())
        self._close_reader()
        draft.replace(self._path)
        fsync_directory(self._path.parent)
        self._sent_bytes = 0
        self.weight += sum(operation.weight for operation in (*first, *last))
        self._remove_if_empty()

    def _unsent_bytes(self) -> bytes:
        if not self.weight:
            return b""
        with self._path.open("rb") as file:
            file.seek(self._sent_bytes)
            return file.read()

    def _weight_of(self, line: bytes) -> int:
        try:
            return from_line(line).weight
        except SerializationError:
            return 0

    def _remove_if_empty(self) -> None:
        if self.weight:
            return
        self._close_reader()
        self._path.unlink(missing_ok=True)
        self._sent_bytes = 0

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
