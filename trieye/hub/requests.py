"""Defines requests: methods of the hub's parts that other threads and processes call, and the threads that run them.

The decorator `request` is all that a method needs: `Hub.ask` then calls it in this process or through Ray, and the Ray
actor gets a method of the same name.

    class Tracking:
        @request()
        def set_tags(self, tags): ...

    hub.ask(Tracking.set_tags, {"team": "blue"})
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

Group = Literal["ingest", "save", "wait", ""]
"""Concurrency group of the actor that runs a request.

`ingest` has one thread, so the hub accepts each caller's events in order. `save` has a separate thread, so that a long
save never delays events. Requests that wait for MLflow, and progress requests, run in `wait`. All other requests are
quick and run in the default group, the empty string.
"""

Method = TypeVar("Method", bound=Callable[..., Any])

GROUP, _IS_SLOW = "_request_group", "_request_is_slow"
"""Attributes of a request: its group, and whether it is slow."""


def request(group: Group = "", *, is_slow: bool = False) -> Callable[[Method], Method]:
    """Make a method of a part of the hub a request.

    Ray repeats a request if the actor dies during the call, so a request must tolerate repetition; if it has a
    parameter `key`, the actor passes the same text each time. A parameter `timeout_s` is added to the time that the
    caller waits.

    Args:
        group: Concurrency group that runs the request.
        is_slow: Whether the caller prints the hub's progress from time to time.
    """

    def mark(method: Method) -> Method:
        setattr(method, GROUP, group)
        setattr(method, _IS_SLOW, is_slow)
        return method

    return mark


def is_slow(method: Callable[..., Any]) -> bool:
    """Return whether the caller of a request prints the hub's progress from time to time."""
    return bool(getattr(method, _IS_SLOW))


def requests_of(part: type) -> Iterator[tuple[Callable[..., Any], Group]]:
    """Yield each request of a part, including inherited ones, with its group."""
    members = (member for base in reversed(part.__mro__) for member in vars(base).values())
    requests = {member.__name__: member for member in members if hasattr(member, GROUP)}
    yield from ((method, getattr(method, GROUP)) for method in requests.values())


def owners(*parts: object) -> dict[str, Any]:
    """Return {name of a request: the part that answers it}; names are unique across parts."""
    return {method.__name__: part for part in parts for method, _ in requests_of(type(part))}
