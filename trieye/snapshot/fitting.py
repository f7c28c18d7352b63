"""Fitting: which of the saved states fit the objects that are to take them, and giving them all of it or nothing."""

import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trieye.config.base import did_you_mean, nearest
from trieye.exceptions import CheckpointError, ConfigurationError, TrieyeError, noted
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.environments import stateful

_MAX_NAMED = 8
_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What `load_state_dict` of torch and of users raises when a state does not fit."""


@dataclass
class Misfit:
    """What of a saved state does not fit; a key is called by the name of its object and the keys on the way to it.

    Attributes:
        missing: Keys that an object has and the checkpoint has not.
        unexpected: Keys that the checkpoint has and no object.
        other_shape: Keys whose arrays differ in shape, with both shapes.
        optimizers: Optimizers that keep their own state, each with the reason.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    other_shape: list[str] = field(default_factory=list)
    optimizers: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.other_shape or self.optimizers)

    def __str__(self) -> str:
        hints = {name: nearest(name, self.unexpected) for name in self.missing[:_MAX_NAMED]}
        missing = [f"{name} (is it {hint}?)" if (hint := hints.get(name)) else name for name in self.missing]
        parts = {
            "missing": missing,
            "unexpected": self.unexpected,
            "of another shape": self.other_shape,
            "optimizers left as they are": self.optimizers,
        }
        return "; ".join(f"{what}: {_listed(names)}" for what, names in parts.items() if names)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def restore_objects(
    held: Mapping[str, Any],
    objects: Mapping[str, Any],
    *,
    source: str,
    strict: bool = True,
    key_map: Mapping[str, str] | None = None,
) -> Misfit:
    """Give objects their saved states; either all of them get theirs, or none.

    Args:
        held: The saved states, by name.
        objects: Objects with `load_state_dict()`, random generators, environments, and dicts, by name.
        source: What the states are of, for messages.
        strict: Refuse what does not fit; with False, what has the same key and shape is restored, and of an optimizer
            all or nothing.
        key_map: What the beginning of a key in the checkpoint, with the name of its object, is now.

    Returns:
        What did not fit, where that is allowed.

    Raises:
        CheckpointError: Something does not fit; no object is changed.
        ConfigurationError: An object cannot take a state, or `key_map` names what is not there.
    """
    saved = _Saved(held, key_map or {})
    misfit = Misfit()
    plans: list[_Plan] = []
    for name, target in objects.items():
        adapted = _adapted(target)
        if strict and name not in saved.nodes:
            raise CheckpointError(
                f"{source} holds no {name!r}{did_you_mean(name, held)} (it holds: {', '.join(held)}); "
                "restore(..., strict=False) restores the others"
            )
        if not callable(getattr(adapted, "load_state_dict", None)):
            raise ConfigurationError(
                f"restore({name}=...): a {type(target).__name__} has no load_state_dict(); "
                f"call restore() without it and read run.restored[{name!r}]"
            )
        if name not in saved.nodes:
            misfit.missing.append(name)
        elif (plan := _planned(name, target, adapted, saved, strict=strict, misfit=misfit)) is not None:
            plans.append(plan)
    if strict and misfit:  # of what is renamed; torch and the objects judge the others themselves
        raise _refusal(source, misfit)
    _carry_out(plans, saved, source)
    return misfit


def _adapted(target: Any) -> Any:
    """Return what loads the saved state of an object."""
    if type(target) is dict:
        return _DictState(target)
    is_array = isinstance(target, np.ndarray) or _is_of_torch(target, "Tensor")
    return _ArrayState(target) if is_array else stateful(target)


@dataclass
class _Plan:
    """A state that an object is to get, and whether it is certain that it takes it."""

    name: str
    target: Any
    state: Any
    is_certain: bool


class _Saved:
    """Saved states as nodes: every dict and what it holds, by its path, as `key_map` calls it."""

    def __init__(self, held: Mapping[str, Any], key_map: Mapping[str, str]) -> None:
        self.nodes: dict[str, Any] = {}
        self.renamed: set[str] = set()
        self._key_map = dict(sorted(key_map.items(), key=lambda item: -len(item[0])))  # the longest one counts
        used: set[str] = set()
        paths = []
        for path, value in _walk("", held):
            paths.append(path)
            new = self._new_path(path, used)
            if new in self.nodes:
                raise ConfigurationError(f"key_map: {path} and another key of the checkpoint both become {new}")
            self.nodes[new] = value
            if new != path:
                self.renamed.add(new.partition(".")[0])
        # a run that began from another one's checkpoint goes on from its own, which has the new names
        if unused := [
            old for old, new in key_map.items() if old not in used and not any(_begins(p, new) for p in paths)
        ]:
            raise ConfigurationError(
                f"key_map: no key of the checkpoint begins with {unused[0]!r}{did_you_mean(unused[0], paths)}; "
                f"a key begins with the name of its object ({', '.join(held)})"
            )

    def _new_path(self, path: str, used: set[str]) -> str:
        for old, new in self._key_map.items():
            if _begins(path, old):
                used.add(old)
                return new.rstrip(".") + path[len(old.rstrip(".")) :]
        return path

    def leaves(self, name: str) -> list[str]:
        """Return the paths of an object's values that are no dicts with arrays."""
        inside = f"{name}."
        return [path for path, value in self.nodes.items() if path.startswith(inside) and not _is_branch(value)]


