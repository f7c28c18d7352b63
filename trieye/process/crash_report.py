"""Crash report: a message that a guard process prints if this process dies before it could report anything."""

import contextlib
import subprocess

_SCRIPT = "trap '' INT TERM HUP USR1 XCPU; read -r _ || printf 'trieye: %s\\n' \"$1\" >&2"


class CrashReport:
    """Prints a text on standard error when this process exits without having called `withdraw`.

    A shell waits at the other end of a pipe, which the kernel closes at any exit, SIGKILL included.

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
