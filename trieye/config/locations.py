"""Locations that a user types: directories with environment variables in them, addresses of MLflow stores."""

import os
import re
from typing import Literal, NamedTuple

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)  # what os.path.expandvars takes for a variable
_SCHEME = re.compile(r"([a-z][a-z0-9-]*)(?:\+[a-z0-9_]+)?:.*", re.DOTALL)
_SCHEMES = ("sqlite", "http", "https", "file", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc")
_WITHOUT_ADDRESS = ("databricks", "databricks-uc")
_REFERENCE = re.compile(r"(?:([^:/\\]+):)?(best|latest|step:(\d{1,18}))")
REFERENCE_FORMS = "best, latest, step:1200, or another run of the app as in first_try:best"
"""What a checkpoint is called by, for messages."""


def expanded(key: str, path: str) -> str:
    """Return a path with the values of its environment variables.

    Raises:
        ConfigurationError: A variable is not set; the message names it and the key.
    """
    names = (plain or braced for plain, braced in _VARIABLE.findall(path))
    unknown = [f"${name}" for name in dict.fromkeys(names) if name not in os.environ]
    if unknown:
        raise ConfigurationError(
            f"{key}={path}: there is no environment variable {', '.join(unknown)}; set it, or type the directory"
        )
    return os.path.expandvars(path)


def check_tracking_uri(uri: str) -> str:
    """Return the address of an MLflow store if its scheme is one that MLflow, or a plugin of it, knows.

    Raises:
        ValueError: It has no scheme, or an unknown one.
    """
    match = _SCHEME.fullmatch(uri)
    if uri in _WITHOUT_ADDRESS or (match and match[1] in _SCHEMES):
        return uri
    from importlib.metadata import entry_points  # here, for it loads 15 modules

    known = [*_SCHEMES, *(plugin.name for plugin in entry_points(group="mlflow.tracking_store"))]
    if match and match[1] in known:
        return uri
    allowed = ", ".join(dict.fromkeys(known))
    if match is None:
        raise ValueError(f"an MLflow store begins with its scheme, as in sqlite:///mlflow.db (schemes: {allowed})")
    raise ValueError(
        f"{match[1]!r} is no scheme of an MLflow store{did_you_mean(match[1], known)} (schemes: {allowed})"
    )


class CheckpointReference(NamedTuple):
    """A checkpoint called by what it is, not by where it lies.

    Attributes:
        run_name: The run of the app that holds it; None: the run itself.
        which: The best one by its objective, the newest one, or that of a step.
    """

    run_name: str | None
    which: Literal["best", "latest"] | int


def checkpoint_reference(text: str) -> CheckpointReference | None:
    """Return what `best`, `latest`, `step:1200` or `first_try:best` stands for; None for a path.

    A file of such a name is meant by `./best`.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    run_name, word, step = match.groups()
    if step is not None:
        return CheckpointReference(run_name, int(step))
    return CheckpointReference(run_name, "best" if word == "best" else "latest")


def is_reference(key: str, text: str) -> bool:
    """Tell whether a key holds the name of a checkpoint, and no path."""
    return key == "load_checkpoint_path" and checkpoint_reference(text) is not None
