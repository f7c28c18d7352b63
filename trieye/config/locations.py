"""Parsing of locations: directories with environment variables, MLflow tracking URIs, references to checkpoints."""

import os
import re
from typing import Literal, NamedTuple

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError

_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)  # the variables that os.path.expandvars replaces
_SCHEME = re.compile(r"([a-z][a-z0-9-]*)(?:\+[a-z0-9_]+)?:.*", re.DOTALL)
_SCHEMES = ("sqlite", "http", "https", "file", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc")
_WITHOUT_ADDRESS = ("databricks", "databricks-uc")
_REFERENCE = re.compile(r"(?:([^:/\\]+):)?(best|latest|step:(\d{1,18})|(?<=:)crash-(\d{1,18}))")
REFERENCE_FORMS = "best, latest, step:1200, or another run of the app as in first_try:best"
"""Forms of a checkpoint reference, for messages."""


def expanded(key: str, path: str) -> str:
    """Return a path with its environment variables replaced.

    Raises:
        ConfigurationError: A variable is not set.
    """
    names = (plain or braced for plain, braced in _VARIABLE.findall(path))
    unset = [f"${name}" for name in dict.fromkeys(names) if name not in os.environ]
    if unset:
        raise ConfigurationError(
            f"{key}={path}: environment variable {', '.join(unset)} is not set; set it, or write out the directory"
        )
    return os.path.expandvars(path)


def check_tracking_uri(uri: str) -> str:
    """Return an MLflow tracking URI if MLflow or one of its plugins supports its scheme.

    Raises:
        ValueError: The scheme is missing or unknown.
    """
    match = _SCHEME.fullmatch(uri)
    if uri in _WITHOUT_ADDRESS or (match and match[1] in _SCHEMES):
        return uri
    from importlib.metadata import entry_points  # imports 15 modules

    schemes = [*_SCHEMES, *(plugin.name for plugin in entry_points(group="mlflow.tracking_store"))]
    if match and match[1] in schemes:
        return uri
    allowed = ", ".join(dict.fromkeys(schemes))
    if match is None:
        raise ValueError(f"an MLflow tracking URI needs a scheme, as in sqlite:///mlflow.db (schemes: {allowed})")
    raise ValueError(
        f"unknown scheme {match[1]!r} of an MLflow tracking URI{did_you_mean(match[1], schemes)} (schemes: {allowed})"
    )


class CheckpointReference(NamedTuple):
    """A checkpoint named by its role or step instead of a path.

    Attributes:
        run_name: The run of the app that owns the checkpoint; None = the run itself.
        which: `best` by its objective, `latest`, or a step.
        is_crash: Whether it is the state at an error of that step; only of another run.
    """

    run_name: str | None
    which: Literal["best", "latest"] | int
    is_crash: bool = False


def checkpoint_reference(text: str) -> CheckpointReference | None:
    """Parse `best`, `latest`, `step:1200`, `first_try:best` or `first_try:crash-1200`; None for a path.

    `./best` is the path of a file with such a name.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return None
    run_name, word, step, crash = match.groups()
    if step or crash:
        return CheckpointReference(run_name, int(step or crash), is_crash=crash is not None)
    return CheckpointReference(run_name, "best" if word == "best" else "latest")


def is_reference(key: str, text: str) -> bool:
    """Return True if the value of a key is a checkpoint reference instead of a path."""
    return key == "load_checkpoint_path" and checkpoint_reference(text) is not None
