"""ProcessIdentity: which process wrote a file, and whether that process still runs."""

import getpass
import os
import platform
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

Liveness = Literal["alive", "dead", "unknown"]
"""`unknown`: the process belongs to another machine or container, whose process table is out of reach."""

_STATE, _START = 0, 19  # fields 3 and 22 of /proc/PID/stat, after the name of the program
_ENDED = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, distinguishable from later processes with the same pid.

    It does not depend on the wall clock: setting the clock changes nothing.

    Attributes:
        host: Name of the machine.
        boot: Boot of the machine and pid namespace, within which a pid and a start time name one process.
        pid: The process.
        start: When it started, in clock ticks after the boot; without /proc its creation time in Unix seconds.
    """

    host: str
    boot: str
    pid: int
    start: float

    @classmethod
    def current(cls) -> Self:
        """Return the identity of this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), _boot(), pid, _start_of(pid) or 0.0)

    @classmethod
    def of_mapping(cls, fields: Mapping[str, Any]) -> Self:
        """Return the identity stored in a JSON object; a missing or malformed field makes the liveness `unknown`."""
        try:
            return cls(
                str(fields.get("host")), str(fields.get("boot", "")), int(fields["pid"]), float(fields.get("start", 0))
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return cls("", "", 0, 0.0)

    def as_mapping(self) -> dict[str, Any]:
        """Return the fields for a JSON object."""
        return asdict(self)

    @property
    def liveness(self) -> Liveness:
        """Whether the process runs now."""
        if self.host != socket.gethostname():
            return "unknown"
        try:
            start = _start_of(self.pid)
        except PermissionError:
            return "unknown"
        if not self.boot:  # recorded by an earlier version, as a pid alone
            return "dead" if start is None else "unknown"
        if self.boot != _boot():  # after a reboot, or in another container with the same host name
            return "dead" if _kernel_of(self.boot) != _kernel_of(_boot()) else "unknown"
        return "alive" if start == self.start else "dead"


def user_name() -> str:
    """Return the name of this process's user, or the number in a container whose user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _kernel_of(boot: str) -> str:
    return boot.partition(" ")[0]


@cache
def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return platform.system()


def _start_of(pid: int) -> float | None:
    """Return when a process started; None if it does not run. A zombie has ended.

    Raises:
        PermissionError: The process belongs to another user, and /proc hides it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if not Path("/proc/self/stat").exists():
            return _creation_time(pid)
        with suppress(ProcessLookupError, OverflowError):
            os.kill(pid, 0)
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in _ENDED else float(fields[_START])


def _creation_time(pid: int) -> float | None:
    import psutil  # type: ignore[import-untyped]  # stubs would be one more package

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None
