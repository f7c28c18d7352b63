"""Attributes: the state that an engine keeps in attributes, saved and given back without a word of its author."""

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
_ELSEWHERE = "_elsewhere"  # no attribute is saved by such a name


class Attributes:
    """The attributes of an object whose names do not begin with `_`.

    Saved are objects with `state_dict`, random generators and parameters, and plain data (numbers, text, arrays,
    tensors, and containers of such) that are other than they were when this was made: what is made from the config is
    what the config says now. Anything else is no state.

    Tensors return to the current device of the holder. A tensor saved off that device stays on the CPU; one that the
    set-up has created keeps the device chosen there.

    Args:
        holder: The object, when its own set-up is over.
        ignored: Names that are left alone.

    Raises:
        ConfigurationError: A container holds objects with a state, which could not be given back.
    """

    def __init__(self, holder: Any, ignored: Collection[str]) -> None:
        self._holder, self._ignored = holder, ignored
        self._at_first = {name: deepcopy(value) for name, value in self._items() if is_data(value)}
        for name, value in self._items():
            if isinstance(value, _CONTAINERS) and any(self._would_be_lost(item) for item in _items_of(value)):
                kind = type(holder).__name__
                raise ConfigurationError(
                    f"{kind}.{name} is a {type(value).__name__} of objects with a state, which nobody would save; "
                    "give each an attribute of its own (modules: a torch.nn.ModuleDict or ModuleList)"
                )

    def _would_be_lost(self, item: Any) -> bool:
        if not _is_learned(item):
            return _has_state(item)
        modules = [value for value in vars(self._holder).values() if isinstance(value, torch.nn.Module)]
        held = [*vars(self._holder).values(), *(weight for module in modules for weight in module.parameters())]
        return all(item is not other for other in held)

    def _items(self) -> Iterator[tuple[str, Any]]:
        policy = vars(self._holder).get("policy")
        own = set(policy.modules()) if isinstance(policy, torch.nn.Module) else set()
        for name, value in vars(self._holder).items():
            if (
                name[0] != "_"
                and name not in self._ignored
                and not (isinstance(value, torch.nn.Module) and value in own)
            ):
                yield name, value

    def state_dict(self) -> dict[str, Any]:
        """Return what has to be saved, by name."""
        held = {name: value for name, value in self._items() if self._is_state(name, value)}
        state = {name: value.detach() if _is_learned(value) else value for name, value in held.items()}
        own = self._device.type
        marks = {name: [tensor.device.type != own for tensor in _tensors_of(value)] for name, value in held.items()}
        marks = {name: marked for name, marked in marks.items() if any(marked)}
        return {**state, _ELSEWHERE: marks} if marks else state

    @property
    def _device(self) -> torch.device:
        return torch.device(getattr(self._holder, "device", "cpu"))

    def _is_state(self, name: str, value: Any) -> bool:
        if is_data(value):
            return name not in self._at_first or not _are_same(value, self._at_first[name])
        return _has_state(value) or _is_learned(value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Give back what `state_dict` returned."""
        elsewhere = state.get(_ELSEWHERE, {})
        for name, value in state.items():
            if name == _ELSEWHERE:
                continue
            held = getattr(self._holder, name, None)
            if isinstance(held, torch.optim.Optimizer):
                self._load_optimizer(held, value)
            elif _has_state(held):
                stateful(held).load_state_dict(value)
            elif _is_learned(held):
                with torch.no_grad():
                    held.copy_(value)  # an optimizer holds it
            else:
                marks = elsewhere.get(name, [False] * len(list(_tensors_of(value))))
                setattr(self._holder, name, self._placed(value, held, iter(marks)))

    def _placed(self, value: Any, held: Any, elsewhere: Iterator[bool]) -> Any:
        """Return a value with its tensors on the device chosen by the set-up, else that of the holder.

        Marked tensors stay on the CPU.
        """
        if isinstance(value, torch.Tensor):
            is_elsewhere = next(elsewhere)
            device = held.device if isinstance(held, torch.Tensor) else self._device
            return value if is_elsewhere else value.to(device)
        if isinstance(value, dict):
            made = held if isinstance(held, dict) else {}
            return type(value)((key, self._placed(item, made.get(key), elsewhere)) for key, item in value.items())
        if isinstance(value, deque):
            return deque((self._placed(item, None, elsewhere) for item in value), value.maxlen)
        if isinstance(value, list | tuple | set | frozenset):
            return type(value)(self._placed(item, None, elsewhere) for item in value)
        return value

    def _load_optimizer(self, optimizer: torch.optim.Optimizer, state: Any) -> None:
        """Load its moments; what it was made with stays as the config says now, unless a scheduler changes it."""
        made = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        optimizer.load_state_dict(state)
        schedulers = [value for _, value in self._items() if hasattr(value, "optimizer")]
        if not any(scheduler.optimizer is optimizer for scheduler in schedulers):
            for group, values in zip(optimizer.param_groups, made, strict=True):
                group.update(values)


def _is_learned(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _has_state(value: Any) -> bool:
    return callable(getattr(stateful(value), "state_dict", None))


def _items_of(container: Any) -> Collection[Any]:
    return container.values() if isinstance(container, dict) else container


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in plain data, in the order of its containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, _CONTAINERS):
        for item in _items_of(value):
            yield from _tensors_of(item)


def _are_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (one.device, one.dtype) == (other.device, other.dtype) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_are_same(item, other[key]) for key, item in one.items())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(_are_same, one, other))
    return np.array_equal(one, other)
