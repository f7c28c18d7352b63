"""OutputLog: copies printed lines to a file, in the final form that a terminal shows.

It copies text written to `sys.stdout` and `sys.stderr`, including by loggers, but not the output
of C libraries and subprocesses, which write to the file descriptors: a pipe in their place would lose its content at a
kill, and `isatty` would return False.
"""

import os
import re
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trieye.process.progress import say

MAX_OUTPUT_BYTES = 64 * 2**20
"""Limit of the file size; headings, tracebacks and a line that reports the limit may exceed it."""

PIPELINE_S = 0.1
"""A closed terminal also ends the other programs of a pipeline, such as `tee`, a moment later."""

_MAX_LINE = 2**16
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
"""Colors, cursor movements, window titles."""

_COLORS = re.compile(_ESCAPES.pattern.encode())


class OutputLog:
    """Appends everything that this process prints to a file, until `close`; several may be open at once.

    A line is written to the file before `print` returns, so a kill loses at most an incomplete line that was not
    flushed. Only the last version of a rewritten line, such as a progress bar, is stored. Forked children print to the
    same file.

    Args:
        path: The file; existing content is preserved.
        redact: Removes secrets from a text.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, redact: Callable[[str], str] = str) -> None:
        self._path, self._redact = path, redact
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._is_copying = True
        # a program may redirect one stream to the other: both names refer to one object
        streams = {id(stream): stream for stream in (sys.stdout, sys.stderr) if stream is not None}
        self._tees = [tee for stream in streams.values() if (tee := _StreamTee.of(stream, self._copy)) is not None]

    def keep(self, text: str) -> None:
        """Write lines that were not printed, such as a heading or a traceback, even if the size limit is reached."""
        for tee in self._tees:
            tee.emit_incomplete()
        self._write(self._redact(_ESCAPES.sub("", text)).rstrip("\n") + "\n", is_limited=False)

    def close(self) -> None:
        """Write incomplete lines and stop copying; idempotent."""
        for tee in reversed(self._tees):
            tee.emit_incomplete()
            tee.close()
        self._tees = []
        self._is_copying = False
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _copy(self, text: str) -> None:
        if self._is_copying:
            self._write(self._redact(_ESCAPES.sub("", text) if "\x1b" in text else text), is_limited=True)

    def _write(self, text: str, *, is_limited: bool) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            # forked children write to the file too, so its size is queried each time
            if is_limited and os.fstat(self._descriptor).st_size + len(data) > MAX_OUTPUT_BYTES:
                self._is_copying = False
                self._write(f"trieye: this file is full ({MAX_OUTPUT_BYTES >> 20} MiB)\n", is_limited=False)
                say(f"{self._path} is full ({MAX_OUTPUT_BYTES >> 20} MiB); further output is not stored in it")
                return
            os.write(self._descriptor, data)
        except OSError as error:  # must not make `print` fail
            if self._is_copying:
                self._is_copying = False
                say(f"cannot write {self._path} ({error.strerror}); further output is not stored in it")


class _StreamTee:
    """Copies the text written to a stream by replacing its `write` and `flush`; the stream object stays the same.

    Args:
        stream: The stream.
        emit: Receives complete lines, or the flushed part of a line.
    """

    def __init__(self, stream: Any, emit: Callable[[str], None]) -> None:
        self._stream, self._emit = stream, emit
        self._old_methods = {name: vars(stream).get(name) for name in ("write", "flush")}
        self._write, self._flush = stream.write, stream.flush
        self._line = ""
        self._is_continued = False  # the file contains the beginning of the line
        # guards `_line` and `_is_continued`; reentrant: a signal handler or finalizer may print during a print
        self._lock = threading.RLock()
        self._is_open = True
        stream.write, stream.flush = self.write, self.flush
        _tees.add(self)

    @classmethod
    def of(cls, stream: Any, emit: Callable[[str], None]) -> "_StreamTee | None":
        """Return a tee, or None if the methods of the stream cannot be replaced."""
        try:
            return cls(stream, emit)
        except (AttributeError, TypeError):
            return None

    def write(self, text: Any, *extra_args: Any) -> Any:
        if self._is_open and isinstance(text, str):
            self._record(text)
        return self._write(text, *extra_args)

    def flush(self) -> Any:
        if self._line and "\r" not in self._line and "\x1b" not in self._line:  # a progress bar will be rewritten
            self.emit_incomplete()
        return self._flush()

    def emit_incomplete(self) -> None:
        """Emit the incomplete line."""
        with self._lock:
            part, self._line = self._continued(self._line), ""
            if part:
                self._is_continued = True
                self._emit(part)

    def close(self) -> None:
        self._is_open = False
        self.restore()

    def restore(self) -> None:
        """Restore the methods of the stream, unless other code has replaced them in the meantime."""
        for name, old_method in self._old_methods.items():
            if getattr(self._stream, name) == getattr(self, name):
                delattr(self._stream, name)
                if old_method is not None:
                    setattr(self._stream, name, old_method)
                    if isinstance(owner := getattr(old_method, "__self__", None), _StreamTee) and not owner._is_open:  # noqa: SLF001 - its own class
                        owner.restore()

    def replace_lock(self) -> None:
        """Replace a lock that a thread of the parent held when this process was forked."""
        self._lock = threading.RLock()

    def _record(self, text: str) -> None:
        with self._lock:
            if "\n" not in text and "\r" not in text and len(self._line) < _MAX_LINE:  # `print` writes in parts
                self._line += text
                return
            lines, newline, last_line = (self._line + text).rpartition("\n")
            if "\r" in last_line:
                last_line = f"\r{_last_version(last_line)}" + ("\r" if last_line.endswith("\r") else "")
            if len(last_line) > _MAX_LINE:
                lines, newline, last_line = f"{lines}{newline}{last_line}", "", ""
            self._line = last_line
            if lines or newline:
                if "\r" in lines:
                    first_line, *other_lines = lines.split("\n")
                    lines = "\n".join([self._continued(first_line), *map(_last_version, other_lines)])
                self._is_continued = not newline
                self._emit(lines + newline)

    def _continued(self, line: str) -> str:
        """Return the last version of the current line, on a new line if the file contains an earlier version."""
        last_version = _last_version(line)
        return f"\n{last_version}" if self._is_continued and last_version != line.rstrip("\r") else last_version


def _last_version(line: str) -> str:
    """Return the last version of a line that was overwritten by carriage returns."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


