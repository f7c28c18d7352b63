"""Describe everything that an environment can change, as plain data that keeps what is shared shared."""

import enum
import functools
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trieye.persistence import graph_rules as rules
from trieye.persistence.generators import generator_state
from trieye.persistence.nodes import Node
from trieye.persistence.objects import is_named_tuple

FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set)}
"""What a `defaultdict` may make its values with."""

_DATA_KINDS = {
    "list", "set", "deque", "dict", "OrderedDict", "Counter", "defaultdict", "bytearray", "array", "view",
    "generator", "tensor",
}  # fmt: skip
_IMMUTABLE = {type(None), bool, int, float, complex, str, bytes}
_SEEDLESS = {type(None), bool, int, float, complex}


class Place(NamedTuple):
    """Where a value lies.

    Attributes:
        steps: From the root: `("attribute", name)` or `("item", key)`.
        label: For messages: the class of the object, and from there on.
    """

    steps: tuple[tuple[str, Any], ...]
    label: str

    def attribute(self, holder: Any, name: str) -> "Place":
        """Return the place of an attribute of what lies here."""
        return Place((*self.steps, ("attribute", name)), f"{type(holder).__name__}.{name}")

    def item(self, key: Any) -> "Place":
        """Return the place of an item of what lies here."""
        return Place((*self.steps, ("item", key)), f"{self.label}[{key!r:.40}]")


