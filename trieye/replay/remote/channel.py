"""Channel: the way from writers and readers to a replay server."""

from concurrent.futures import Future
from typing import Any, Protocol


class Channel(Protocol):
    """Makes calls to a `ReplayServer` wherever it is; safe to use from threads, and can be sent where it works.

    Attributes:
        name: Of the server, for messages.
    """

    name: str

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Begin a call of a method of the server; calls of the same method arrive in the order in which they began.

        The future raises

        - ConnectionError: The server cannot be reached now; it may have done what was asked.
        - TrieyeError: It is gone for good, or what it raised itself.
        """

    def kill(self) -> None:
        """End the server for good."""


class LocalChannel:
    """The way to a server in this process; every call is made at once.

    Args:
        server: A `ReplayServer`.
    """

    def __init__(self, server: Any) -> None:
        self.name = str(server.name)
        self._server = server

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Make the call in this thread."""
        call: Future[Any] = Future()
        try:
            call.set_result(getattr(self._server, method)(*values))
        except Exception as error:  # noqa: BLE001 - a call like a remote one: whoever takes the result gets the error
            call.set_exception(error)
        return call

    def kill(self) -> None:
        """Close the server."""
        self._server.close()
