"""mlflow_name: any text as a name that MLflow takes, different texts as different names."""

import hashlib
import re

MAX_NAME_LENGTH = 250
"""Characters that MLflow takes in the name of a metric, parameter or tag."""

_MAX_PATH_BYTES = 200
"""Bytes of an artifact's directory; a file system takes 255 for each part of a path."""

_BAD = re.compile(
    r"[^/\w.\- :]"  # MLflow takes these characters only
    r"|^/|(?<=/)/|/$"  # no empty part between slashes,
    r"|(?:^|(?<=/))\.(?=\.?(?:/|$))|^\.(?=\.)"  # no part that is `.` or `..`, and no `..` at the beginning
)
_LOOKS_MADE = re.compile(r"_x(?:[0-9a-f]*|sha[0-9a-f]*)_")
_COULD_BE_READ_AS_MADE = re.compile(r"_(?=x(?:[0-9a-f_]|sha))")


def mlflow_name(name: str) -> str:
    """Return `name` with `_x40_` for a `@` and so on; a name that MLflow takes stays as it is.

    The mapping is injective: a valid name that looks as if it were made here (`a_x40_`) is escaped too. What is longer
    than `MAX_NAME_LENGTH` is cut and ends in a hash of the whole.
    """
    made = name
    if _BAD.search(name) or _LOOKS_MADE.search(name):
        made = _COULD_BE_READ_AS_MADE.sub("_x5f_", name)
        made = _BAD.sub(lambda match: f"_x{ord(match[0]):x}_", made)
    if not name:
        return "_x_"
    return f"{made[:200]}{_ending(name)}" if len(made) > MAX_NAME_LENGTH else made


def artifact_directory(name: str) -> str:
    """Return `mlflow_name(name)` as a relative path that a file system takes; different names stay different."""
    made = mlflow_name(name).encode()
    if len(made) <= _MAX_PATH_BYTES:
        return made.decode()
    return f"{made[: _MAX_PATH_BYTES - 24].decode(errors='ignore')}{_ending(name)}"


def _ending(name: str) -> str:
    return f"_xsha{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}_"
