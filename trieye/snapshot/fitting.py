"""Matches saved states with objects, and restores all objects or none."""

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trieye.config.base import did_you_mean, nearest
from trieye.exceptions import CheckpointError, ConfigurationError, TrieyeError, noted
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.in_place import (
    PLAIN_TYPES,
    ArrayState,
    DictState,
    adapter_of,
    are_equal,
    is_array,
    is_of_torch,
    is_restored_in_place,
    object_inside,
    shape_of,
    shape_text,
)

_MAX_NAMED = 8
_MISSING = object()
_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Exceptions of `load_state_dict` of torch and of user classes for a state that does not fit."""


@dataclass
class StateMismatch:
    """Differences between saved states and objects; a key is the dotted path from the name of its object.

    Attributes:
        missing: Keys of objects that the checkpoint lacks.
        unexpected: Keys of the checkpoint that no object has.
        other_shape: Keys whose values differ in shape or type, with both.
        optimizers: Optimizers that retain their current state, each with the reason.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    other_shape: list[str] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.other_shape or self.optimizers)

    def add(self, other: "StateMismatch") -> None:
        """Add the differences of other objects."""
        for kind in vars(self):
            getattr(self, kind).extend(getattr(other, kind))

    def __str__(self) -> str:
        hints = {name: nearest(name, self.unexpected) for name in self.missing[:_MAX_NAMED]}
        missing_texts = [f"{name} (is it {hint}?)" if (hint := hints.get(name)) else name for name in self.missing]
        parts = {
            "missing": missing_texts,
            "unexpected": self.unexpected,
            "of another shape or type": self.other_shape,
            "optimizers not restored": self.optimizers,
        }
        return "; ".join(f"{kind}: {_listed(names)}" for kind, names in parts.items() if names)


def _listed(names: list[str]) -> str:
    suffix = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + suffix


