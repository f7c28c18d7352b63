"""CrashReport: a message that a guard process prints if this process dies before it can print anything."""

import contextlib
import subprocess

_SCRIPT = "trap '' INT TERM HUP USR1 XCPU; read -r _ || printf 'trieye: %s\\n' \"$1\" >&2"


class CrashReport:
    """Prints a text to standard error when this process dies, unless `withdraw` was called before.

    A shell waits for the end of a pipe, which the kernel closes however this process ends.

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
        """Cancel the report; idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            with contextlib.suppress(OSError):
                shell.communicate(b"\n")