_tees: "weakref.WeakSet[_StreamTee]" = weakref.WeakSet()


def _replace_locks_in_child() -> None:
    for tee in _tees:
        tee.replace_lock()


os.register_at_fork(after_in_child=_replace_locks_in_child)


def flush_streams() -> None:
    """Flush `sys.stdout` and `sys.stderr`, unless they are closed, None, or objects of a program that cannot flush."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a border: code of the user
            stream.flush()


_printing_to: list[Path] = []


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Append the output of this process and its children within the block to a file, without colors.

    Colors of a process that is killed remain in the file. At the end, `sys.stdout` and `sys.stderr` are restored if the
    block has replaced or closed them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flush_streams()
    streams, originals = (sys.stdout, sys.stderr), [os.dup(1), os.dup(2)]
    with path.open("a+b", buffering=0) as file:
        begin = os.fstat(file.fileno()).st_size
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        _printing_to.append(path)
        try:
            yield
        finally:
            _printing_to.pop()
            flush_streams()
            sys.stdout, sys.stderr = streams
            flush_streams()  # objects in their place may have written to them
            for descriptor, copy in zip((1, 2), originals, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
            sys.stdout, sys.stderr = (_reopened(*numbered) for numbered in enumerate(streams, 1))
            _remove_colors(file.fileno(), begin)


def _reopened(descriptor: int, stream: Any) -> Any:
    """Return a stream or, if it is closed, a new stream for its file descriptor."""
    if not getattr(stream, "closed", False):
        return stream
    return open(descriptor, "w", buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False)


def printed_path() -> Path | None:
    """Return the file of the current `printing_to` block; None outside of one."""
    return _printing_to[-1] if _printing_to else None


def print_to(path: Path) -> None:
    """Append the output of this process to a file from now on."""
    with suppress(OSError), path.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)


def discard_dead_output() -> None:
    """Redirect standard output and error to /dev/null if their terminal, or the reader of their pipe, no longer exists.

    Otherwise `print` in a step, and the flush at exit, would fail.
    """
    time.sleep(PIPELINE_S)
    streams = select.poll()
    for descriptor in (1, 2):
        streams.register(descriptor, 0)
    with suppress(OSError), Path(os.devnull).open("wb") as null:
        for descriptor, events in streams.poll(0):
            if events & (select.POLLERR | select.POLLHUP):
                os.dup2(null.fileno(), descriptor)


def _remove_colors(descriptor: int, begin: int) -> None:
    """Remove the colors from the part of a file that starts at a byte."""
    size = os.fstat(descriptor).st_size - begin
    if size > MAX_OUTPUT_BYTES:
        return
    with suppress(OSError):
        text = os.pread(descriptor, size, begin)
        if (plain := _COLORS.sub(b"", text)) != text:
            os.ftruncate(descriptor, begin)
            os.write(descriptor, plain)
