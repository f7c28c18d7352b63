"""Channel: the way to a replay server, and calls that are made again until they are answered."""

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar

from trieye.exceptions import ReplayTimeoutError
from trieye.process.waiting import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

LONGEST_POLL_S = 1.0
"""How long the server lets a call wait before it answers that there is nothing yet."""

Result = TypeVar("Result")


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


def poll_s(timeout_s: float) -> float:
    """Return how long the server may let a call wait whose caller waits for so long."""
    return min(LONGEST_POLL_S, timeout_s / 4)


class Deadline:
    """A moment in the future, and what to say when it has come.

    Args:
        timeout_s: How far away it is, seconds.
        describe: Says what was waited for.
    """

    def __init__(self, timeout_s: float, describe: Callable[[], str]) -> None:
        self._timeout_s, self._describe = timeout_s, describe
        self._at = time.monotonic() + timeout_s
        self._backoff, self._trouble = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), "it does not answer"

    @property
    def left_s(self) -> float:
        """Seconds that are left, never negative."""
        return max(self._at - time.monotonic(), 0.0)

    def check(self, trouble: str = "") -> None:
        """Go on if there is time left.

        Args:
            trouble: What holds things up, in words.

        Raises:
            ReplayTimeoutError: There is none.
        """
        self._trouble = trouble or self._trouble
        if not self.left_s:
            raise ReplayTimeoutError(f"{self._describe()} in {self._timeout_s:g} s ({self._trouble})")

    def pause(self, trouble: str) -> None:
        """Wait a little, a little longer each time; raises what `check` raises."""
        self.check(trouble)
        time.sleep(min(self._backoff.failed(), self.left_s))

    def result(self, call: "Future[Result]") -> Result:
        """Return what a call returned, and raise what it raised.

        Raises:
            ReplayTimeoutError: It did not end in time.
        """
        wait([call], self.left_s)
        if not call.done():
            self.check()
        return call.result()


def call(channel: Channel, timeout_s: float, method: str, *values: Any) -> Any:
    """Make a call that may be made more than once, until it is answered.

    Raises:
        ReplayTimeoutError: It was not answered in time.
        TrieyeError: What the server raised.
    """
    deadline = Deadline(timeout_s, lambda: f"{channel.name!r} did not answer {method}()")
    while True:
        try:
            return deadline.result(channel.begin(method, *values))
        except ConnectionError as error:
            deadline.pause(str(error))
