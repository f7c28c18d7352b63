"""What the objects of an environment are: data, constants, things to look at, or something that nobody knows."""

import inspect
import logging
import pathlib
import re
import sys
import types
from collections.abc import Container, Iterator
from typing import Any

import numpy as np

SHOWN = {"pygame", "pyglet", "matplotlib", "PIL", "cv2", "moviepy", "tkinter"}
"""Packages of things that show an environment and do not decide how it goes on."""

_CONSTANT = {"spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
_NO_STATE = {
    "env_fns",
    "time_queue", "episode_start_time", "episode_start_times",  # of this process's clock
    "frame_list", "recorded_frames", "render_history",  # pictures
    "_previous_data",  # what `PassiveEnvChecker` compares by identity
    "P",  # the transitions of the toy-text environments: up to 3000 tuples that never change
}  # fmt: skip
_HARMLESS_BASES = {"builtins", "typing", "typing_extensions", "abc", "collections", "types"}
_METHOD_PAIRS = (("state_dict", "load_state_dict"), ("get_state", "set_state"), ("clone_state", "restore_state"))


def class_name(cls: type) -> str:
    """Return `module:qualified name` of a class."""
    return f"{cls.__module__}:{cls.__qualname__}"


def top_package(cls: type) -> str:
    """Return the first part of the name of the module of a class."""
    return str(cls.__module__).partition(".")[0]


def find_class(name: str) -> type | None:
    """Return the class of a name that `class_name` gave if its module is loaded; nothing is imported."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = None if found is None else vars(found).get(part)
    return found if isinstance(found, type) and class_name(found) == name else None


def constant_name(value: Any) -> str | None:
    """Return what tells one constant from another: a function, a class, a module, a dtype, ...; None if it is none."""
    if isinstance(value, type | types.FunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return value.__name__ if _is_python(value) else None
    if isinstance(value, types.BuiltinFunctionType):
        return value.__qualname__ if isinstance(value.__self__, types.ModuleType | None) else None
    if isinstance(value, np.dtype | np.ufunc | pathlib.PurePath | re.Pattern | types.EllipsisType | property):
        return repr(value)
    torch = sys.modules.get("torch")
    if isinstance(value, (getattr(torch, "device", ()), getattr(torch, "dtype", ()))):
        return repr(value)
    return value.name if isinstance(value, logging.Logger) else None


def is_shown(value: Any) -> bool:
    """Tell whether a value only shows the environment: a surface, a clock, a figure, or containers of these."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_shown, value))
    if isinstance(value, dict):
        return bool(value) and all(map(is_shown, value.values()))
    return top_package(type(value)) in SHOWN


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots, and the spaces of an environment's class."""
    found = dict(getattr(value, "__dict__", {}))
    for name in slots(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    if is_environment(value):  # spaces are often made once for the class, and have a random generator
        for cls in type(value).__mro__:
            spaces = {name: item for name, item in vars(cls).items() if is_space(item)}
            found = spaces | found
    return found


def slots(cls: type) -> Iterator[str]:
    """Yield the names of the attributes that a class keeps in slots."""
    for base in cls.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in {"__dict__", "__weakref__"}:
                private = name.startswith("__") and not name.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{name}" if private else name


def is_left_alone(holder: Any, name: str) -> bool:
    """Tell whether an attribute of an environment is constant, or no part of its state."""
    return (name in _CONSTANT and is_environment(holder)) or (
        name in _NO_STATE and top_package(type(holder)) == "gymnasium"
    )


def is_environment(value: Any) -> bool:
    """Tell whether a value is an environment of Gymnasium, single or vectorized, or a wrapper of one."""
    gymnasium = sys.modules.get("gymnasium")
    kinds = [getattr(gymnasium, "Env", None), getattr(getattr(gymnasium, "vector", None), "VectorEnv", None)]
    return any(isinstance(kind, type) and isinstance(value, kind) for kind in kinds)


def is_space(value: Any) -> bool:
    """Tell whether a value is a space of Gymnasium."""
    space = getattr(sys.modules.get("gymnasium"), "Space", None)
    return isinstance(space, type) and isinstance(value, space)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a dense tensor of torch, and no parameter."""
    torch = sys.modules.get("torch")
    return torch is not None and type(value) is getattr(torch, "Tensor", None) and value.layout is torch.strided


def is_all_attributes(cls: type) -> bool:
    """Tell whether all that an object of a class holds are its attributes, with nothing in C beside them."""
    header = object.__basicsize__ + 8 * (cls.__dictoffset__ > 0) + 8 * (cls.__weakrefoffset__ > 0)
    # threads, sockets and processes are attributes, too, some of them numbers that mean something to the kernel
    known = (sys.stdlib_module_names - _HARMLESS_BASES).isdisjoint(map(top_package, cls.__mro__))
    return known and cls is not object and cls.__basicsize__ <= header + 8 * len(list(slots(cls)))


def can_be_made(cls: type, packages: Container[str]) -> bool:
    """Tell whether an object may be made of its attributes alone: a class of the environment's own packages."""
    return top_package(cls) in packages and find_class(class_name(cls)) is cls and not hasattr(cls, "__del__")


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment and those inside it: what a wrapper wraps, what a vector holds."""
    yield env
    held = attributes(env)
    for inner in (held.get("env"), *(held.get("envs") or ())):
        if is_environment(inner):
            yield from layers(inner)


def engines(env: Any) -> Iterator[str]:
    """Yield `module.name` of each compiled module that the modules of an environment's classes use.

    Such an engine may hold the environment, which then knows it by a number only, as with PyBullet.
    """
    for module in dict.fromkeys(cls.__module__ for cls in type(env).__mro__ if top_package(cls) != "gymnasium"):
        for name, value in list(vars(sys.modules.get(module, types)).items()):
            if isinstance(value, types.ModuleType) and not _is_python(value):
                yield f"{module}.{name}"


def own_methods(value: Any, *, environment: bool) -> tuple[str, str] | None:
    """Return the names of the methods by which an object gives and takes its state, if it has such a pair.

    They are looked for in the class: wrappers forward what they do not know.
    """
    for give, take in _METHOD_PAIRS if environment else _METHOD_PAIRS[:1]:
        methods = [getattr(type(value), give, None), getattr(type(value), take, None)]
        if all(map(callable, methods)) and _accepts(methods[0], value) and _accepts(methods[1], value, None):
            return give, take
    return None


def _is_python(module: types.ModuleType) -> bool:
    source = getattr(module, "__file__", None) or ""
    known = {*sys.stdlib_module_names, *SHOWN, "numpy", "gymnasium", "torch"}
    return source.endswith(".py") or hasattr(module, "__path__") or module.__name__.partition(".")[0] in known


def _accepts(method: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except (TypeError, ValueError):
        return False
    return True