class GraphTaker:
    """One pass over the objects of an environment.

    Objects, generators, lists, arrays and the like are entries, each of them once; values refer to them by number.

    Args:
        packages: Packages whose objects may be made anew on restoring.
        ignored: Attributes to leave alone, as `Class.attribute`.

    Attributes:
        entries: What was found, as plain data.
        problem: The first thing that cannot be described; None if there is none.
        generators: The state of each random generator, after its place.
    """

    def __init__(self, packages: Collection[str], ignored: Collection[str] = ()) -> None:
        self.entries: list[Node] = []
        self.problem: str | None = None
        self.generators: list[tuple[list[tuple[str, Any]], dict[str, Any]]] = []
        self._packages = packages
        self._ignored = ignored
        self._numbers: dict[int, int] = {}
        self._storages: set[int] = set()
        self._alive: list[Any] = []  # so that no id is given twice

    def node(self, value: Any, place: Place) -> Node:
        """Return what stands for a value."""
        if type(value) in _IMMUTABLE:
            return value
        if isinstance(value, np.generic):
            return value if not isinstance(value, np.void | np.object_) else self._trouble(value, place)
        if isinstance(value, enum.Enum):
            return {"enum": rules.class_name(type(value)), "member": value.name}
        if type(value) is tuple or (isinstance(value, tuple) and is_named_tuple(type(value))):
            named = None if type(value) is tuple else rules.class_name(type(value))
            return {"tuple": self._items(value, place), "class": named}
        if type(value) is frozenset:
            return {"frozenset": self._unordered(value, place)}
        name = None if getattr(value, "__closure__", None) else rules.constant_name(value)
        return {"at": self._number(value, place)} if name is None else {"constant": name}

    def _number(self, value: Any, place: Place) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self.entries)
            self._alive.append(value)
            self.entries.append(None)
            self.entries[number] = self._entry(value, place)
        return number

    def _entry(self, value: Any, place: Place) -> Node:
        state = generator_state(value)
        if state is not None:
            self.generators.append((list(place.steps), state))
            return {"kind": "generator", "state": state}
        take = self._KINDS.get(type(value))
        if take is not None:
            return take(self, value, place)
        if rules.is_tensor(value):
            return self._tensor(value, place)
        if rules.is_space(value):
            return {"kind": "space", "class": rules.class_name(type(value)), "parts": self._space(value, place)}
        return self._object(value, place)

    def _trouble(self, value: Any, place: Place, why: str = "") -> Node:
        kind = type(value)
        self.problem = self.problem or f"{place.label} is a {kind.__module__}.{kind.__qualname__}{why}"
        return {"constant": ""}

    def _items(self, values: Iterable[Any], place: Place) -> list[Node]:
        return [self.node(value, place.item(index)) for index, value in enumerate(values)]

    def _unordered(self, value: Any, place: Place) -> list[Node]:
        again = type(value)(list(value))
        if (
            list(again) != list(value)
            or sys.getsizeof(again) != sys.getsizeof(value)
            or not all(map(_is_seedless, value))
        ):
            self._trouble(value, place, " whose order another process does not repeat")
        return self._items(value, place)

    def _pairs(self, value: Mapping[Any, Any], place: Place) -> list[list[Node]]:
        return [[self.node(key, place.item(key)), self.node(item, place.item(key))] for key, item in value.items()]

    def _defaults(self, value: "defaultdict[Any, Any]", place: Place) -> Node:
        factory = getattr(value.default_factory, "__name__", "")
        if FACTORIES.get(factory) is not value.default_factory:
            return self._trouble(value, place, f" with default_factory {value.default_factory!r}")
        return {"kind": "defaultdict", "factory": factory, "items": self._pairs(value, place)}

    def _array(self, value: NDArray[Any], place: Place) -> Node:
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if value.dtype.hasobject or type(owner) is not np.ndarray or (owner.base is not None and owner.flags.writeable):
            return self._trouble(value, place, " whose memory belongs to something else" * (not value.dtype.hasobject))
        if owner is value:
            axes = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
            if not value.transpose(axes).flags.c_contiguous:
                return self._trouble(value, place, f" with strides {value.strides}")
            block = np.array(value.transpose(axes), order="C")
            return {"kind": "array", "array": block, "axes": axes, "writeable": value.flags.writeable}
        return {
            "kind": "view",
            "owner": self.node(owner, place),
            "offset": value.__array_interface__["data"][0] - owner.__array_interface__["data"][0],
            "like": np.empty(0, value.dtype),
            "shape": value.shape,
            "strides": value.strides,
            "writeable": value.flags.writeable,
        }

    def _tensor(self, value: Any, place: Place) -> Node:
        storage = value.untyped_storage().data_ptr()
        if value.requires_grad or not value.is_contiguous() or storage in self._storages:
            return self._trouble(value, place, " with a gradient, with strides, or with the memory of another one")
        self._storages |= {storage} if value.numel() else set()
        return {"kind": "tensor", "tensor": value.detach().clone()}

    def _space(self, space: Any, place: Place) -> dict[str, Node]:
        found = {}
        for name, value in rules.attributes(space).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            if any(rules.is_space(part) or generator_state(part) is not None for part in held):
                found[name] = self.node(value, place.attribute(space, name))
        return found

    def _function(self, value: types.FunctionType, place: Place) -> Node:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return {"kind": "function", "name": rules.constant_name(value), "cells": self._items(cells, place)}

    def _method(self, value: types.MethodType, place: Place) -> Node:
        return {"kind": "method", "name": value.__func__.__qualname__, "self": self.node(value.__self__, place)}

    def _partial(self, value: "functools.partial[Any]", place: Place) -> Node:
        keywords = [[name, self.node(item, place.item(name))] for name, item in value.keywords.items()]
        return {
            "kind": "partial",
            "function": self.node(value.func, place),
            "arguments": self._items(value.args, place),
            "keywords": keywords,
        }

    def _object(self, value: Any, place: Place) -> Node:
        inside = bool(place.steps) and place.steps[-1][0] == "item"
        is_layer = rules.is_environment(value)
        if inside and not is_layer and not rules.can_be_made(type(value), self._packages):
            return self._trouble(value, place, " in a container, of another package than the environment")
        entry: dict[str, Any] = {"kind": "object", "class": rules.class_name(type(value)), "attributes": {}, "kept": []}
        entry["own"] = own = self._own_state(value, place, is_layer=is_layer)
        if own is None and not rules.is_all_attributes(type(value)):
            return self._trouble(value, place)
        engines = set(rules.engines(value)) - set(self._ignored) if is_layer and own is None else set()
        for engine in sorted(engines):
            self._trouble(sys.modules[__name__], Place((), engine), " that is no Python and may hold the environment")
        for name, item in rules.attributes(value).items():
            if rules.is_left_alone(value, name) or rules.is_shown(item) or self._is_ignored(value, name):
                entry["kept"].append(name)
            elif own is None or _is_beside(item):
                entry["attributes"][name] = self.node(item, place.attribute(value, name))
        return entry

    def _own_state(self, value: Any, place: Place, *, is_layer: bool) -> Node:
        methods = rules.own_methods(value, environment=is_layer)
        if methods is None:
            return None
        state = getattr(value, methods[0])()
        trial = GraphTaker(self._packages)
        trial.node(state, place)
        is_plain = trial.problem is None and all(entry["kind"] in _DATA_KINDS for entry in trial.entries)
        return None if not is_plain else {"take": methods[1], "state": self.node(state, place)}

    def _plain(self, value: Any, place: Place) -> Node:
        items = self._unordered(value, place) if type(value) is set else self._items(value, place)
        return {"kind": type(value).__name__, "items": items, "maxlen": getattr(value, "maxlen", None)}

    def _mapping(self, value: Mapping[Any, Any], place: Place) -> Node:
        return {"kind": type(value).__name__, "items": self._pairs(value, place)}

    def _bytes(self, value: bytearray, _: Place) -> Node:
        return {"kind": "bytearray", "value": bytes(value)}

    def _is_ignored(self, holder: Any, name: str) -> bool:
        return any(f"{cls.__name__}.{name}" in self._ignored for cls in type(holder).__mro__)

    _KINDS: ClassVar[dict[type, Callable[["GraphTaker", Any, Place], Node]]] = {
        **dict.fromkeys((list, set, deque), _plain),
        **dict.fromkeys((dict, OrderedDict, Counter), _mapping),
        defaultdict: _defaults,
        bytearray: _bytes,
        np.ndarray: _array,
        types.FunctionType: _function,
        types.MethodType: _method,
        functools.partial: _partial,
    }


def _is_beside(value: Any) -> bool:
    """Tell whether an attribute is saved also where an object gives its own state: generators, spaces, environments."""
    if isinstance(value, list | tuple):
        return any(map(_is_beside, value))
    return rules.is_environment(value) or rules.is_space(value) or generator_state(value) is not None


def _is_seedless(value: Any) -> bool:
    """Tell whether a value has the same hash in every process."""
    if isinstance(value, tuple):
        return all(map(_is_seedless, value))
    return value is not None and (type(value) in _SEEDLESS or isinstance(value, np.number))
