"""Rendezvous: a store through which the members of a process group exchange addresses.

It replaces torch's `TCPStore`, which resolves the name of each address that it connects to: without a DNS server that
takes 10 s each time.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]  # public, but not re-exported explicitly

_TIMEOUT = timedelta(seconds=10)
_BACKLOG = 1024
"""Explorers that may connect at the same moment; further ones have to retry."""


class ClientListener:
    """Serves each client that knows a key in a thread, so that a silent connection delays no client.

    Args:
        host: Address of this machine for clients.
        key: Authentication key of the clients.
        serve: Called with the connection of each client; owns it.

    Attributes:
        address: Address to connect to.
    """

    def __init__(self, host: str, key: bytes, serve: Callable[[Connection], None]) -> None:
        self._listener = Listener((host, 0), backlog=_BACKLOG)  # with a key, accept() would wait for the client
        self.address: tuple[str, int] = self._listener.address
        self._key, self._serve, self._is_closed = key, serve, False
        threading.Thread(target=self._accept, name="trieye-weights-accept", daemon=True).start()

    def close(self) -> None:
        """Stop accepting; idempotent."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # closing the listener does not wake accept()
            socket.create_connection(self.address, timeout=1.0).close()

    def _accept(self) -> None:
        with self._listener:
            while not self._is_closed:
                with contextlib.suppress(OSError):
                    arguments = (self._listener.accept(),)
                    threading.Thread(
                        target=self._authenticate, args=arguments, name="trieye-weights-serve", daemon=True
                    ).start()

    def _authenticate(self, connection: Connection) -> None:
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError):
            connection.close()  # not an explorer, or close()
        else:
            self._serve(connection)


class Rendezvous(Store):
    """The learner's side, which holds the values.

    Args:
        host: Address of this machine for explorers.
        key: Authentication key of the clients.
    """

    def __init__(self, host: str, key: bytes) -> None:
        super().__init__()
        self._changed = threading.Condition()  # guards all fields below
        self._values: dict[str, bytes] = {}
        self._is_closed = False
        self._listener = ClientListener(host, key, self._serve)

    @property
    def port(self) -> int:
        """Port of the listener."""
        return self._listener.address[1]

    def set(self, key: str, value: Any) -> None:
        """Store bytes under a key."""
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Return the bytes of a key."""
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta = _TIMEOUT) -> None:
        """Wait until all keys are set; raise RuntimeError after the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has(keys), timeout.total_seconds())
            if not self._has(keys):
                raise RuntimeError("not all explorers joined the group")

    def close(self) -> None:
        """Stop the waiting clients; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._listener.close()

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _serve(self, connection: Connection) -> None:
        # the errors mean that the client left, or that the group was closed
        with connection, contextlib.suppress(EOFError, OSError, RuntimeError):
            while True:
                key, value = connection.recv_bytes().decode(), connection.recv_bytes()
                if value:
                    self.set(key, value)
                    continue
                self.wait([key], _TIMEOUT)
                connection.send_bytes(self._values[key])


class RendezvousClient(Store):
    """The explorer's side; reads and writes the values of a `Rendezvous`."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        super().__init__()
        self._connection = Client(address, authkey=key)
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Store bytes under a key."""
        self._send(key, bytes(value))

    def get(self, key: str) -> bytes:
        """Return the bytes of a key that `wait` received."""
        return self._values[key]

    def wait(self, keys: list[str], timeout: timedelta = _TIMEOUT) -> None:
        """Wait until all keys are set; raise RuntimeError after the timeout."""
        for key in keys:
            try:
                self._send(key, b"")
                if not self._connection.poll(timeout.total_seconds()):
                    raise RuntimeError("not all explorers joined the group")
                self._values[key] = self._connection.recv_bytes()
            except (EOFError, OSError) as error:
                raise RuntimeError(f"the learner abandoned the group: {error}") from error

    def _send(self, key: str, value: bytes) -> None:
        self._connection.send_bytes(key.encode())
        self._connection.send_bytes(value)  # empty: a request for the value
