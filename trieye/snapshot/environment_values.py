"""Classifies the values in an environment: plain data, constants, rendering objects, or opaque objects."""

import contextlib
import inspect
import logging
import operator
import pathlib
import re
import sys
import types
from collections import OrderedDict, deque
from typing import Any

import numpy as np

from trieye.snapshot.arrays import describe
from trieye.snapshot.generators import generator_state

_RENDERING_PACKAGES = {"pygame", "pyglet", "matplotlib", "PIL", "cv2", "moviepy", "tkinter"}
_METHOD_PAIRS = (("state_dict", "load_state_dict"), ("get_state", "set_state"), ("clone_state", "restore_state"))
_PICKLING = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
_OF_PYTHON = sys.stdlib_module_names - {"builtins", "typing", "abc", "collections"}
SCALARS = {type(None), bool, int, float, complex, str, bytes}
"""Immutable types without contents."""
HOLDERS = {list, tuple, deque, dict, OrderedDict}
"""Types of containers that may hold objects."""
CALLABLES = (types.FunctionType, types.MethodType)
"""Types of callables that may hold objects."""


def is_environment(value: Any) -> bool:
    """Return whether a value is a Gymnasium environment, single or vectorized, or a wrapper."""
    gymnasium = sys.modules.get("gymnasium")
    vector = getattr(gymnasium, "vector", None)
    return isinstance(value, (getattr(gymnasium, "Env", ()), getattr(vector, "VectorEnv", ())))


def name_of(value: Any) -> str:
    """Return the name of a function, or of the class of a value; for a constant, followed by its name or repr."""
    if isinstance(value, (*CALLABLES, type)):
        return f"{type(value).__name__} {getattr(value, '__module__', '')}.{value.__qualname__}"
    constant = is_constant(value) and (getattr(value, "__name__", None) or getattr(value, "name", None) or repr(value))
    return f"{class_name(type(value))} {constant}" if constant else class_name(type(value))


def is_constant(value: Any) -> bool:
    """Return whether a value is constant: a class, a module, a dtype, a C function, ..."""
    if isinstance(value, types.ModuleType):
        return _is_python(value)
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType | None)
    torch = sys.modules.get("torch")
    kinds = (type, np.dtype, np.ufunc, pathlib.PurePath, re.Pattern, types.EllipsisType, property, logging.Logger)
    return isinstance(value, (*kinds, getattr(torch, "device", ()), getattr(torch, "dtype", ())))


def is_data(value: Any) -> bool:
    """Return whether the encoder writes a value and all its contents without pickle."""
    if type(value) in SCALARS:
        return True
    if type(value) in HOLDERS or type(value) in {set, frozenset}:
        return all(map(is_data, value)) and (not isinstance(value, dict) or all(map(is_data, value.values())))
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        return not isinstance(value, np.void) and describe(value.dtype) is not None
    return is_tensor(value)


def is_repeated(items: "set[Any] | frozenset[Any]") -> bool:
    """Return whether a set has the same order if another process creates it."""
    rebuilt = type(items)(list(items))
    is_same = list(rebuilt) == list(items) and sys.getsizeof(rebuilt) == sys.getsizeof(items)
    return is_same and _is_seedless(tuple(items))


def _is_seedless(value: Any) -> bool:
    """Return whether a value has the same hash in every process."""
    if type(value) is tuple:
        return all(map(_is_seedless, value))
    return isinstance(value, int | float | complex | np.number)


def is_space(value: Any) -> bool:
    """Return whether a value is a Gymnasium space."""
    return isinstance(value, getattr(sys.modules.get("gymnasium"), "Space", ()))


def is_tensor(value: Any) -> bool:
    """Return whether a value is a dense torch tensor, but not a parameter."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None) and value.layout is torch.strided


def holds_generators(value: Any) -> bool:
    """Return whether a value is or contains a random generator, a space or an environment."""
    if type(value) in HOLDERS:
        return any(map(holds_generators, value.values() if isinstance(value, dict) else value))
    return is_environment(value) or is_space(value) or generator_state(value) is not None


def is_shown(value: Any) -> bool:
    """Return whether a value only serves rendering: a surface, a clock, a figure, or a container of these."""
    if type(value) in HOLDERS:
        return bool(value) and all(map(is_shown, value.values() if isinstance(value, dict) else value))
    return top_package(type(value)) in _RENDERING_PACKAGES


def more_than_attributes(value: Any) -> str | None:
    """Return why an object may have state outside of its attributes; None if it has none."""
    cls = type(value)
    if any(getattr(cls, name, None) is not getattr(object, name, None) for name in _PICKLING):
        return " with a custom __reduce__ or __getstate__"
    try:
        reduced: Any = object.__reduce_ex__(value, 2)
    except Exception:  # noqa: BLE001 - a TypeError means memory in C; also a border: runs `__getattr__` of user classes
        return ""
    # threads, sockets and processes have attributes such as handles whose meaning only the kernel knows
    is_supported = _OF_PYTHON.isdisjoint(map(top_package, cls.__mro__))
    return None if is_supported and reduced[3:] == (None, None) else ""


def own_methods(value: Any) -> tuple[str, str] | None:
    """Return the names of an object's methods that get and set its state, or None.

    The search is limited to the class, because wrappers forward unknown attributes.
    """
    for names in _METHOD_PAIRS if is_environment(value) else _METHOD_PAIRS[:1]:
        getter, setter = (operator.attrgetter(name) for name in names)
        with contextlib.suppress(AttributeError, TypeError, ValueError):  # missing, or with other arguments
            inspect.signature(getter(type(value))).bind(value)
            inspect.signature(setter(type(value))).bind(value, None)
            return names
    return None


def engines(env: Any) -> set[str]:
    """Return `module.name` of each compiled module that the modules of an environment's classes use.

    Such an engine may contain state that the environment references only by number, as with PyBullet.
    """
    names = {cls.__module__ for cls in type(env).__mro__ if top_package(cls) != "gymnasium"}
    items = [(name, word, value) for name in names for word, value in list(vars(sys.modules.get(name, re)).items())]
    modules = [item for item in items if isinstance(item[2], types.ModuleType)]
    return {f"{name}.{word}" for name, word, module in modules if not _is_python(module)}


def _is_python(module: types.ModuleType) -> bool:
    source = getattr(module, "__file__", None) or ""
    stateless = {*sys.stdlib_module_names, *_RENDERING_PACKAGES, "numpy", "gymnasium", "torch"}
    return source.endswith(".py") or hasattr(module, "__path__") or module.__name__.partition(".")[0] in stateless


def class_name(cls: type) -> str:
    """Return `module.class`; some SWIG classes lack a module."""
    return f"{getattr(cls, '__module__', '')}.{cls.__qualname__}"


def top_package(cls: type) -> str:
    """Return the top-level package of a class."""
    return class_name(cls).partition(".")[0]
