"""LocalServers: web servers on this machine, for this machine only, that end with this process however it ends."""

import contextlib
import errno
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process import guard

HOST = "127.0.0.1"

START_TIMEOUT_S = 300.0
"""MLflow takes seconds; on a machine that trains on all of its cores, minutes."""

_POLL_S = 0.1
_ANSWER_TIMEOUT_S = 5.0
_SHOWN_LINES = 15


@dataclass(frozen=True, slots=True)
class _Server:
    name: str
    port: int
    health: str
    log: Path
    process: subprocess.Popen[bytes]

    def answers(self) -> bool:
        """Tell whether the server answers; a proxy in the environment is not asked."""
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_TIMEOUT_S)) as probe,
        ):
            probe.request("GET", self.health)
            return probe.getresponse().status == http.HTTPStatus.OK
        return False

    def failure(self, what: str) -> TrieyeError:
        """Return an error with the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return TrieyeError("\n  ".join([f"{self.name} {what}; the end of what it said:", *(lines or ["nothing"])]))


class LocalServers:
    """Starts servers, and ends them with all that they have started when its `with` block is left.

    They are in one process group, which a guard leads (`process/guard.py`): it ends the group when this process is
    gone, by SIGKILL, too. Ctrl-C in a terminal does not reach that group.

    Attributes:
        directory: For what the servers need, such as their logs; it is removed at the end.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="trieye-"))
        self._servers: list[_Server] = []
        # isolated: the directory of the file has modules of the names of others
        command = [sys.executable, "-I", "-S", guard.__file__, str(self.directory)]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)

    @property
    def names(self) -> list[str]:
        """Those of the servers that were started."""
        return [server.name for server in self._servers]

    def start(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        *,
        health: str,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> str:
        """Start a server, which does not answer yet, and return its address.

        Args:
            name: What it is called in messages.
            command: Returns the words that start it, given its port.
            health: Path that it answers with 200 when it is up.
            port: Its port; None: a free one.
            environment: Variables that it has in addition to those of this process.

        Raises:
            ConfigurationError: The port is taken.
        """
        if port is None:
            port = free_port()
        else:
            check_port(port)
        log = self.directory / f"server-{len(self._servers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=self._guard.pid,
                cwd=self.directory,  # where nothing of the user's project is imported by mistake
                # what a server that is killed leaves is removed with the directory
                env={**os.environ, "TMPDIR": str(self.directory), **(environment or {})},
            )
        self._servers.append(_Server(name, port, health, log, process))
        return f"http://{HOST}:{port}"

    def wait(self, tell: Callable[[Sequence[str], float], None]) -> None:
        """Wait until all answer.

        Args:
            tell: Called again and again with the names of those that do not answer yet, and the seconds so far.

        Raises:
            TrieyeError: One has ended, or does not answer for five minutes; the message has the end of its log.
        """
        began, starting = time.monotonic(), list(self._servers)
        while starting := [server for server in starting if not server.answers()]:
            self.check()
            waited_s = time.monotonic() - began
            if waited_s > START_TIMEOUT_S:
                raise starting[0].failure(f"does not answer after {START_TIMEOUT_S:.0f} s")
            tell([server.name for server in starting], waited_s)
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Make sure that all are alive.

        Raises:
            TrieyeError: One has ended; the message has the end of its log.
        """
        for server in self._servers:
            if (code := server.process.poll()) is not None:
                raise server.failure(f"has ended with exit code {code}")

    def close(self) -> None:
        """End all, and remove the directory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGTERM)
        until = time.monotonic() + guard.GRACE_S
        for server in self._servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(max(until - time.monotonic(), 0.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)  # and what they have started
        for process in (*(server.process for server in self._servers), self._guard):
            process.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_port(port: int) -> None:
    """Do nothing if a server can have a port.

    Raises:
        ConfigurationError: It is taken, or not for everybody; the message says by whom, if that can be told.
    """
    try:
        with socket.socket() as probe:
            # as servers do: one that has just ended is no hindrance
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            reason = f"it is taken by {_holder_of(port)}"
        raise ConfigurationError(f"port {port}: {reason}; choose another one, or none for one that is free") from error


def _holder_of(port: int) -> str:
    import psutil  # type: ignore[import-untyped]  # stubs would be one more package

    with contextlib.suppress(psutil.Error, OSError):
        for held in psutil.net_connections("tcp"):
            if held.status == psutil.CONN_LISTEN and held.laddr.port == port and held.pid is not None:
                return f"process {held.pid} ({' '.join(psutil.Process(held.pid).cmdline())[:100]})"
    return "another program"


def free_port() -> int:
    """Return a port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