def _begins(path: str, prefix: str) -> bool:
    return f"{path}.".startswith(f"{prefix.rstrip('.')}.")


def _walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if path:
        yield path, value
    if not path or _is_branch(value):
        for key, item in value.items():
            yield from _walk(f"{path}.{key}" if path else str(key), item)


def _is_branch(value: Any) -> bool:
    """Tell whether a value is a dict whose items are looked at one by one; plain data are one value."""
    return isinstance(value, Mapping) and not _is_optimizer_state(value) and any(map(_has_array, value.values()))


def _has_array(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_optimizer_state(value) or any(map(_has_array, value.values()))
    return _shape(value) is not None


def _is_optimizer_state(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= {"state", "param_groups"}


def _shape(value: Any) -> tuple[int, ...] | None:
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # a parameter of torch's lazy modules, which takes any shape
        return None
    return None if isinstance(value, type) or shape is None else tuple(shape)


def _planned(name: str, target: Any, adapted: Any, saved: _Saved, *, strict: bool, misfit: Misfit) -> _Plan | None:
    raw = saved.nodes[name]
    is_torch = _is_of_torch(target, "nn.Module") or _is_of_torch(target, "optim.Optimizer")
    has_keys = adapted is target or isinstance(adapted, _DictState)
    if not has_keys or _is_costly(adapted) or not callable(getattr(adapted, "state_dict", None)):
        return _Plan(name, adapted, raw, is_certain=False)
    if strict and name not in saved.renamed and not is_torch:
        return _Plan(name, adapted, raw, is_certain=isinstance(adapted, _DictState) and isinstance(raw, Mapping))
    own = adapted.state_dict()
    if isinstance(adapted, _DictState) and not own:  # it takes everything
        return _Plan(name, adapted, raw, is_certain=True)
    found = Misfit()
    state = _fitted(name, own, saved, target, found)
    if strict and name not in saved.renamed:
        return _Plan(name, adapted, raw, is_certain=not found)
    for kind in ("missing", "unexpected", "other_shape", "optimizers"):
        getattr(misfit, kind).extend(getattr(found, kind))
    return None if state is None else _Plan(name, adapted, state, is_certain=is_torch)


def _fitted(name: str, own: Any, saved: _Saved, target: Any, misfit: Misfit) -> Any:
    """Return the present state of an object with what fits of the saved one, or None if nothing can be restored."""
    taken: set[str] = set()
    later: list[Callable[[], None]] = []

    def fit(path: str, value: Any, put: Callable[[Any], None]) -> None:
        if _is_branch(value):
            changed = copy.copy(value)  # the class, and what torch keeps beside the items
            for key, item in value.items():
                fit(f"{path}.{key}", item, lambda new, key=key: changed.__setitem__(key, new))  # type: ignore[misc]
            put(changed)
        elif path not in saved.nodes:
            misfit.missing.append(path)
        else:
            taken.add(path)
            found = saved.nodes[path]
            if _is_optimizer_state(value):
                later.append(lambda: _fit_optimizer(path, value, found, target, misfit, put))
            elif _shape(value) is not None and _shape(value) != _shape(found):
                misfit.other_shape.append(f"{path} is {_shown(value)} and was {_shown(found)}")
            else:
                put(found)

    result = [own]
    fit(name, own, lambda new: result.__setitem__(0, new))
    inside = tuple(f"{path}." for path in taken)
    misfit.unexpected += [path for path in saved.leaves(name) if path not in taken and not path.startswith(inside)]
    for fit_optimizer in later:  # when it is known whether the parameters fit
        fit_optimizer()
    return None if result[0] is own and misfit else result[0]


def _shown(value: Any) -> str:
    shape = _shape(value)
    return type(value).__name__ if shape is None else str(shape)


def _fit_optimizer(path: str, own: Any, found: Any, target: Any, misfit: Misfit, put: Callable[[Any], None]) -> None:
    reason = _why_another_optimizer(own, found, target, misfit)
    if reason is None:
        put(found)
    else:
        misfit.optimizers.append(f"{path} ({reason})")


def _why_another_optimizer(own: Any, found: Any, target: Any, misfit: Misfit) -> str | None:
    if not _is_optimizer_state(found):
        return f"was {_shown(found)}"
    sizes = [[len(group["params"]) for group in state["param_groups"]] for state in (own, found)]
    if sizes[0] != sizes[1]:
        now, then = (_listed(list(map(str, counts))) for counts in sizes)
        return f"has groups of {now} parameters and had {then}"
    names = [
        [name for group in state["param_groups"] for name in group.get("param_names", ())] for state in (own, found)
    ]
    if all(names) and names[0] != names[1]:
        return "its parameters have other names"
    if not _is_of_torch(target, "optim.Optimizer"):  # whose parameters are not seen here
        return "the parameters beside it do not all fit" if misfit.missing or misfit.other_shape else None
    parameters = [held for group in target.param_groups for held in group["params"]]
    numbers = [number for group in found["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for held in found["state"].get(number, {}).values():
            if not _fits_parameter(_shape(held), _shape(parameter)):
                return f"has a parameter of shape {_shape(parameter)} where {_shape(held)} belongs"
    return None


def _fits_parameter(held: tuple[int, ...] | None, parameter: tuple[int, ...] | None) -> bool:
    """Tell whether a moment of an optimizer may belong to a parameter: some keep a row and a column of it only."""
    if held is None or parameter is None:
        return True
    try:
        return np.broadcast_shapes(held, parameter) == parameter
    except ValueError:
        return False


def _carry_out(plans: list[_Plan], saved: _Saved, source: str) -> None:
    """Load the states, those last of which it is certain that they fit; undo it all if one does not."""
    undo: list[tuple[_Plan, Any]] = []
    for plan in sorted(plans, key=lambda plan: plan.is_certain):
        if not plan.is_certain and (before := _copied(plan.target)) is not None:
            undo.append((plan, before))
        try:
            plan.target.load_state_dict(plan.state)
        except BaseException as error:
            with noted(error, "undoing what was restored"):
                for done, before in reversed(undo):
                    done.target.load_state_dict(decode(before))
            if isinstance(error, TrieyeError) or not isinstance(error, _ERRORS):
                raise
            raise _refusal(source, _misfit_of(plan, saved), plan.name, error) from error


def _misfit_of(plan: _Plan, saved: _Saved) -> Misfit:
    found = Misfit()
    with contextlib.suppress(Exception):  # a user's state_dict(), and there is an error already
        _fitted(plan.name, plan.target.state_dict(), saved, plan.target, found)
    return found


def _refusal(source: str, misfit: Misfit, name: str = "", error: Exception | None = None) -> CheckpointError:
    what = f"{source} does not fit{f' {name!r}' if name else ''}, and nothing is restored: "
    reasons = "; ".join(filter(None, (str(misfit), "" if error is None else f"{type(error).__name__}: {error}")))
    return CheckpointError(
        f"{what}{reasons}; restore(..., strict=False) restores what fits, and key_map={{'old.prefix': 'new.prefix'}} "
        "renames keys of the checkpoint"
    )


def _copied(target: Any) -> Any:
    """Return the present state of an object in memory of its own, on the CPU, or None if it has none to copy."""
    if _is_costly(target) or not callable(getattr(target, "state_dict", None)):
        return None
    with contextlib.suppress(Exception):  # a user's object; without the copy it cannot be undone, and that is all
        return encode(target.state_dict())
    return None


def _is_costly(target: Any) -> bool:
    """Tell whether the state of an object is only asked for when it is saved; see `is_costly_to_ask`."""
    return bool(getattr(target, "is_costly_to_ask", False))


def _is_of_torch(target: Any, name: str) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    module, _, kind = name.rpartition(".")
    return isinstance(target, getattr(getattr(torch, module, None) if module else torch, kind, ()))


class _DictState:
    """A dict of plain data or arrays as an object with a state."""

    def __init__(self, held: dict[Any, Any]) -> None:
        self._held = held

    def state_dict(self) -> dict[Any, Any]:
        return self._held

    def load_state_dict(self, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"a dict was expected, and the checkpoint has a {type(state).__name__}")
        new = dict(state)
        self._held.clear()
        self._held.update(new)


class _ArrayState:
    """An array or a tensor as an object with a state, which is copied into it."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def state_dict(self) -> Any:
        return self._array

    def load_state_dict(self, state: Any) -> None:
        if _shape(state) != _shape(self._array):
            raise ValueError(
                f"an array of shape {_shape(self._array)} was expected, and the checkpoint has {_shown(state)}"
            )
        target = self._array if isinstance(self._array, np.ndarray) else self._array.detach()
        target[...] = state
