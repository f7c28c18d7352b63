"""Validation of app and run names, file names, custom resources and Unicode strings.

Python reads a file name that is not UTF-8 as a string with lone surrogates, which no store accepts.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from trieye.exceptions import ConfigurationError

MAX_NAME_BYTES = 200
"""File systems allow 255 bytes; the rest is reserved for suffixes such as `_trieye.log`."""

ClassPath = Annotated[str, Field(pattern=r"^[\w.]+:\w+$", examples=["my_agent.dqn:DQN"])]
"""A class of a project, as `module:Class`, selected by a config key instead of an entry point."""

_PREDEFINED_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")
_MIN_QUANTITY = 1e-4
_SHOWN = 60
_ALLOWED = re.compile(r"[\w][\w .,=+@()\[\]-]*", re.UNICODE)


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is safe as a directory name.

    Letters and digits of any script, `_ . , = + @ ( ) [ ] -` and inner spaces are allowed.

    Args:
        kind: Key of the name, for messages: `run_name`, `app_name`.
        name: The name.

    Raises:
        ConfigurationError: The name is empty, too long, hidden, or contains a separator or a control character.
    """
    text = repr(name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "...")
    if not name:
        raise ConfigurationError(f"{kind} is empty; give it a name such as 'first_try'")
    if (size := len(name.encode("utf-8", "surrogatepass"))) > MAX_NAME_BYTES:
        raise ConfigurationError(f"{kind} {text} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")
    if not _ALLOWED.fullmatch(name) or name.endswith((" ", ".")) or ".." in name:
        raise ConfigurationError(
            f"{kind} {text} is not a safe directory name; use letters, digits and _.,=+@()[]-, with single dots and "
            "spaces inside, starting with a letter, a digit or '_'"
        )
    return name


def _checked(name: str, info: ValidationInfo) -> str:
    return check_name(info.field_name or "name", name)


Name = Annotated[str, AfterValidator(_checked)]
"""A name that is joined to paths; it is checked because it may come from a directory that another user created."""


def _check_custom(resources: dict[str, float]) -> dict[str, float]:
    for name, quantity in resources.items():
        if quantity < 0 or 0 < quantity < _MIN_QUANTITY:
            raise ConfigurationError(f"{name!r} is {quantity:g}; expected 0 or a number >= {_MIN_QUANTITY:g}")
        if not name or name in _PREDEFINED_RESOURCES:
            raise ConfigurationError(
                f"{name!r} is not a custom resource; CPUs and GPUs have keys of their own, such as num_cpus"
            )
    return resources


CustomResources = Annotated[dict[str, float], AfterValidator(_check_custom)]
"""Quantities of custom Ray resources, by name; Ray itself rejects other names only when a run has started."""


def check_inside(name: str, *, max_parts: int | None = None) -> str:
    """Return a relative path that was read from a file, if it stays inside the directory that it is joined to.

    Args:
        name: The path.
        max_parts: Maximum number of path components; 1 = a file name.

    Raises:
        ValueError: The path is empty, absolute, has too many components, or leaves the directory.
    """
    path = PurePosixPath(name)
    is_long = max_parts is not None and len(path.parts) > max_parts
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or is_long:
        raise ValueError(f"{name[:_SHOWN]!r} is not a file name inside the directory")
    return name


def is_text(text: str) -> bool:
    """Return True if a string is valid Unicode, without lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""Return a string with lone surrogates escaped as `\udc80`."""
    return text.encode("utf-8", "backslashreplace").decode()
