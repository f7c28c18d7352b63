"""LocalServers: web servers that listen on localhost and stop whenever this process exits, by SIGKILL too."""

import contextlib
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
from typing import Self

from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process import guard

HOST = "127.0.0.1"

START_TIMEOUT_S = 300.0
"""MLflow starts within seconds, or minutes on a machine whose cores are all busy."""

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
        """Return whether the server answers; ignores proxies set in the environment."""
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(http.client.HTTPConnection(HOST, self.port, timeout=_ANSWER_TIMEOUT_S)) as probe,
        ):
            probe.request("GET", self.health)
            return probe.getresponse().status == http.HTTPStatus.OK
        return False

    def failure(self, problem: str) -> TrieyeError:
        """Return an error with the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return TrieyeError("\n  ".join([f"{self.name} {problem}; the end of its log:", *(lines or ["(empty)"])]))


class LocalServers:
    """Starts servers, and stops them and their child processes at the end of its `with` block.

    They share a process group led by a guard (`process/guard.py`), which terminates the group when this process exits,
    by SIGKILL too. Ctrl-C in a terminal does not reach the group.

    Attributes:
        directory: Working directory of the servers, with their logs; removed on close.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="trieye-"))
        self._servers: list[_Server] = []
        # isolated: modules in the directory of the guard would shadow modules of the standard library
        command = [sys.executable, "-I", "-S", guard.__file__, str(self.directory)]
        self._guard_process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)

    @property
    def names(self) -> list[str]:
        """Names of the started servers."""
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
        """Start a server and return its address, without waiting until it answers.

        Args:
            name: Name in messages.
            command: Returns the command line for a port.
            health: Path that returns status 200 once the server is up.
            port: Port; None chooses a free one.
            environment: Environment variables added to the environment of this process.

        Raises:
            ConfigurationError: The port is in use.
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
                process_group=self._guard_process.pid,
                cwd=self.directory,  # keeps the user's project off the import path
                # temporary files of a killed server are removed with the directory
                env={**os.environ, "TMPDIR": str(self.directory), **(environment or {})},
            )
        self._servers.append(_Server(name, port, health, log, process))
        return f"http://{HOST}:{port}"

    def wait(self, report: Callable[[Sequence[str], float], None]) -> None:
        """Wait until all servers answer.

        Args:
            report: Called repeatedly with the names of the servers that do not answer yet, and the seconds waited.

        Raises:
            TrieyeError: A server has exited, or did not answer within five minutes; the message quotes its log.
        """
        began, starting = time.monotonic(), list(self._servers)
        while starting := [server for server in starting if not server.answers()]:
            self.check()
            waited_s = time.monotonic() - began
            if waited_s > START_TIMEOUT_S:
                raise starting[0].failure(f"does not answer after {START_TIMEOUT_S:.0f} s")
            report([server.name for server in starting], waited_s)
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Check that all servers are running.

        Raises:
            TrieyeError: A server has exited; the message quotes the end of its log.
        """
        for server in self._servers:
            if (code := server.process.poll()) is not None:
                raise server.failure(f"exited with code {code}")

    def close(self) -> None:
        """Stop all servers and remove the directory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard_process.pid, signal.SIGTERM)
        deadline = time.monotonic() + guard.GRACE_S
        for server in self._servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(max(deadline - time.monotonic(), 0.0))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._guard_process.pid, signal.SIGKILL)  # and their children
        for process in (*(server.process for server in self._servers), self._guard_process):
            process.wait()
        if self._guard_process.stdin is not None:
            self._guard_process.stdin.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_port(port: int) -> None:
    """Check that a server can listen on a port.

    Raises:
        ConfigurationError: The port is in use, privileged or out of range.
    """
    try:
        with socket.socket() as probe:
            # as servers do: a port of a server that has just exited is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"port {port}: {reason}; choose another port, or none to get a free one") from error


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
