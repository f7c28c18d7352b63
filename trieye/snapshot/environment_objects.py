"""Reads the state of an environment's objects as plain data, and writes it to the objects of another one."""

import contextlib
import copy
import enum
import functools
import operator
import sys
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from trieye.exceptions import SerializationError
from trieye.snapshot import environment_values as kinds
from trieye.snapshot.generators import generator_state, new_generator, set_generator_state
from trieye.snapshot.nodes import Node

_CONSTANT = {"spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
_NO_STATE = {
    "env_fns",
    "time_queue", "episode_start_time", "episode_start_times",  # based on this process's clock
    "frame_list", "recorded_frames", "render_history",  # images
    "_previous_data",  # `PassiveEnvChecker` compares it by identity; its flags follow
    "checked_reset", "checked_step", "checked_render", "checked_data_reuse",
    "P",  # the transitions of the toy-text environments: up to 3000 constant tuples
}  # fmt: skip
NOT_IN_STATES = frozenset(_CONSTANT | _NO_STATE)
"""Attributes of environments that a state leaves out."""

_MAX_STEPS = 60
"""Maximum length of a path; the encoder allows 100 levels."""

Path = tuple[Any, ...]


class EnvironmentReader:
    """Traverses an environment from its outermost to its innermost layer, and creates an entry for each object.

    An entry describes an object that the target environment has at the same path. `is` names the class of the object,
    `data` contains its plain attributes, `objects` the entries of its other attributes, `left` the attributes that are
    not restored (None: all others), `own` the result of the object's own state method. The entry of a random generator
    has a `state`, of a counter `items`, of an enum the name of the `member`; `again` is the path of the first entry of
    an object that has several references.

    Args:
        env: The environment.
        ignored: Attributes to skip, as `Class.attribute`, and compiled modules, as `module.name`.

    Attributes:
        layers: The entry of each layer; for a layer with a problem, only its random generators.
        same: Pairs of paths in `layers` whose mutable value (list, array, ...) is the same object.
        problem: The first attribute that cannot be read, and the reason; None if there is none.
    """

    def __init__(self, env: Any, ignored: Collection[str] = ()) -> None:
        self.layers: list[Node] = []
        self.same: list[tuple[Path, Path]] = []
        self.problem: str | None = None
        self._ignored = ignored
        self._arrays: dict[int, list[Any]] = {}  # by memory address
        self._alive: list[Any] = []  # references that prevent the reuse of ids
        environments = layers_of(env)
        self._paths: dict[int, Path] = {id(layer): (index,) for index, layer in enumerate(environments)}
        problems: list[str | None] = []
        for index, layer in enumerate(environments):
            self.problem = None
            self.layers.append(self._holder(layer, (index,), type(layer).__name__))
            problems.append(self.problem)
        self.problem = next(filter(None, problems), None)
        broken_layers = self._with_sharers({index for index, problem in enumerate(problems) if problem is not None})
        self.same = [pair for pair in self.same if pair[0][0] not in broken_layers]
        for index in broken_layers:
            self.layers[index] = _generators_only(self.layers[index], is_layer=True)

    def _with_sharers(self, broken_layers: set[int]) -> set[int]:
        """Add the numbers of all layers that share data with a broken layer, transitively."""
        pairs = [{path[0], first_path[0]} for path, first_path in self.same]
        while more_layers := {index for pair in pairs if pair & broken_layers for index in pair - broken_layers}:
            broken_layers = broken_layers | more_layers
        return broken_layers

    def _report(self, value: Any, label: str, why: str = "") -> Node:
        self.problem = self.problem or f"{label} is a {kinds.class_name(type(value))}{why}"
        return {"is": kinds.name_of(value)}

    def _object(self, value: Any, path: Path, label: str, *, in_container: bool) -> Node:
        """Return the entry of a value that is not plain data."""
        entry, state = {"is": kinds.name_of(value)}, generator_state(value)
        if kinds.is_constant(value):
            return entry
        if isinstance(value, enum.Enum) and value.name in type(value).__members__ and not in_container:
            return entry | {"member": value.name}
        first_path = self._paths.setdefault(id(value), path)
        is_sharable = state is not None or kinds.is_space(value) or isinstance(value, (*kinds.CALLABLES, tuple))
        if first_path != path:
            if not is_sharable and not kinds.is_environment(value):
                self._report(value, label, " with a second reference")
            return entry | {"again": first_path}
        if state is not None:
            return entry | {"state": state}
        if in_container and not is_sharable and type(value) not in kinds.HOLDERS:
            self._report(value, label, " in a container")  # the container may have other items in the other process
        if type(value) in {Counter, defaultdict} and kinds.is_data(items := dict(value)):
            return entry | {"items": self._copied(items, (*path, "items"), label)}
        return self._holder(value, path, label)

    def _holder(self, value: Any, path: Path, label: str) -> Node:
        """Return the entry of an object with attributes or items."""
        in_container, is_a_space = type(value) in kinds.HOLDERS, kinds.is_space(value)
        has_attributes = not in_container and not isinstance(value, kinds.CALLABLES)
        entry: dict[str, Any] = {"is": kinds.name_of(value), "data": {}, "objects": {}, "left": []}
        entry |= self._own_state(value, path, label) if has_attributes and not is_a_space else {}
        is_partial = "own" in entry or is_a_space
        for name, item in _parts(value).items():
            part_label = f"{label}[{name!r:.40}]" if in_container else f"{type(value).__name__}.{name}"
            try:
                if has_attributes and (
                    self._is_left(value, name, item) or (is_partial and not kinds.holds_generators(item))
                ):
                    entry["left"].append(name)
                else:
                    self._part(item, name, entry, path, part_label, in_container=in_container)
            except RecursionError:
                self._report(item, part_label, " that is nested too deeply, or contains itself")
        return entry | {"left": None} if is_partial else entry

    def _part(self, item: Any, name: Any, entry: Node, path: Path, label: str, *, in_container: bool) -> None:
        if len(path) > _MAX_STEPS:
            raise RecursionError
        if kinds.is_data(item) and entry["is"] != "builtins.tuple":  # an existing tuple cannot be changed
            entry["data"][name] = self._copied(item, (*path, "data", name), label)
        else:
            entry["objects"][name] = self._object(item, (*path, "objects", name), label, in_container=in_container)

    def _own_state(self, value: Any, path: Path, label: str) -> dict[str, Any]:
        """Return `own` if an object has a state method; report opaque objects."""
        methods = kinds.own_methods(value)
        if methods and kinds.is_data(own_state := getattr(value, methods[0])()):
            return {"own": self._copied(own_state, (*path, "own"), f"{label}.{methods[0]}()")}
        if (why := kinds.more_than_attributes(value)) is not None:
            self._report(value, label, why)
        for engine in sorted(kinds.engines(value) - set(self._ignored)) if kinds.is_environment(value) else ():
            self._report(sys, engine, " that is compiled and may contain state of the environment")
        return {}

    def _is_left(self, holder: Any, name: str, item: Any) -> bool:
        is_ignored = any(f"{cls.__name__}.{name}" in self._ignored for cls in type(holder).__mro__)
        of_gymnasium = kinds.top_package(type(holder)) == "gymnasium"
        is_fixed = (name in _CONSTANT and kinds.is_environment(holder)) or (name in _NO_STATE and of_gymnasium)
        return is_ignored or is_fixed or kinds.is_shown(item)

    def _copied(self, value: Any, path: Path, label: str) -> Any:
        """Return a copy of plain data; None for a part with an earlier reference, which `same` records."""
        if type(value) in kinds.SCALARS or isinstance(value, np.generic):
            return value
        is_immutable = type(value) in {tuple, frozenset}
        first_path = path if is_immutable else self._paths.setdefault(id(value), path)
        self._alive.append(value)
        if first_path != path:
            self.same.append((path, first_path))
            return None
        if len(path) > _MAX_STEPS:
            raise RecursionError
        if isinstance(value, np.ndarray) or kinds.is_tensor(value):
            return self._array(value, label)
        if isinstance(value, set | frozenset) and not kinds.is_repeated(value):
            self._report(value, label, " whose order differs in another process")
        parts = _parts(value)
        copies = {key: self._copied(item, (*path, key), f"{label}[{key!r:.40}]") for key, item in parts.items()}
        if is_immutable and any(copies[key] is None and item is not None for key, item in parts.items()):
            self._report(value, label, " with an item that has a second reference")
        if isinstance(value, deque):
            return deque(copies.values(), value.maxlen)
        return type(value)(copies if isinstance(value, dict) else copies.values())

    def _array(self, value: Any, label: str) -> Any:
        owner = value
        if isinstance(value, np.ndarray):
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            is_own = type(owner) is np.ndarray and (owner.base is None or not owner.flags.writeable)
            memory, is_plain = id(owner), is_own and value.flags.c_contiguous
        else:
            memory, is_plain = value.untyped_storage().data_ptr(), value.is_contiguous() and not value.requires_grad
        same_memory_arrays = self._arrays.setdefault(memory, [])
        # rows of one array, such as the actions of the members of a vector, do not overlap
        is_tensor = not isinstance(value, np.ndarray)
        overlapping_arrays = [other for other in same_memory_arrays if is_tensor or np.may_share_memory(value, other)]
        if not is_plain or (overlapping_arrays and value.nbytes):
            return self._report(value, label, " that shares memory, or has strides or a gradient")
        same_memory_arrays.append(value)
        return copy.deepcopy(value)


class EnvironmentWriter:
    """Writes the entries of an `EnvironmentReader` to another environment.

    The writer creates containers, arrays, tensors and random generators. Objects of other classes are modified in
    place, after all entries have proved to fit.

    Args:
        env: The environment.
    """

    def __init__(self, env: Any) -> None:
        self._layers = layers_of(env)
        self._objects: dict[Path, Any] = {(index,): layer for index, layer in enumerate(self._layers)}
        self._assigned_ids: set[int] = set()  # ids of the objects that have an entry
        self._changes: list[Callable[[], Any]] = []

    def check_layers(self, entries: list[Node]) -> None:
        """Raise SerializationError if the environment has other wrappers than the saved one."""
        own_names, saved_names = [kinds.name_of(layer) for layer in self._layers], [entry["is"] for entry in entries]
        if own_names != saved_names:
            raise SerializationError(
                f"the saved layers were {', '.join(map(str, saved_names))}, this environment has {', '.join(own_names)}"
            )

    def put(self, entries: list[Node], path_pairs: list[tuple[Path, Path]]) -> None:
        """Write the entries to the layers.

        Raises:
            SerializationError: An entry does not fit the environment.
        """
        entries = copy.deepcopy(entries)  # neither the saved state nor another environment shares objects with this one
        for (*parent, last_step), first_path in path_pairs:
            shared_value = functools.reduce(operator.getitem, first_path, entries)
            functools.reduce(operator.getitem, parent, entries)[last_step] = shared_value
        for index, entry in enumerate(entries):
            self._holder(entry, self._layers[index], (index,))
        for change in self._changes:
            change()

    def _object(self, entry: Node, current: Any, path: Path) -> Any:
        """Return the object of an entry, usually the current object."""
        is_same = kinds.name_of(current) == entry["is"]
        if "state" in entry:
            is_free = is_same and id(current) not in self._assigned_ids
            self._objects[path] = generator = current if is_free else new_generator(entry["state"])
            self._assigned_ids.add(id(generator))
            self._changes.append(functools.partial(set_generator_state, generator, entry["state"]))
            return generator
        referent = self._objects.get(tuple(entry.get("again", ())), current)
        if generator_state(referent) is not None:
            return referent
        if not is_same or referent is not current:
            raise SerializationError(f"a {kinds.name_of(current)} was {'another ' * is_same}{entry['is']} when saved")
        if isinstance(current, enum.Enum):
            return type(current)[entry["member"]]
        if "items" in entry:
            update = functools.partial(dict.update, current, entry["items"])
            self._changes += [functools.partial(dict.clear, current), update]
            return current
        return self._holder(entry, current, path) if "objects" in entry else current

    def _holder(self, entry: Node, holder: Any, path: Path) -> Any:
        if id(holder) in self._assigned_ids:
            raise SerializationError(f"a {entry['is']} was two objects when saved, and is one")
        self._assigned_ids.add(id(holder))
        self._objects[path] = holder
        if "own" in entry:
            methods = kinds.own_methods(holder)  # a name in a file must not select the method
            if methods is None:
                raise SerializationError(f"a {entry['is']} no longer has methods to set its state")
            self._changes.append(functools.partial(getattr(holder, methods[1]), entry["own"]))
        parts, values = _parts(holder), dict(entry["data"])
        for name, child_entry in entry["objects"].items():
            values[name] = self._object(child_entry, parts.get(name), (*path, "objects", name))
        removed_names = set() if entry["left"] is None else parts.keys() - values.keys() - set(entry["left"])
        is_fixed = type(holder) in kinds.HOLDERS or isinstance(holder, kinds.CALLABLES)
        if is_fixed and (removed_names or values.keys() - parts.keys()):
            raise SerializationError(f"a {entry['is']} had other items when saved")
        changed_parts = {name: value for name, value in values.items() if name not in parts or value is not parts[name]}
        self._changes.append(functools.partial(_change, holder, changed_parts, removed_names))
        return holder


def _generators_only(entry: Node, *, is_layer: bool = False) -> Node | None:
    """Return the random generators in an entry; None if there are none."""
    inner = {name: _generators_only(child) for name, child in entry.get("objects", {}).items()}
    objects = {name: child for name, child in inner.items() if child is not None}
    pruned_entry = {"is": entry["is"], "data": {}, "objects": objects, "left": None}
    return pruned_entry if objects or is_layer else entry if "state" in entry else None


def _parts(value: Any) -> dict[Any, Any]:
    """Return the parts of an object: items, closure cells, the object of a bound method, or attributes."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | deque | set | frozenset):
        return dict(enumerate(value))
    if isinstance(value, types.FunctionType):
        return {name: cell.cell_contents for name, cell in _cells(value).items()}
    if isinstance(value, types.MethodType):
        return {"__self__": value.__self__}
    return attributes_of(value)


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _change(holder: Any, values: Mapping[Any, Any], removed_names: Collection[str]) -> None:
    """Change the parts of an object directly, bypassing properties and frozen dataclasses: no user code runs."""
    for name, value in values.items():
        if isinstance(holder, types.FunctionType):
            _cells(holder)[name].cell_contents = value
        elif isinstance(holder, list | deque | dict):
            holder[name] = value
        elif isinstance(getattr(type(holder), name, None), types.MemberDescriptorType):
            object.__setattr__(holder, name, value)
        else:
            vars(holder)[name] = value
    for name in removed_names:
        with contextlib.suppress(AttributeError):  # a class attribute
            object.__delattr__(holder, name)


def layers_of(env: Any) -> list[Any]:
    """Return an environment, its wrapped environments and the members of vectors, from the outermost to the inner."""
    attributes = attributes_of(env)
    members = attributes.get("envs")
    inner = [attributes.get("env"), *(members if isinstance(members, list | tuple) else ())]
    return [env, *(layer for child in inner if kinds.is_environment(child) for layer in layers_of(child))]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, including slots, and the spaces of an environment's class."""
    state: Any = object.__getstate__(value)
    # spaces are often class attributes, and contain a random generator
    classes = reversed(type(value).__mro__) if kinds.is_environment(value) else ()
    attributes = {name: item for cls in classes for name, item in vars(cls).items() if kinds.is_space(item)}
    for mapping in state if isinstance(state, tuple) else (state,):
        attributes |= mapping or {}
    return attributes
