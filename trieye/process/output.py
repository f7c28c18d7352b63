"""OutputLog: what the process prints, kept in a file besides, line by line as a terminal shows it at last.

What is printed through `sys.stdout` and `sys.stderr` is kept, by loggers that hold one of them, too. What C libraries
and subprocesses write to the descriptors themselves is not: a pipe in their place would die at a kill with what is in
it, and a program that asks whether it has a terminal would be told no.
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
"""Of the file; headings, tracebacks and one line that says that it is full come besides."""

_MAX_LINE = 2**16
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")
"""Colors, movements of the cursor, titles of windows."""


class OutputLog:
    """A file to which everything is added that this process prints, until `close`; several may be open at once.

    Each line is with the system before `print` returns, so that a kill takes nothing but a line that is not complete
    and was not flushed. Of a line that is written again and again, as a progress bar is, the last version is kept. What
    forked children print goes to the same file.

    Args:
        path: The file; what is there already stays.
        redact: Takes secrets out of a text.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, redact: Callable[[str], str] = str) -> None:
        self._path, self._redact = path, redact
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        self._is_taking = True
        # the same object is known by both names where a program redirects one into the other
        streams = {id(stream): stream for stream in (sys.stdout, sys.stderr) if stream is not None}
        self._ears = [ear for stream in streams.values() if (ear := _Ear.of(stream, self._take)) is not None]

    def keep(self, text: str) -> None:
        """Add lines that nobody printed, such as a heading or a traceback, also if the file is full."""
        for ear in self._ears:
            ear.hand_over()
        self._write(self._redact(_ESCAPES.sub("", text)).rstrip("\n") + "\n", limited=False)

    def close(self) -> None:
        """Add what is there of lines that are not complete, and keep nothing more; a second call does nothing."""
        for ear in reversed(self._ears):
            ear.hand_over()
            ear.close()
        self._ears = []
        self._is_taking = False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, text: str) -> None:
        if self._is_taking:
            self._write(self._redact(_ESCAPES.sub("", text) if "\x1b" in text else text), limited=True)

    def _write(self, text: str, *, limited: bool) -> None:
        data = text.encode("utf-8", "backslashreplace")
        try:
            # its size is asked for each time: forked children and their children write, too
            if limited and os.fstat(self._file).st_size + len(data) > MAX_OUTPUT_BYTES:
                self._is_taking = False
                self._write(f"trieye: this file is full ({MAX_OUTPUT_BYTES >> 20} MiB)\n", limited=False)
                say(f"{self._path} is full ({MAX_OUTPUT_BYTES >> 20} MiB); what is printed from now on is not kept")
                return
            os.write(self._file, data)
        except OSError as error:  # never a reason for `print` to fail
            if self._is_taking:
                self._is_taking = False
                say(f"{self._path} cannot be written ({error.strerror}); what is printed from now on is not kept")


class _Ear:
    """Listens to one stream by standing in for its `write` and `flush`; the stream itself stays where and what it is.

    Args:
        stream: The stream.
        take: Gets whole lines, or the part of one that was flushed.
    """

    def __init__(self, stream: Any, take: Callable[[str], None]) -> None:
        self._stream, self._take = stream, take
        self._before = {name: vars(stream).get(name) for name in ("write", "flush")}
        self._write, self._flush = stream.write, stream.flush
        self._line = ""
        self._has_begun = False  # the file has the beginning of the line
        # guards `_line` and `_has_begun`; a signal handler and a finalizer may print in the midst of a print
        self._lock = threading.RLock()
        self._is_open = True
        stream.write, stream.flush = self.write, self.flush
        _ears.add(self)

    @classmethod
    def of(cls, stream: Any, take: Callable[[str], None]) -> "_Ear | None":
        """Return one, or None if the stream does not let anybody stand in."""
        try:
            return cls(stream, take)
        except (AttributeError, TypeError):
            return None

    def write(self, text: Any, *rest: Any) -> Any:
        if self._is_open and isinstance(text, str):
            self._hear(text)
        return self._write(text, *rest)

    def flush(self) -> Any:
        if self._line and "\r" not in self._line and "\x1b" not in self._line:  # a bar will be written over
            self.hand_over()
        return self._flush()

    def hand_over(self) -> None:
        """Give the part of a line that is there to the file."""
        with self._lock:
            part, self._line = self._continued(self._line), ""
            if part:
                self._has_begun = True
                self._take(part)

    def close(self) -> None:
        self._is_open = False
        self.step_down()

    def step_down(self) -> None:
        """Give the stream its methods back, unless somebody else stands in for them by now."""
        for name, before in self._before.items():
            if getattr(self._stream, name) == getattr(self, name):
                delattr(self._stream, name)
                if before is not None:
                    setattr(self._stream, name, before)
                    if isinstance(owner := getattr(before, "__self__", None), _Ear) and not owner._is_open:  # noqa: SLF001 - its own class
                        owner.step_down()

    def forget_lock(self) -> None:
        """Let go of a lock that a thread of the parent held when this process was forked."""
        self._lock = threading.RLock()

    def _hear(self, text: str) -> None:
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
                self._take(lines + newline)

    def _continued(self, line: str) -> str:
        """Return the last version of the present line; another line if the file has an earlier version of it."""
        last = _last_version(line)
        return f"\n{last}" if self._has_begun and last != line.rstrip("\r") else last


def _last_version(line: str) -> str:
    """Return what a terminal shows of a line over which others were written."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


_ears: "weakref.WeakSet[_Ear]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for ear in _ears:
        ear.forget_lock()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Let what this process and its children print in the block go to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = [os.dup(1), os.dup(2)]
    with path.open("ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        for number, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)
