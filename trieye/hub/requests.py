"""Requests: which methods of a hub other threads and processes call, and on which threads of its process they run.

A method becomes a request by its decorator, and by nothing else: `Hub.ask` makes it in a thread or through Ray, and the
Ray actor has a method of its name.

    class Tracking:
        @request()
        def set_tags(self, tags): ...

    hub.ask(Tracking.set_tags, {"team": "blue"})
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

Group = Literal["ingest", "save", "wait", ""]
"""The threads of an actor that answer a request.

`ingest` has one thread, so the hub takes events in the order in which each caller sent them. `save` has one, too, so a
long save never delays events. Requests that wait for MLflow, or that ask how far the hub is, run in `wait`. All others
are quick.
"""

Method = TypeVar("Method", bound=Callable[..., Any])

_GROUP, _IS_SLOW = "_request_group", "_request_is_slow"


def request(group: Group = "", *, is_slow: bool = False) -> Callable[[Method], Method]:
    """Make a method of a part of the hub a request.

    Ray makes a request again if the actor died meanwhile, so a request has to stand being made twice; where it has a
    parameter `key`, the actor fills that with the same text both times. A parameter `timeout_s` says how long the
    request may take besides.

    Args:
        group: The threads that answer.
        is_slow: Whether the user is told now and then what the request waits for.
    """

    def mark(method: Method) -> Method:
        setattr(method, _GROUP, group)
        setattr(method, _IS_SLOW, is_slow)
        return method

    return mark


def is_slow(method: Callable[..., Any]) -> bool:
    """Tell whether the user is to know what a request waits for."""
    return bool(getattr(method, _IS_SLOW))


def requests_of(part: type) -> Iterator[tuple[Callable[..., Any], Group]]:
    """Yield the requests that a part answers, inherited ones too, and the group of each."""
    members = (member for base in reversed(part.__mro__) for member in vars(base).values())
    requests = {member.__name__: member for member in members if hasattr(member, _GROUP)}
    yield from ((method, getattr(method, _GROUP)) for method in requests.values())


def owners(*parts: object) -> dict[str, Any]:
    """Return which part answers each request, by its name; no two parts have requests of one name."""
    return {method.__name__: part for part in parts for method, _ in requests_of(type(part))}
