"""How events and states travel to the actor: cheap to receive, and without delaying log calls.

Pickling an event, a pydantic model, takes ten times longer than pickling its values, so only the values are sent.
Unpickling a tensor makes two copies and blocks the other threads of the process, so tensors are sent as arrays, which
Ray keeps in shared memory. Objects with tensors that the user put into Ray's store are unpickled by another process.
"""

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.experimental import get_object_locations

from trieye.compat.events import RawMetricEvent, SentEvents
from trieye.hub.ray_start import on_this_node
from trieye.snapshot.tensors import TensorPacker

Method = TypeVar("Method", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

LIGHT_BYTES = 8 << 20
"""An object up to this size is unpickled by the actor itself, in some milliseconds; another process has to start."""

# arguments of `save_training_state`, by name and position
_USER_DATA = {"user_data", 10}
_STATES = {"nn_state_dict", 0, "optimizer_state_dict", 1, *_USER_DATA}
_REFERENCES = {*_STATES, "buffer_content", 2}


@dataclass(frozen=True, slots=True)
class _Later:
    """Keeps Ray from replacing a reference by its object before the actor is called."""

    reference: Any


def sends_events_plainly(actor: Class) -> Class:
    """Let the events that an actor is given travel as `SentEvents`."""
    for name in ("log_event", "log_batch_events"):
        _sent(vars(actor)[name], _plain)
    return actor


def sent_lightly(method: Method) -> Method:
    """Send the states in the arguments of a method with their tensors as arrays, and references unresolved."""
    return _sent(method, _light)


def _sent(method: Method, convert: Callable[[str | int, Any], Any]) -> Method:
    """Convert each argument of a method in the process of the caller; `convert` takes its position or name, too."""

    def converting(call: Callable[..., Any]) -> Callable[..., Any]:
        def send(args: Any, kwargs: Mapping[str, Any]) -> Any:
            return call(
                [convert(position, value) for position, value in enumerate(args)],
                {name: convert(name, value) for name, value in kwargs.items()},
            )

        return send

    # Ray wraps this around a call by a handle, in the caller's process: docs/private_apis.md
    method.__ray_invocation_decorator__ = converting  # type: ignore[attr-defined]
    return method


def _plain(_: str | int, value: Any) -> Any:
    if isinstance(value, RawMetricEvent):
        return SentEvents.of([value])
    return SentEvents.of(value) if type(value) in {list, tuple} else value


def _light(position: str | int, value: Any) -> Any:
    if position in _REFERENCES and isinstance(value, ray.ObjectRef):
        return _Later(value)
    if position not in _STATES:  # sending a list of many items unchanged is faster
        return value
    if position not in _USER_DATA and not isinstance(value, Mapping) and callable(getattr(value, "state_dict", None)):
        value = value.state_dict()
    return _packed(value)


def resolved(value: Any) -> Any:
    """Resolve the references inside the containers of a value; Ray itself resolves only arguments."""
    return _replaced(value, _fetched)


def _fetched(value: Any) -> Any:
    if isinstance(value, _Later):
        value = value.reference
    return resolved(_value_of(value)) if isinstance(value, ray.ObjectRef) else value


def _value_of(reference: Any) -> Any:
    ray.wait([reference], fetch_local=False)
    location = get_object_locations([reference]).get(reference, {})
    if (location.get("object_size") or 0) > LIGHT_BYTES:
        made = ray.get(_packed_elsewhere.options(scheduling_strategy=on_this_node()).remote(reference))
        if made is not None:
            return made
    return ray.get(reference)


def _with_packed_tensors(value: Any) -> Any:
    """Return a value with its tensors as arrays, or None if it has none."""
    made = _packed(value)
    return None if made is value else made


_packed_elsewhere = ray.remote(num_cpus=0)(_with_packed_tensors)


def _packed(state: Any) -> Any:
    """Return a state with its tensors as arrays, but for those in objects that are pickled when they are saved."""
    return _replaced(state, TensorPacker().packed, is_mapping=lambda value: type(value) in {dict, OrderedDict})


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _replaced(value: Any, replacement: Callable[[Any], Any], *, is_mapping: Callable[[Any], bool] = _is_mapping) -> Any:
    """Return a value with other things for some of those in its containers."""
    if is_mapping(value):
        return _like(value, {key: _replaced(item, replacement, is_mapping=is_mapping) for key, item in value.items()})
    is_named_tuple = isinstance(value, tuple) and hasattr(value, "_make")
    if type(value) in {list, tuple, set, frozenset, deque} or is_named_tuple:
        return _like(value, [_replaced(item, replacement, is_mapping=is_mapping) for item in value])
    return replacement(value)


def _like(old: Any, new: Any) -> Any:
    """Return the items in a container as the old one was, which is the old one itself if nothing was replaced."""
    pairs = zip(old.values(), new.values(), strict=True) if isinstance(old, Mapping) else zip(old, new, strict=True)
    if all(one is other for one, other in pairs):
        return old
    if isinstance(old, deque):
        return deque(new, old.maxlen)
    if hasattr(old, "_make"):
        return old._make(new)
    if isinstance(old, MutableMapping):  # a copy keeps attributes: torch has the versions of modules in one
        made = copy.copy(old)
        made.update(new)
        return made
    return new if isinstance(old, Mapping) else type(old)(new)