def check_restorable(objects: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if an object, or an object in a dict, cannot load a state; None is allowed."""
    for name, target in objects.items():
        if target is not None:
            _check_restorable(name, target)


def _check_restorable(path: str, target: Any) -> None:
    if not callable(getattr(adapter_of(target), "load_state_dict", None)):
        name = path.partition(".")[0]
        raise ConfigurationError(
            f"restore({path}=...): a {type(target).__name__} has no load_state_dict(); "
            f"call restore() without it and read run.restored[{name!r}]"
        )
    for key, value in target.items() if type(target) is dict else ():
        if type(value) in PLAIN_TYPES:
            continue
        if type(value) is dict or is_restored_in_place(value):
            _check_restorable(f"{path}.{key}", value)
        elif (inner := object_inside(value)) is not None:
            raise ConfigurationError(
                f"restore({path}=...): {path}.{key} is a {type(value).__name__} with a {type(inner).__name__}, "
                "which cannot be restored in place; pass it as an object of its own, or in a dict"
            )


def restore_objects(
    states: Mapping[str, Any],
    objects: Mapping[str, Any],
    *,
    source: str,
    strict: bool = True,
    key_map: Mapping[str, str] | None = None,
) -> StateMismatch:
    """Restore the states of objects atomically: all objects or none.

    Args:
        states: The saved states, by name.
        objects: Objects with `load_state_dict()`, random generators, environments, and dicts, by name.
        source: Origin of the states, for messages.
        strict: Refuse states that do not fit; with False, values with the same key and shape are restored, and an
            optimizer is restored completely or not at all.
        key_map: New key prefix for each old key prefix in the checkpoint; prefixes start with the name of an object.

    Returns:
        The differences, which are allowed with `strict=False`.

    Raises:
        CheckpointError: A state does not fit; no object is changed.
        ConfigurationError: An object cannot load a state, or `key_map` names a missing key.
    """
    check_restorable(objects)
    tree = _StateTree(states, key_map or {})
    names = dict.fromkeys(path.partition(".")[0] for path in tree.nodes)
    planner = _Planner(tree, strict)
    for name, target in objects.items():
        if strict and name not in tree.nodes:
            raise CheckpointError(
                f"{source} has no {name!r}{did_you_mean(name, names)} (it has: {', '.join(names)}); "
                "restore(..., strict=False) restores the others"
            )
        planner.add(name, target, tree.nodes.get(name, _MISSING))
    if strict and planner.mismatch:  # torch and the objects themselves check all keys that are not compared here
        planner.mismatch.add(planner.likely_mismatch)
        raise _refusal(source, planner.mismatch)
    _apply(planner.plans, tree, source)
    return planner.mismatch


def needed_key_map(
    states: Mapping[str, Any], objects: Mapping[str, Any], key_map: Mapping[str, str] | None
) -> Mapping[str, str]:
    """Return the part of a `key_map` whose new keys the checkpoint lacks, for a checkpoint of the run itself.

    A run that started from another run's checkpoint resumes from its own one, which has the new keys.

    Args:
        states: The saved states, by name.
        objects: The objects to restore, by name.
        key_map: See `restore_objects`.
    """
    if not key_map:
        return {}
    planner = _Planner(_StateTree(states, {}), strict=False)
    for name, target in objects.items():
        planner.add(name, target, planner.tree.nodes.get(name, _MISSING))
    missing = planner.mismatch.missing
    return {old: new for old, new in key_map.items() if any(_begins(key, new) or _begins(new, key) for key in missing)}


@dataclass
class _Plan:
    """A state to load into an object, and whether the load is certain to succeed."""

    name: str
    target: Any
    state: Any
    is_certain: bool


class _StateTree:
    """Saved states as nodes: every dict and each of its values, by path, renamed according to `key_map`."""

    def __init__(self, states: Mapping[str, Any], key_map: Mapping[str, str]) -> None:
        self.nodes: dict[str, Any] = {}
        saved_items = list(_walk("", states))
        paths = [path for path, _ in saved_items]
        self._key_map = dict(sorted(key_map.items(), key=lambda item: -len(item[0])))  # the longest prefix applies
        used_keys: set[str] = set()
        renamed_paths: set[str] = set()
        for path, value in saved_items:
            new = self._new_path(path, used_keys)
            if new in self.nodes and (new != path or new in renamed_paths):
                raise ConfigurationError(f"key_map: {path} and another key of the checkpoint both become {new}")
            self.nodes.setdefault(new, value)
            if new != path:
                renamed_paths.add(new)
        self.renamed = {path.partition(".")[0] for path in renamed_paths}
        for path in renamed_paths:
            self._add_parents(path)
        missing_keys = {old: new for old, new in key_map.items() if old not in used_keys}
        # a copy of a run that renamed its keys has the new ones already
        if unused := [old for old, new in missing_keys.items() if not any(_begins(path, new) for path in paths)]:
            raise ConfigurationError(
                f"key_map: no key of the checkpoint begins with {unused[0]!r}{did_you_mean(unused[0], paths)}; "
                f"a key begins with the name of its object ({', '.join(states)})"
            )

    def _new_path(self, path: str, used_keys: set[str]) -> str:
        for old, new in self._key_map.items():
            if _begins(path, old):
                used_keys.add(old)
                return new.rstrip(".") + path[len(old.rstrip(".")) :]
        return path

    def _add_parents(self, path: str) -> None:
        value = self.nodes[path]
        while (parent := path.rpartition(".")[0]) and parent not in self.nodes:
            self.nodes[parent] = value = {path[len(parent) + 1 :]: value}
            path = parent

    def is_renamed(self, path: str) -> bool:
        """Return whether `key_map` renames a key of the object to which a path belongs."""
        return path.partition(".")[0] in self.renamed

    def item(self, parent: Any, key: Any, path: str) -> Any:
        """Return the saved value of an item of a dict, or `_MISSING`."""
        if isinstance(parent, Mapping) and key in parent and not (self.is_renamed(path) and _is_branch(parent)):
            return parent[key]
        return self.nodes.get(path, _MISSING)

    def leaves(self, name: str) -> list[str]:
        """Return the paths of an object's values, except dicts with arrays."""
        path_prefix = f"{name}."
        return [path for path, value in self.nodes.items() if path.startswith(path_prefix) and not _is_branch(value)]


def _begins(path: str, prefix: str) -> bool:
    return f"{path}.".startswith(f"{prefix.rstrip('.')}.")


def _walk(prefix: str, values: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    paths = [(f"{prefix}{key}", value) for key, value in values.items()]
    yield from paths  # first, because a saved object takes precedence over an equal path within another one
    for path, value in paths:
        if _is_branch(value):
            yield from _walk(f"{path}.", value)


def _is_branch(value: Any) -> bool:
    """Return whether a value is a dict whose items are matched individually; plain data count as a single value."""
    return isinstance(value, Mapping) and not _is_optimizer_state(value) and any(map(_has_array, value.values()))


def _has_array(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_optimizer_state(value) or any(map(_has_array, value.values()))
    return shape_of(value) is not None


def _is_optimizer_state(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= {"state", "param_groups"}


@dataclass
class _Planner:
    """Plans the loads of all objects, and of the objects and arrays in dicts; changes nothing."""

    tree: _StateTree
    strict: bool
    plans: list[_Plan] = field(default_factory=list)
    mismatch: StateMismatch = field(default_factory=StateMismatch)
    likely_mismatch: StateMismatch = field(default_factory=StateMismatch)
    """Differences of objects that may accept them, such as models."""
    _saved_arrays: dict[int, Any] = field(default_factory=dict)

    def add(self, path: str, target: Any, saved_value: Any) -> None:
        """Plan to load a saved value, or `_MISSING`, into an object."""
        adapter = adapter_of(target)
        if saved_value is _MISSING:
            self.mismatch.missing.append(path)
        elif target is None:
            if saved_value is not None:
                self.mismatch.other_shape.append(f"{path} is None and was {shape_text(saved_value)}")
        elif saved_value is None and not _accepts_none(adapter):
            self.mismatch.other_shape.append(f"{path} is {shape_text(target)} and was None")
        elif isinstance(adapter, ArrayState):
            self._saved_arrays.setdefault(id(target), saved_value)
            if misfit := adapter.misfit(saved_value):
                self.mismatch.other_shape.append(f"{path} {misfit}")
            else:
                self.plans.append(_Plan(path, adapter, saved_value, is_certain=isinstance(target, np.ndarray)))
        elif not isinstance(adapter, DictState):
            self._add_object(path, target, adapter, saved_value)
        elif isinstance(saved_value, Mapping):
            self._add_dict(path, target, saved_value)
        else:
            self.mismatch.other_shape.append(f"{path} is dict and was {shape_text(saved_value)}")

    def _add_dict(self, path: str, target: dict[Any, Any], saved_dict: Mapping[Any, Any]) -> None:
        members = {}
        for key, value in target.items():
            if type(value) in PLAIN_TYPES:
                continue
            item_path = f"{path}.{key}"
            saved_item = self.tree.item(saved_dict, key, item_path)
            is_filled = type(value) is dict and isinstance(saved_item, Mapping)
            is_other = is_array(value) and saved_item is not _MISSING and ArrayState(value).misfit(saved_item)
            if is_filled or (is_restored_in_place(value) and not is_other and not self._is_alias(value, saved_item)):
                members[key] = value
                self.add(item_path, value, saved_item)
        if self._is_exact(path) or not (_is_branch(target) or (members and _is_branch(saved_dict))):
            state: Any = self._filled(path, target, saved_dict, members)
        else:
            state = self._fitted(path, target, target, saved_dict, members)
        if state is not None:
            self.plans.append(_Plan(path, DictState(target), state, is_certain=True))

    def _filled(
        self, path: str, target: dict[Any, Any], saved_dict: Mapping[Any, Any], members: Mapping[Any, Any]
    ) -> dict[Any, Any]:
        """Return the items of a saved dict, then the items that it lacks; list the latter as missing."""
        state = {key: members.get(key, value) for key, value in saved_dict.items()}
        for key, value in target.items():
            if key not in state:
                item_path = f"{path}.{key}"
                saved_item = value if key in members else self.tree.item(saved_dict, key, item_path)
                if saved_item is _MISSING:  # a missing member is already listed
                    self.mismatch.missing.append(item_path)
                state[key] = value if saved_item is _MISSING else saved_item
        return state

    def _is_alias(self, value: Any, saved_value: Any) -> bool:
        """Return whether an array is also the target of another value, as a best result that is the current one."""
        return is_array(value) and not are_equal(self._saved_arrays.setdefault(id(value), saved_value), saved_value)

    def _add_object(self, path: str, target: Any, adapter: Any, saved_state: Any) -> None:
        is_torch = is_of_torch(target, "nn.Module") or is_of_torch(target, "optim.Optimizer")
        has_keys = adapter is target and not _is_costly(adapter) and callable(getattr(adapter, "state_dict", None))
        if not has_keys or (self._is_exact(path) and not is_torch):
            self.plans.append(_Plan(path, adapter, saved_state, is_certain=False))
        elif self._is_exact(path):
            own_mismatch = StateMismatch()
            # other optimizers may keep values of any shape
            owner = target if type(target).__module__.startswith("torch.optim") else None
            _fitted(path, adapter.state_dict(), saved_state, self.tree, owner, own_mismatch)
            is_misfit = own_mismatch.optimizers and not self.tree.renamed  # renamed parameters have other names
            (self.mismatch if is_misfit else self.likely_mismatch).add(own_mismatch)
            self.plans.append(_Plan(path, adapter, saved_state, is_certain=not own_mismatch))
        elif (state := self._fitted(path, target, adapter.state_dict(), saved_state)) is not None:
            self.plans.append(_Plan(path, adapter, state, is_certain=is_torch))

    def _is_exact(self, path: str) -> bool:
        """Return whether an object receives its state as it was saved."""
        return self.strict and not self.tree.is_renamed(path)

    def _fitted(self, path: str, target: Any, own_state: Any, saved_state: Any, members: Collection[Any] = ()) -> Any:
        mismatch = StateMismatch()
        state = _fitted(path, own_state, saved_state, self.tree, target, mismatch, members)
        self.mismatch.add(mismatch)
        return state


def _fitted(
    name: str,
    own_state: Any,
    saved_state: Any,
    tree: _StateTree,
    target: Any,
    mismatch: StateMismatch,
    members: Collection[Any] = (),
) -> Any:
    """Return the current state of an object, updated with the matching saved values; None if none match."""
    matched_paths = {f"{name}.{key}" for key in members}  # these items load their states themselves
    optimizer_fits: list[Callable[[], None]] = []

    def fit(path: str, value: Any, saved_state: Any, assign: Callable[[Any], None]) -> None:
        if _is_branch(value) or (members and value is own_state):
            container = copy.copy(value)  # preserves the class and torch's extra attributes
            for key, item in value.items():
                if value is own_state and key in members:
                    continue
                saved_item = tree.item(saved_state, key, f"{path}.{key}")
                fit(f"{path}.{key}", item, saved_item, lambda state, key=key: container.__setitem__(key, state))  # type: ignore[misc]
            assign(container)
        elif saved_state is _MISSING:
            mismatch.missing.append(path)
        else:
            matched_paths.add(path)
            if _is_optimizer_state(value):
                optimizer_fits.append(lambda: _fit_optimizer(path, value, saved_state, target, mismatch, assign))
            elif shape_of(value) is not None and shape_of(value) != shape_of(saved_state):
                mismatch.other_shape.append(f"{path} is {shape_text(value)} and was {shape_text(saved_state)}")
            else:
                assign(saved_state)

    result = [own_state]
    fit(name, own_state, saved_state, lambda state: result.__setitem__(0, state))
    path_prefixes = tuple(f"{path}." for path in matched_paths)
    unmatched_paths = [path for path in tree.leaves(name) if path not in matched_paths]
    mismatch.unexpected += [path for path in unmatched_paths if not path.startswith(path_prefixes)]
    for fit_optimizer in optimizer_fits:  # after all parameters have been matched
        fit_optimizer()
    return None if result[0] is own_state and mismatch else result[0]


def _fit_optimizer(
    path: str, own_state: Any, saved_state: Any, target: Any, mismatch: StateMismatch, assign: Callable[[Any], None]
) -> None:
    reason = _optimizer_mismatch(own_state, saved_state, target, mismatch)
    if reason is None:
        assign(saved_state)
    else:
        mismatch.optimizers.append(f"{path} ({reason})")


def _optimizer_mismatch(own_state: Any, saved_state: Any, target: Any, mismatch: StateMismatch) -> str | None:
    if not _is_optimizer_state(saved_state):
        return f"was {shape_text(saved_state)}"
    sizes = [[len(group["params"]) for group in state["param_groups"]] for state in (own_state, saved_state)]
    if sizes[0] != sizes[1]:
        own_sizes, saved_sizes = (_listed(list(map(str, counts))) for counts in sizes)
        return f"has groups of {own_sizes} parameters and had {saved_sizes}"
    names = [
        [name for group in state["param_groups"] for name in group.get("param_names", ())]
        for state in (own_state, saved_state)
    ]
    if all(names) and names[0] != names[1]:
        return "its parameters have other names"
    if not is_of_torch(target, "optim.Optimizer"):  # the parameters are unknown here
        return "not all parameters of the same object fit" if mismatch.missing or mismatch.other_shape else None
    parameters = [parameter for group in target.param_groups for parameter in group["params"]]
    indices = [index for group in saved_state["param_groups"] for index in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        for shape in map(shape_of, saved_state["state"].get(index, {}).values()):
            if not _fits_parameter(shape, shape_of(parameter)) and shape != _flat_shape(parameters):
                return f"has a parameter of shape {shape_of(parameter)}, but the saved state has {shape}"
    return None


def _flat_shape(parameters: list[Any]) -> tuple[int]:
    """Return the shape of the real values of all parameters in one vector, as LBFGS keeps them."""
    return (sum(parameter.numel() * (1 + parameter.is_complex()) for parameter in parameters),)


def _fits_parameter(moment: tuple[int, ...] | None, parameter: tuple[int, ...] | None) -> bool:
    """Return whether a moment of an optimizer may belong to a parameter; some store only a row and a column."""
    if moment is None or parameter is None:
        return True
    try:
        return np.broadcast_shapes(moment, parameter) == parameter
    except ValueError:
        return False


def _apply(plans: list[_Plan], tree: _StateTree, source: str) -> None:
    """Load the states, uncertain ones first; undo all loads if one fails."""
    backups: list[tuple[_Plan, Any]] = []
    for plan in sorted(plans, key=lambda plan: plan.is_certain):
        if not plan.is_certain and (backup := _backup(plan.target)) is not None:
            backups.append((plan, backup))
        try:
            plan.target.load_state_dict(plan.state)
        except BaseException as error:
            with noted(error, "undoing the restore"):
                for loaded_plan, backup in reversed(backups):
                    loaded_plan.target.load_state_dict(decode(backup))
            if isinstance(error, TrieyeError) or not isinstance(error, _ERRORS):
                raise
            raise _refusal(source, _mismatch_of(plan, tree), plan.name, error) from error


def _mismatch_of(plan: _Plan, tree: _StateTree) -> StateMismatch:
    mismatch = StateMismatch()
    with contextlib.suppress(Exception):  # a user's state_dict() may raise; the original error is reported anyway
        _fitted(plan.name, plan.target.state_dict(), plan.state, tree, plan.target, mismatch)
    return mismatch


def _refusal(source: str, mismatch: StateMismatch, name: str = "", error: Exception | None = None) -> CheckpointError:
    subject = f"{source} does not fit{f' {name!r}' if name else ''}, and nothing is restored: "
    reasons = "; ".join(filter(None, (str(mismatch), "" if error is None else f"{type(error).__name__}: {error}")))
    return CheckpointError(
        f"{subject}{reasons}; restore(..., strict=False) restores matching values, and "
        "key_map={'old.prefix': 'new.prefix'} renames keys of the checkpoint"
    )


def _backup(target: Any) -> Any:
    """Return a copy of an object's current state on the CPU, or None if it has none."""
    if _is_costly(target) or not callable(getattr(target, "state_dict", None)):
        return None
    with contextlib.suppress(Exception):  # a user's object may raise; then its load cannot be undone
        return encode(target.state_dict())
    return None


def _accepts_none(adapter: Any) -> bool:
    """Return whether an object may have saved a None: its own state is None, or cannot be requested now."""
    backup = _backup(adapter)
    return backup is None or decode(backup) is None


def _is_costly(target: Any) -> bool:
    """Return whether an object's state may be requested only for a save; see `is_costly_to_ask`."""
    return bool(getattr(target, "is_costly_to_ask", False))
