"""Restores arrays, tensors and dicts in place."""

import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from trieye.snapshot.environments import stateful
from trieye.snapshot.generators import generator_state

PLAIN_TYPES = {type(None), bool, int, float, str}
"""Types of the usual items of large tables and lists, which need no closer look."""


def adapter_of(target: Any) -> Any:
    """Return the object, or its adapter, whose `load_state_dict` loads the state."""
    if type(target) is dict:
        return DictState(target)
    return ArrayState(target) if is_array(target) else stateful(target)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of NumPy or a tensor of torch."""
    return isinstance(value, np.ndarray) or is_of_torch(value, "Tensor")


def is_restored_in_place(item: Any) -> bool:
    """Return whether an item of a dict keeps its identity in a restore: an array, or an object with a state."""
    if type(item) is dict:
        return any(map(is_restored_in_place, item.values()))
    if isinstance(item, np.ndarray):
        return item.flags.writeable
    return is_array(item) or _has_state(item)


def object_inside(value: Any) -> Any:
    """Return an object with a state in a list or another container, which a restore would replace by its state."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset | deque):
        return None
    for item in value:
        if type(item) in PLAIN_TYPES:
            continue
        is_object = _has_state(item) and generator_state(item) is None
        if (stateful_object := item if is_object else object_inside(item)) is not None:
            return stateful_object
    return None


def _has_state(value: Any) -> bool:
    if type(value) in PLAIN_TYPES or isinstance(value, type):
        return False
    adapter = stateful(value)
    return any(callable(getattr(adapter, name, None)) for name in ("state_dict", "load_state_dict"))


def are_equal(first: Any, second: Any) -> bool:
    """Return whether two arrays or two tensors have equal values, NaN included; False if they cannot be compared."""
    if first is second:
        return True
    if type(first) is not type(second) or shape_of(first) != shape_of(second):
        return False
    try:
        return bool(((first == second) | ((first != first) & (second != second))).all())  # noqa: PLR0124 - NaN
    except (RuntimeError, TypeError, ValueError):  # sparse and float8 tensors, arrays of arrays
        return False


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, or None for any other value."""
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # a parameter of torch's lazy modules, which accepts any shape
        return None
    return tuple(shape) if isinstance(shape, tuple) and not isinstance(value, type) else None


def shape_text(value: Any) -> str:
    """Return the shape of an array, or the type of any other value."""
    shape = shape_of(value)
    return str(shape) if shape is not None else "None" if value is None else type(value).__name__


def is_of_torch(target: Any, name: str) -> bool:
    """Return whether a value is an instance of a class of torch, without an import of torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    module, _, kind = name.rpartition(".")
    return isinstance(target, getattr(getattr(torch, module, None) if module else torch, kind, ()))


class DictState:
    """A dict as an object with a state."""

    def __init__(self, target: dict[Any, Any]) -> None:
        self._target = target

    def load_state_dict(self, state: Mapping[Any, Any]) -> None:
        """Replace all items."""
        new_items = dict(state)
        self._target.clear()
        self._target.update(new_items)


class ArrayState:
    """An array or a tensor as an object with a state; loading copies into the array."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def state_dict(self) -> Any:
        """Return the array."""
        return self._array

    def misfit(self, state: Any) -> str | None:
        """Return the differences in shape or dtype that prevent a restore."""
        if shape_of(state) != shape_of(self._array):
            return f"is {shape_text(self._array)} and was {shape_text(state)}"
        if not _can_cast(state, self._array):
            return f"is {self._array.dtype} and was {state.dtype}"
        if isinstance(self._array, np.ndarray):
            return None if self._array.flags.writeable else "is read-only: pass a copy()"
        if {str(self._array.layout), str(state.layout)} == {"torch.strided"}:
            dims = zip(self._array.shape, self._array.stride(), strict=True)
            is_expanded = any(size > 1 and not stride for size, stride in dims)
            return "is expanded, so its elements share memory: pass a clone()" if is_expanded else None
        try:  # torch can fill some sparse tensors
            ArrayState(self._array.clone()).load_state_dict(state)
        except RuntimeError as error:
            return f"cannot be filled: {error}"
        return None

    def load_state_dict(self, state: Any) -> None:
        """Copy an array for which `misfit` returns None."""
        if isinstance(self._array, np.ndarray):
            self._array[...] = state
        else:
            import torch

            with torch.no_grad():
                self._array.copy_(state)


def _can_cast(saved_value: Any, own_value: Any) -> bool:
    """Return whether a cast loses nothing but the precision of floating-point numbers."""
    if isinstance(own_value, np.ndarray):
        try:
            dtype = np.asarray(saved_value).dtype
        except TypeError:  # a tensor of a dtype that NumPy lacks
            return False
        return np.can_cast(dtype, own_value.dtype, "same_kind" if dtype.kind in "fc" else "safe")
    if not is_of_torch(saved_value, "Tensor"):
        return False
    import torch

    is_inexact = saved_value.is_floating_point() or saved_value.is_complex()
    # torch counts integers of all sizes as one kind
    is_wide = is_inexact or own_value.element_size() >= saved_value.element_size()
    return is_wide and torch.can_cast(saved_value.dtype, own_value.dtype)
