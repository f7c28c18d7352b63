"""Crash report: a message that a guard process prints when this process was ended before it could print anything."""

import contextlib
import subprocess

_SCRIPT = "trap '' INT TERM HUP USR1 XCPU; read -r _ || printf 'trieye: %s\\n' \"$1\" >&2"


class CrashReport:
    """Prints a text on standard error when this process is gone, unless `withdraw` was called before.

    A shell waits at the end of a pipe, which the system closes however the process ends.

    Args:
        text: The message.
    """

    def __init__(self, text: str) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell, no report
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT, "sh", text],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )

    def withdraw(self) -> None:
        """Print nothing; a second call does nothing."""
        shell, self._shell = self._shell, None
        if shell is not None:
            with contextlib.suppress(OSError):
                shell.communicate(b"\n")
