"""Attributes: saves and restores the state that an engine stores in its attributes."""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any, TypeGuard

import numpy as np
import torch

from trieye.exceptions import ConfigurationError
from trieye.snapshot.environment_values import is_data
from trieye.snapshot.environments import stateful

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_DATA_TYPES = (*_CONTAINERS, np.ndarray, torch.Tensor)
_OFF_DEVICE = "_elsewhere"  # stored key; no saved attribute begins with _


class Attributes:
    """The state in the attributes of an object whose names do not begin with `_`.

    Saved are objects with `state_dict`, random generators, parameters, and plain data (numbers, text, arrays, tensors
    and dicts, lists, tuples, sets and deques of these) that changed since construction. Unchanged data come from the
    current config instead. Other objects are ignored.

    Tensors return to the current device of the holder. An attribute with tensors on other devices only stays on the
    CPU; a tensor that the set-up created returns to the device that the set-up chose.

    Args:
        holder: The object, after its own set-up.
        ignored: Names of attributes to skip.

    Raises:
        ConfigurationError: A container holds stateful objects, or data in a form that is not saved.
    """

    def __init__(self, holder: Any, ignored_names: Collection[str]) -> None:
        self._holder, self._ignored_names = holder, ignored_names
        self._device = torch.device(getattr(holder, "device", "cpu"))
        self._initial_data = {name: deepcopy(value) for name, value in self._items() if is_data(value)}
        for name, value in self._items():
            if not is_data(value) and not isinstance(value, torch.Size):  # a shape is not state
                self._check(name, value)

    def _check(self, name: str, value: Any) -> None:
        """Raise if checkpoints would omit state in a value that is not plain data."""
        attribute, kind = f"{type(self._holder).__name__}.{name}", type(value).__name__
        leaves = list(_leaves(value))
        if isinstance(value, _CONTAINERS) and any(map(self._is_unsaved, leaves)):
            raise ConfigurationError(
                f"{attribute} is a {kind} of stateful objects, which checkpoints would omit; "
                "assign each to a separate attribute (modules: use a torch.nn.ModuleDict or ModuleList)"
            )
        if any(is_data(leaf) or isinstance(leaf, _DATA_TYPES) for leaf in leaves if not _is_parameter(leaf)):
            raise ConfigurationError(
                f"{attribute}: checkpoints would omit this {kind}, because it is not plain data; use a dict, list or "
                "tuple of numbers, text, arrays and tensors, or start the name with _ if it need not be saved"
            )

    def _is_unsaved(self, item: Any) -> bool:
        if not _is_parameter(item):
            return _has_state(item)
        modules = [value for value in vars(self._holder).values() if isinstance(value, torch.nn.Module)]
        saved_items = [*vars(self._holder).values(), *(weight for module in modules for weight in module.parameters())]
        return all(item is not saved_item for saved_item in saved_items)

    def _items(self) -> Iterator[tuple[str, Any]]:
        policy = vars(self._holder).get("policy")
        policy_modules = set(policy.modules()) if isinstance(policy, torch.nn.Module) else set()
        for name, value in vars(self._holder).items():
            if (
                name[0] != "_"
                and name not in self._ignored_names
                and not (isinstance(value, torch.nn.Module) and value in policy_modules)
            ):
                yield name, value

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save, by name."""
        values = {name: value for name, value in self._items() if self._is_state(name, value)}
        state = {name: value.detach() if _is_parameter(value) else value for name, value in values.items()}
        off_device = [name for name, value in values.items() if self._is_off_device(value)]
        return {**state, _OFF_DEVICE: off_device} if off_device else state

    def _is_off_device(self, value: Any) -> bool:
        types = {leaf.device.type for leaf in _leaves(value) if isinstance(leaf, torch.Tensor)}
        return bool(types) and self._device.type not in types

    def _is_state(self, name: str, value: Any) -> bool:
        if is_data(value):
            return name not in self._initial_data or not _are_equal(value, self._initial_data[name])
        return _has_state(value) or _is_parameter(value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        off_device = state.get(_OFF_DEVICE, ())
        for name, value in state.items():
            if name == _OFF_DEVICE:
                continue
            current_value = getattr(self._holder, name, None)
            if isinstance(current_value, torch.optim.Optimizer):
                self._load_optimizer(current_value, value)
            elif _has_state(current_value):
                stateful(current_value).load_state_dict(value)
            elif _is_parameter(current_value):
                with torch.no_grad():
                    current_value.copy_(value)  # in place: an optimizer refers to it
            else:
                own_value = value if name in off_device else self._move_tensors(value, current_value)
                setattr(self._holder, name, own_value)

    def _move_tensors(self, value: Any, current_value: Any) -> Any:
        """Move the tensors of a value to the device of the current tensor, or else of the holder."""
        if isinstance(value, torch.Tensor):
            return value.to(current_value.device if isinstance(current_value, torch.Tensor) else self._device)
        if isinstance(value, dict):
            items = current_value if isinstance(current_value, dict) else {}
            return type(value)((key, self._move_tensors(item, items.get(key))) for key, item in value.items())
        if isinstance(value, deque):
            return deque((self._move_tensors(item, None) for item in value), value.maxlen)
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self._move_tensors(item, None) for item in value)
        return value

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, state: Any) -> None:
        """Load the moments; hyperparameters keep the values of the current config, unless a scheduler changes them."""
        current = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        if not any(getattr(value, "optimizer", None) is optimizer for _, value in self._items()):
            for group, values in zip(optimizer.param_groups, current, strict=True):
                group.update(values)


def _is_parameter(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and (value.requires_grad or isinstance(value, torch.nn.Parameter))


def _has_state(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(stateful(value), "state_dict", None))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the items in nested containers, in their order; empty containers are items, too."""
    if isinstance(value, _CONTAINERS) and value:
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def _are_equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.device, one.dtype) == (other.device, other.dtype) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_equal(item, other[key]) for key, item in one.items())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return np.array_equal(one, other)
