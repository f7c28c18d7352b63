"""Channel: the way to a replay server, and calls that are made again until they are answered."""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, Self, TypeVar

from trieye.exceptions import ReplayTimeoutError, noted
from trieye.process.waiting import Backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0

LONGEST_POLL_S = 1.0
"""How long the server lets a call wait before it answers that there is nothing yet."""

Group = Literal["ingest", "draw", "wait", "save", "update"]
"""The threads of an actor on which an operation runs; what is in no group is quick, and has a thread of its own."""

Function = TypeVar("Function", bound=Callable[..., Any])
Server = TypeVar("Server")
Server_co = TypeVar("Server_co", covariant=True)
Values = ParamSpec("Values")
Result = TypeVar("Result")


def operation(group: Group | None = None) -> Callable[[Function], Function]:
    """Let a function of a server be what others can ask it for, on the threads of a group."""

    def mark(function: Function) -> Function:
        vars(function)["group"] = group
        return function

    return mark


def group_of(function: Callable[..., Any]) -> Group | None:
    """Return the group of an operation."""
    group: Group | None = vars(function)["group"]
    return group


def operations_of(server: type) -> dict[str, Group | None]:
    """Return the groups of all operations of a kind of server, by their names."""
    functions = inspect.getmembers(server, inspect.isfunction)
    return {name: group_of(function) for name, function in functions if "group" in vars(function)}


class Channel(Protocol[Server_co]):
    """Makes calls to a server wherever it is; safe to use from threads, and can be sent where it works.

    An operation is named by the function itself, such as `ReplayServer.stats`, so that its values and its result are
    checked.

    Attributes:
        name: Of the server, for messages.
    """

    name: str

    def begin(
        self,
        operation: Callable[Concatenate[Server_co, Values], Result],
        /,
        *values: Values.args,
        **options: Values.kwargs,
    ) -> "Future[Result]":
        """Begin an operation of the server; those of one group arrive in the order in which they began.

        The future raises

        - ConnectionError: The server cannot be reached now; it may have done what was asked.
        - TrieyeError: It is gone for good, or what it raised itself.
        """

    def kill(self) -> None:
        """End the server for good."""


class Client(ABC):
    """What user code holds of a table; can be sent to tasks and actors, where it becomes another one.

    Args:
        channel: The way to the server.
        table: Name of the table.
        timeout_s: How long a call waits at most, seconds.
        **options: All others that it is made with.

    Attributes:
        table: Name of the table.
        timeout_s: How long a call waits at most, seconds.
    """

    def __init__(self, channel: Channel[Any], table: str, *, timeout_s: float, **options: Any) -> None:
        self.table, self.timeout_s = table, timeout_s
        self._channel, self._options = channel, {"timeout_s": timeout_s, **options}

    @abstractmethod
    def close(self) -> None:
        """Send what is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with noted(error, f"closing the {type(self).__name__.lower()} of table {self.table!r}"):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._options), (self._channel, self.table)


class Closable(Protocol):
    """A server that a channel of this process can lead to.

    Attributes:
        name: For messages.
    """

    name: str

    def close(self) -> None:
        """Give everything back."""


LocalServer = TypeVar("LocalServer", bound=Closable)


class LocalChannel(Generic[LocalServer]):
    """The way to a server in this process; every call is made at once.

    Args:
        server: A `ReplayServer` or a `FragmentServer`.
    """

    def __init__(self, server: LocalServer) -> None:
        self.name = server.name
        self._server = server

    def begin(
        self,
        operation: Callable[Concatenate[LocalServer, Values], Result],
        /,
        *values: Values.args,
        **options: Values.kwargs,
    ) -> "Future[Result]":
        """Make the call in this thread."""
        call: Future[Result] = Future()
        try:
            call.set_result(operation(self._server, *values, **options))
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

    def answer(
        self,
        channel: Channel[Server],
        operation: Callable[Concatenate[Server, Values], Result],
        /,
        *values: Values.args,
        **options: Values.kwargs,
    ) -> Result:
        """Make a call, again if need be, until it is answered; raises what `result` raises."""
        while True:
            try:
                return self.result(channel.begin(operation, *values, **options))
            except ConnectionError as error:
                self.pause(str(error))


def ask(
    channel: Channel[Server],
    timeout_s: float,
    operation: Callable[Concatenate[Server, Values], Result],
    /,
    *values: Values.args,
    **options: Values.kwargs,
) -> Result:
    """Do an operation of a server, again if need be, and return its result.

    Raises:
        ReplayTimeoutError: It was not answered in time.
        TrieyeError: What the server raised.
    """
    deadline = Deadline(timeout_s, lambda: f"{channel.name!r} did not answer {operation.__name__}()")
    return deadline.answer(channel, operation, *values, **options)
