"""Bring the objects of an environment to what `GraphTaker` described, in place where they are there."""

import contextlib
import enum
import functools
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.persistence import graph_rules as rules
from trieye.persistence.generators import generator_state, new_generator, set_generator_state
from trieye.persistence.graph_taking import FACTORIES
from trieye.persistence.nodes import Node
from trieye.persistence.objects import is_named_tuple

_MAPPINGS: dict[str, type[Any]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


class GraphPutter:
    """One pass over the objects of an environment that is like the one described.

    Args:
        entries: What `GraphTaker` found.
        packages: Packages whose objects may be made anew.
    """

    def __init__(self, entries: list[Node], packages: Collection[str]) -> None:
        self._entries = entries
        self._packages = packages
        self._made: dict[int, Any] = {}
        self._blocks: dict[int, NDArray[Any]] = {}
        self._taken: dict[int, Any] = {}  # objects that stand for an entry already, by id

    def value(self, node: Node, current: Any) -> Any:
        """Return the value that a node stands for.

        Args:
            node: The node.
            current: What lies there now.

        Raises:
            SerializationError: It does not fit what lies there; the message names it.
        """
        if type(node) is not dict:
            return node
        if "at" in node:
            return self._at(node["at"], current)
        if "tuple" in node:
            return self._tuple(node, current)
        if "frozenset" in node:
            return frozenset(self._items(node["frozenset"], ()))
        if "enum" in node:
            return self._class(node["enum"], lambda cls: issubclass(cls, enum.Enum))[node["member"]]
        if rules.constant_name(current) != node["constant"]:
            raise SerializationError(f"{rules.constant_name(current) or current!r} was {node['constant']} when saved")
        return current

    def _at(self, number: int, current: Any) -> Any:
        if number not in self._made:
            entry = self._entries[number]
            made = self._KINDS[entry["kind"]](self, entry, number, current)
            self._made[number] = made
        return self._made[number]

    def _class(self, name: str, is_right: Callable[[type], bool]) -> Any:
        found = rules.find_class(name)
        if found is None or not is_right(found):
            raise SerializationError(f"there is no class {name} that can be made as it was saved")
        return found

    def _items(self, nodes: Iterable[Node], current: Any) -> list[Any]:
        now = list(current) if isinstance(current, list | tuple | deque) else []
        return [self.value(node, now[index] if index < len(now) else None) for index, node in enumerate(nodes)]

    def _tuple(self, node: Node, current: Any) -> Any:
        items = self._items(node["tuple"], current)
        if node["class"] is None:
            return tuple(items)
        return tuple.__new__(
            self._class(node["class"], lambda cls: issubclass(cls, tuple) and is_named_tuple(cls)), items
        )

    def _container(self, entry: Node, number: int, current: Any) -> Any:
        # known before its items, because these may refer to it
        made = self._made[number] = deque(maxlen=entry["maxlen"]) if entry["kind"] == "deque" else []
        made.extend(self._items(entry["items"], current))
        return made

    def _set(self, entry: Node, _: int, __: Any) -> Any:
        return set(self._items(entry["items"], ()))

    def _bytes(self, entry: Node, _: int, __: Any) -> Any:
        return bytearray(entry["value"])

    def _mapping(self, entry: Node, number: int, current: Any) -> Any:
        kind = entry["kind"]
        made = defaultdict(FACTORIES[entry["factory"]]) if kind == "defaultdict" else _MAPPINGS[kind]()
        self._made[number] = made
        now = current if isinstance(current, Mapping) else {}
        for key_node, item_node in entry["items"]:
            key = self.value(key_node, None)
            made[key] = self.value(item_node, now.get(key))
        return made

    def _array(self, entry: Node, number: int, _: Any) -> Any:
        self._blocks[number] = block = np.array(entry["array"], order="C")
        array = block.transpose(np.argsort(entry["axes"])) if entry["axes"] != sorted(entry["axes"]) else block
        array.flags.writeable = entry["writeable"]
        return array

    def _view(self, entry: Node, _: int, __: Any) -> Any:
        number = entry["owner"]["at"]
        self._at(number, None)
        block = self._blocks[number]
        memory = block.reshape(-1).view(np.uint8).data if block.nbytes else b""
        # it checks that the view lies inside
        array = np.ndarray(tuple(entry["shape"]), entry["like"].dtype, memory, entry["offset"], entry["strides"])
        array.flags.writeable = entry["writeable"] and block.flags.writeable
        return array

    def _tensor(self, entry: Node, _: int, current: Any) -> Any:
        return entry["tensor"].clone().to(current.device if rules.is_tensor(current) else "cpu")

    def _generator(self, entry: Node, _: int, current: Any) -> Any:
        if generator_state(current) is None or not self._is_free(current):
            return new_generator(entry["state"])
        set_generator_state(current, entry["state"])
        return current

    def _is_free(self, current: Any) -> bool:
        """Tell whether an object does not stand for another entry yet, and reserve it."""
        if id(current) in self._taken:
            return False
        self._taken[id(current)] = current
        return True

    def _function(self, entry: Node, number: int, current: Any) -> Any:
        name = rules.constant_name(current) if isinstance(current, types.FunctionType) else repr(current)
        if name != entry["name"] or len(current.__closure__ or ()) != len(entry["cells"]):
            raise SerializationError(f"{name} was {entry['name']} when saved")
        self._made[number] = current
        for cell, node in zip(current.__closure__ or (), entry["cells"], strict=True):
            cell.cell_contents = self.value(node, cell.cell_contents)
        return current

    def _method(self, entry: Node, _: int, current: Any) -> Any:
        if not isinstance(current, types.MethodType) or current.__func__.__qualname__ != entry["name"]:
            raise SerializationError(f"{current!r} was {entry['name']} when saved")
        return types.MethodType(current.__func__, self.value(entry["self"], current.__self__))

    def _partial(self, entry: Node, _: int, current: Any) -> Any:
        if not isinstance(current, functools.partial):
            raise SerializationError(f"{current!r} was a functools.partial when saved")
        arguments = self._items(entry["arguments"], current.args)
        keywords = {name: self.value(node, current.keywords.get(name)) for name, node in entry["keywords"]}
        return functools.partial(self.value(entry["function"], current.func), *arguments, **keywords)

    def _space(self, entry: Node, number: int, current: Any) -> Any:
        if rules.class_name(type(current)) != entry["class"]:
            raise SerializationError(f"{current!r} was a {entry['class']} when saved")
        self._made[number] = current
        self._set_attributes(current, entry["parts"])
        return current

    def _object(self, entry: Node, number: int, current: Any) -> Any:
        if rules.class_name(type(current)) != entry["class"] or not self._is_free(current):
            cls = self._class(entry["class"], lambda cls: rules.can_be_made(cls, self._packages))
            current = object.__new__(cls)
        self._made[number] = current
        own = entry["own"]
        if own is not None:
            self._give_own_state(current, own)
        else:
            for name in rules.attributes(current).keys() - entry["attributes"].keys() - set(entry["kept"]):
                with contextlib.suppress(AttributeError):  # one of the class
                    object.__delattr__(current, name)
        self._set_attributes(current, entry["attributes"])
        return current

    def _give_own_state(self, holder: Any, own: Node) -> None:
        methods = rules.own_methods(holder, environment=rules.is_environment(holder))
        if methods is None or methods[1] != own["take"]:  # a name in a file must not choose what is called
            raise SerializationError(f"a {type(holder).__name__} has no {own['take']}() any more")
        getattr(holder, methods[1])(self.value(own["state"], None))

    def _set_attributes(self, holder: Any, nodes: Mapping[str, Node]) -> None:
        now, in_slots = rules.attributes(holder), set(rules.slots(type(holder)))
        for name, node in nodes.items():
            value = self.value(node, now.get(name))
            # around properties and frozen dataclasses: nothing of the environment runs
            if name in in_slots:
                object.__setattr__(holder, name, value)
            else:
                vars(holder)[name] = value

    _KINDS: ClassVar[dict[str, Callable[["GraphPutter", Node, int, Any], Any]]] = {
        **dict.fromkeys(("list", "deque"), _container),
        **dict.fromkeys((*_MAPPINGS, "defaultdict"), _mapping),
        "set": _set,
        "bytearray": _bytes,
        "array": _array,
        "view": _view,
        "tensor": _tensor,
        "generator": _generator,
        "space": _space,
        "function": _function,
        "method": _method,
        "partial": _partial,
        "object": _object,
    }
