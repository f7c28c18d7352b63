"""Which names are safe as the name of a directory or a file: of apps and runs, and those that are read from files.

And which texts are: a file name that is no UTF-8 reaches Python as a string with lone surrogates, which no store takes.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field

MAX_NAME_BYTES = 200
"""A file system allows 255 bytes for a name; the rest is for suffixes such as `_trieye.log`."""

ClassPath = Annotated[str, Field(pattern=r"^[\w.]+:\w+$", examples=["my_agent.dqn:DQN"])]
"""A class of a project, as `my_agent.dqn:DQN`: chosen by a key of the config, it needs no entry point."""

_SHOWN = 60
_ALLOWED = re.compile(r"[\w][\w .,=+@()\[\]-]*", re.UNICODE)


def check_name(kind: str, name: str) -> str:
    """Return `name` if it is safe as the name of one directory.

    Letters and digits of any script are allowed, and `_ . , = + @ ( ) [ ] -` and spaces inside.

    Args:
        kind: What the name is for, as the user types it: `run_name`, `app_name`.
        name: The name.

    Raises:
        ValueError: The name is empty, too long, hidden, or holds a separator or a control character.
    """
    found = repr(name if len(name) <= _SHOWN else name[: _SHOWN - 3] + "...")
    if not name:
        raise ValueError(f"{kind} is empty; give it a name such as 'first_try'")
    if (size := len(name.encode("utf-8", "surrogatepass"))) > MAX_NAME_BYTES:
        raise ValueError(f"{kind} {found} has {size} bytes; at most {MAX_NAME_BYTES} are allowed")
    if not _ALLOWED.fullmatch(name) or name.endswith((" ", ".")) or ".." in name:
        raise ValueError(
            f"{kind} {found} is not safe as a directory name; allowed are letters, digits and _.,=+@()[]- with single "
            "dots and spaces inside, beginning with a letter, a digit or '_'"
        )
    return name


def check_inside(name: str, *, max_parts: int | None = None) -> str:
    """Return a relative path that was read from a file if it stays in the directory that it is joined to.

    Args:
        name: The path.
        max_parts: Names that it may have; 1: the name of a file in the directory itself.

    Raises:
        ValueError: It is empty, absolute, too long, or leaves the directory.
    """
    path = PurePosixPath(name)
    is_long = max_parts is not None and len(path.parts) > max_parts
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name or is_long:
        raise ValueError(f"{name[:_SHOWN]!r} is no name of a file inside its directory")
    return name


def is_text(text: str) -> bool:
    """Tell whether a string is valid Unicode: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""Return a text with `\udc80` and the like for lone surrogates; a valid one as it is."""
    return text.encode("utf-8", "backslashreplace").decode()
