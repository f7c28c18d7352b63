"""Rendezvous: where those who form a process group leave their addresses for one another.

It stands in for torch's `TCPStore`, which asks for the name of each address that it connects to: where no DNS answers,
that takes 10 s each time.
"""

import contextlib
import socket
import threading
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # it is public, and not marked so

_LIMIT = timedelta(seconds=10)
MOST_AT_ONCE = 1024
"""Explorers that come at the same moment; more of them have to try again."""


class Rendezvous(Store):
    """The learner's side, which keeps what was left.

    Args:
        host: Address of this machine, where explorers reach it.
        key: Which those who come have to know.
    """

    def __init__(self, host: str, key: bytes) -> None:
        super().__init__()
        self._changed = threading.Condition()  # guards all that follows
        self._values: dict[str, bytes] = {}
        self._is_closed = False
        self._listener = Listener((host, 0), backlog=MOST_AT_ONCE, authkey=key)
        self._address: tuple[str, int] = self._listener.address
        threading.Thread(target=self._admit, name="trieye-weights-rendezvous", daemon=True).start()

    @property
    def port(self) -> int:
        """Where explorers find it."""
        return self._address[1]

    def set(self, key: str, value: Any) -> None:
        """Leave bytes."""
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Return what is there."""
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta = _LIMIT) -> None:
        """Wait until somebody left something under each of the keys; raise RuntimeError where it takes too long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has(keys), timeout.total_seconds())
            if not self._has(keys):
                raise RuntimeError("not all explorers joined the group")

    def close(self) -> None:
        """Send away those who wait; a second time does nothing."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):  # closing alone does not wake who waits for it
            socket.create_connection(self._address, timeout=1.0).close()

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _admit(self) -> None:
        with self._listener:
            while not self._is_closed:
                try:
                    line = self._listener.accept()
                except (AuthenticationError, EOFError, OSError):
                    continue  # it was no explorer, or the end
                threading.Thread(target=self._serve, args=(line,), name="trieye-weights-serve", daemon=True).start()

    def _serve(self, line: Connection) -> None:
        with line, contextlib.suppress(EOFError, OSError, RuntimeError):  # it has all, or is gone; or there is no group
            while True:
                key, value = line.recv_bytes().decode(), line.recv_bytes()
                if value:
                    self.set(key, value)
                    continue
                self.wait([key], _LIMIT)
                line.send_bytes(self._values[key])


class Visitor(Store):
    """An explorer's side."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        super().__init__()
        self._line = Client(address, authkey=key)
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Leave bytes."""
        self._say(key, bytes(value))

    def get(self, key: str) -> bytes:
        """Return what was waited for."""
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta = _LIMIT) -> None:
        """Wait until somebody left something under each of the keys; raise RuntimeError where it takes too long."""
        for key in keys:
            try:
                self._say(key, b"")
                if not self._line.poll(timeout.total_seconds()):
                    raise RuntimeError("not all explorers joined the group")
                self._values[key] = self._line.recv_bytes()
            except (EOFError, OSError) as error:
                raise RuntimeError(f"the learner gave up the group: {error}") from error

    def _say(self, key: str, value: bytes) -> None:
        self._line.send_bytes(key.encode())
        self._line.send_bytes(value)  # nothing: that is what it wants to have
