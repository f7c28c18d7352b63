"""OutputLog: copies the standard output and error of this process to a file, line by line.

It copies text written to `sys.stdout` and `sys.stderr`, including by loggers that hold one of these streams. It does
not copy writes of C libraries and subprocesses to the file descriptors: redirecting the descriptors to a pipe would
lose the content of the pipe when the process is killed, and `isatty` would return False.
"""

import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trieye.process.progress import say

MAX_OUTPUT_BYTES = 64 * 2**20
"""Maximum file size; headings, tracebacks and the message that the file is full are written beyond it."""

_MAX_LINE = 2**16
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
"""Escape sequences of terminals: colors, cursor movements, window titles."""


class OutputLog:
    """Appends everything that this process prints to a file, until `close`; several logs may be open at once.

    Each line is written before `print` returns, so that a kill loses at most an incomplete line that was not flushed.
    Of an overwritten line, such as a progress bar, only the last version is written. Output of forked children goes to
    the same file.

    Args:
        path: The file; existing content is preserved.
        redact: Removes secrets from a text.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, redact: Callable[[str], str] = str) -> None:
        self._path, self._redact = path, redact
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._is_recording = True
        # by identity: a program may redirect one stream into the other, so that both names refer to one object
        streams = {id(stream): stream for stream in (sys.stdout, sys.stderr) if stream is not None}
        self._tees = [tee for stream in streams.values() if (tee := _StreamTee.of(stream, self._record)) is not None]

    def keep(self, text: str) -> None:
        """Write lines that were not printed, such as a heading or a traceback, even if the file is full."""
        for tee in self._tees:
            tee.write_pending()
        self._write(self._redact(_ESCAPES.sub("", text)).rstrip("\n") + "\n", limited=False)

    def close(self) -> None:
        """Write incomplete lines and stop copying; idempotent."""
        for tee in reversed(self._tees):
            tee.write_pending()
            tee.close()
        self._tees = []
        self._is_recording = False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _record(self, text: str) -> None:
        if self._is_recording:
            self._write(self._redact(_ESCAPES.sub("", text) if "\x1b" in text else text), limited=True)

    def _write(self, text: str, *, limited: bool) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            # checked at each write, because forked children write to the file too
            if limited and os.fstat(self._file).st_size + len(data) > MAX_OUTPUT_BYTES:
                self._is_recording = False
                self._write(f"trieye: this file is full ({MAX_OUTPUT_BYTES >> 20} MiB)\n", limited=False)
                say(f"{self._path} is full ({MAX_OUTPUT_BYTES >> 20} MiB); further output is not recorded")
                return
            os.write(self._file, data)
        except OSError as error:  # `print` must never fail because of the log
            if self._is_recording:
                self._is_recording = False
                say(f"cannot write {self._path} ({error.strerror}); further output is not recorded")


class _StreamTee:
    """Copies text from a stream by replacing its `write` and `flush` methods; the stream object remains the same.

    Args:
        stream: The stream.
        record: Receives complete lines, or the flushed part of a line.
    """

    def __init__(self, stream: Any, record: Callable[[str], None]) -> None:
        self._stream, self._record = stream, record
        self._before = {name: vars(stream).get(name) for name in ("write", "flush")}
        self._write, self._flush = stream.write, stream.flush
        self._line = ""
        self._has_begun = False  # the beginning of the line is in the file
        # guards `_line` and `_has_begun`; reentrant, because signal handlers and finalizers may print during a print
        self._lock = threading.RLock()
        self._is_open = True
        stream.write, stream.flush = self.write, self.flush
        _tees.add(self)

    @classmethod
    def of(cls, stream: Any, record: Callable[[str], None]) -> "_StreamTee | None":
        """Return a tee, or None if the methods of the stream cannot be replaced."""
        try:
            return cls(stream, record)
        except (AttributeError, TypeError):
            return None

    def write(self, text: Any, *rest: Any) -> Any:
        if self._is_open and isinstance(text, str):
            self._copy(text)
        return self._write(text, *rest)

    def flush(self) -> Any:
        if self._line and "\r" not in self._line and "\x1b" not in self._line:  # a bar will be overwritten
            self.write_pending()
        return self._flush()

    def write_pending(self) -> None:
        """Write the pending part of a line to the file."""
        with self._lock:
            part, self._line = self._continued(self._line), ""
            if part:
                self._has_begun = True
                self._record(part)

    def close(self) -> None:
        self._is_open = False
        self.restore_methods()

    def restore_methods(self) -> None:
        """Restore the methods of the stream, unless they have been replaced again since."""
        for name, before in self._before.items():
            if getattr(self._stream, name) == getattr(self, name):
                delattr(self._stream, name)
                if before is not None:
                    setattr(self._stream, name, before)
                    owner = getattr(before, "__self__", None)
                    if isinstance(owner, _StreamTee) and not owner._is_open:  # noqa: SLF001 - same class
                        owner.restore_methods()

    def replace_lock(self) -> None:
        """Replace the lock after a fork, because a thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _copy(self, text: str) -> None:
        with self._lock:
            if "\n" not in text and "\r" not in text and len(self._line) < _MAX_LINE:  # `print` writes part by part
                self._line += text
                return
            lines, newline, rest = (self._line + text).rpartition("\n")
            if "\r" in rest:
                rest = f"\r{_last_version(rest)}" + ("\r" if rest.endswith("\r") else "")
            if len(rest) > _MAX_LINE:
                lines, newline, rest = f"{lines}{newline}{rest}", "", ""
            self._line = rest
            if lines or newline:
                if "\r" in lines:
                    first, *others = lines.split("\n")
                    lines = "\n".join([self._continued(first), *map(_last_version, others)])
                self._has_begun = not newline
                self._record(lines + newline)

    def _continued(self, line: str) -> str:
        """Return the last version of the current line, on a new line if the file contains an earlier version of it."""
        last = _last_version(line)
        return f"\n{last}" if self._has_begun and last != line.rstrip("\r") else last


def _last_version(line: str) -> str:
    """Return the text that a terminal shows for a line with carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


_tees: "weakref.WeakSet[_StreamTee]" = weakref.WeakSet()


def _replace_locks_in_child() -> None:
    for tee in _tees:
        tee.replace_lock()


os.register_at_fork(after_in_child=_replace_locks_in_child)


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Append the output of this process and its children within the block to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    copies = [os.dup(1), os.dup(2)]
    with path.open("ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        for number, copy in zip((1, 2), copies, strict=True):
            os.dup2(copy, number)
            os.close(copy)
