"""ReplayChannel: connections to a replay server, and calls that are retried until they are answered."""

import inspect
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from trieye.exceptions import ReplayTimeoutError, noted
from trieye.process.waiting import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

SAVE_TIMEOUT_S = 3600.0

LONGEST_POLL_S = 1.0
"""Maximum time for which the server lets a call wait before it responds that there is no result yet."""

Group = Literal["ingest", "draw", "wait", "save", "update"]
"""Thread groups of an actor, each for certain operations; operations without a group are quick and share one thread."""

Function = TypeVar("Function", bound=Callable[..., Any])
Server = TypeVar("Server")
Server_co = TypeVar("Server_co", covariant=True)
Values = ParamSpec("Values")
Result = TypeVar("Result")

Operation: TypeAlias = Callable[Concatenate[Server, Values], Result]
"""A method of a server; passed as the function itself, so that its arguments and result are type-checked."""


def operation(group: Group | None = None) -> Callable[[Function], Function]:
    """Mark a method of a server as a remote operation that runs on the threads of `group`."""

    def mark(function: Function) -> Function:
        vars(function)["group"] = group
        return function

    return mark


def operations_of(server: type) -> dict[str, Group | None]:
    """Return the groups of all operations of a server class by name."""
    functions = inspect.getmembers(server, inspect.isfunction)
    return {name: vars(function)["group"] for name, function in functions if "group" in vars(function)}


class ReplayChannel(Protocol[Server_co]):
    """Calls a server, wherever it runs; thread-safe, and can be sent to other processes where it works.

    An operation is passed as the function itself, such as `ReplayServer.stats`, so that its arguments and result are
    type-checked.

    Attributes:
        name: Name of the server in messages.
    """

    name: str

    def begin(
        self, operation: Operation[Server_co, Values, Result], /, *values: Values.args, **options: Values.kwargs
    ) -> "Future[Result]":
        """Start an operation of the server; operations of one group arrive in the order of their calls.

        The future cannot be cancelled.

        The future raises

        - ConnectionError: The server is unreachable at present; it may have executed the operation.
        - TrieyeError: The server is permanently gone, or raised this error itself.
        """

    def kill(self) -> None:
        """Stop the server permanently."""


def poll_s(timeout_s: float) -> float:
    """Return how long the server may let a call wait if the caller waits for `timeout_s`."""
    return min(LONGEST_POLL_S, timeout_s / 4)


class Deadline:
    """A deadline with a description for its error message.

    Args:
        timeout_s: Time until the deadline in seconds.
        describe: Returns a description of the failed wait.
    """

    def __init__(self, timeout_s: float, describe: Callable[[], str]) -> None:
        self._timeout_s, self._describe = timeout_s, describe
        self._at = time.monotonic() + timeout_s
        self._backoff: Backoff | None = None
        self._trouble = "it does not answer"

    @property
    def left_s(self) -> float:
        """Seconds left, never negative, and no more than a thread can wait."""
        return min(max(self._at - time.monotonic(), 0.0), threading.TIMEOUT_MAX)

    def check(self, trouble: str = "") -> None:
        """Return if there is time left.

        Args:
            trouble: The cause of the delay.

        Raises:
            ReplayTimeoutError: The deadline has passed.
        """
        self._trouble = trouble or self._trouble
        if not self.left_s:
            raise ReplayTimeoutError(f"{self._describe()} in {self._timeout_s:g} s ({self._trouble})")

    def pause(self, trouble: str) -> None:
        """Sleep with exponential backoff; raises what `check` raises."""
        time.sleep(self.next_pause_s(trouble))

    def next_pause_s(self, trouble: str) -> float:
        """Return the next pause of the exponential backoff in seconds; raises what `check` raises."""
        self.check(trouble)
        self._backoff = self._backoff or Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        return min(self._backoff.failed(), self.left_s)

    def result(self, call: "Future[Result]") -> Result:
        """Return the result of a call, or raise its error.

        Raises:
            ReplayTimeoutError: The call did not finish in time.
        """
        wait([call], self.left_s)
        if not call.done():
            self.check()
        return call.result()

    def answer(
        self,
        channel: ReplayChannel[Server],
        operation: Operation[Server, Values, Result],
        /,
        *values: Values.args,
        **options: Values.kwargs,
    ) -> Result:
        """Call an operation, with retries until it is answered; raises what `result` raises."""
        while True:
            try:
                return self.result(channel.begin(operation, *values, **options))
            except ConnectionError as error:
                self.pause(str(error))


class Client(Generic[Server]):
    """Calls the operations of a server.

    Args:
        channel: Connection to the server.
        timeout_s: Maximum wait for a response in seconds.

    Attributes:
        channel: Connection to the server.
        timeout_s: Maximum wait for a response in seconds.
    """

    def __init__(self, channel: ReplayChannel[Server], *, timeout_s: float = 60.0) -> None:
        self.channel, self.timeout_s = channel, timeout_s

    def ask(
        self, operation: Operation[Server, Values, Result], /, *values: Values.args, **options: Values.kwargs
    ) -> Result:
        """Call an operation of the server, such as `ReplayServer.stats`, and return its result; it may run twice.

        Raises:
            ReplayTimeoutError: There was no response in time.
            TrieyeError: Raised by the server.
        """
        timeout_s = SAVE_TIMEOUT_S if vars(operation)["group"] == "save" else self.timeout_s
        deadline = Deadline(timeout_s, lambda: f"{self.channel.name!r} did not answer {operation.__name__}()")
        return deadline.answer(self.channel, operation, *values, **options)


class ReplayUser(Client[Server], ABC):
    """A writer or a reader; can be sent to tasks and actors, which receive a new client.

    Args:
        channel: Connection to the server.
        timeout_s: Maximum wait of a call in seconds.
        **options: All other constructor options.
    """

    def __init__(self, channel: ReplayChannel[Server], *, timeout_s: float, **options: Any) -> None:
        super().__init__(channel, timeout_s=timeout_s)
        self._options = {"timeout_s": timeout_s, **options}

    @abstractmethod
    def close(self) -> None:
        """Send pending data."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with noted(error, f"closing the {type(self).__name__.lower()} of replay {self.channel.name!r}"):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self.channel,)
