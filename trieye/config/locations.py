"""Parsing of locations: directories, MLflow tracking URIs, URLs of mirrors, references to checkpoints."""

import os
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from trieye.config.base import did_you_mean
from trieye.config.packages import require
from trieye.exceptions import ConfigurationError

_VARIABLE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)  # the variables that os.path.expandvars replaces
_STORE = re.compile(r"([a-z][a-z0-9-]*)(?:\+[a-z0-9_]+)?:.*", re.DOTALL)
_STORES = ("sqlite", "http", "https", "file", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc")
_WITHOUT_ADDRESS = ("databricks", "databricks-uc")
_MIRROR_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
"""Additional package that a scheme of a mirror needs."""
_MIRRORS = ("file", *_MIRROR_PACKAGES, "memory")
_MIRROR = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)")
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
    match = _STORE.fullmatch(uri)
    if uri not in _WITHOUT_ADDRESS:
        _check_scheme(
            match and match[1],
            _STORES,
            "mlflow.tracking_store",
            of="an MLflow tracking URI",
            example="sqlite:///mlflow.db",
        )
    return uri


def check_mirror_url(url: str) -> str:
    """Return the URL of a mirror, which has copies of a run, without trailing slash.

    Raises:
        ValueError: The scheme is missing or unknown, the URL contains credentials, or its path is not valid.
    """
    match = _MIRROR.fullmatch(url)
    _check_scheme(match and match[1], _MIRRORS, "fsspec.specs", of="a mirror URL", example="s3://bucket/prefix")
    scheme, _, path = url.partition("://")
    if "@" in path.split("/", 1)[0] and scheme not in {"abfs", "az"}:
        raise ValueError(
            "a mirror URL must not contain credentials, because every tracker shows it; pass them by environment "
            "variables such as AWS_ACCESS_KEY_ID and GOOGLE_APPLICATION_CREDENTIALS"
        )
    if scheme == "file" and not path.startswith("/"):
        raise ValueError("the directory must be absolute, as in file:///backup/runs")
    if not path.strip("/") or ".." in path.split("/") or "::" in path:
        raise ValueError("invalid path; expected a URL such as s3://bucket/prefix or file:///backup/runs")
    if scheme in _MIRROR_PACKAGES and "" in path.rstrip("/").split("/"):
        raise ValueError("an empty name in the path; object stores list such objects under other names")
    return url.rstrip("/")


def _check_scheme(scheme: str | None, our_schemes: Sequence[str], plugins: str, *, of: str, example: str) -> None:
    """Raise `ValueError` unless a scheme is one of ours, or the name of an installed plugin."""
    if scheme in our_schemes:
        return
    from importlib.metadata import entry_points  # imports 15 modules, and reads the metadata of all packages

    schemes = [*our_schemes, *(plugin.name for plugin in entry_points(group=plugins))]
    schemes_text = f"(schemes: {', '.join(dict.fromkeys(schemes))})"
    if scheme is None:
        raise ValueError(f"{of} needs a scheme, as in {example} {schemes_text}")
    if scheme not in schemes:
        raise ValueError(f"unknown scheme {scheme!r} of {of}{did_you_mean(scheme, schemes)} {schemes_text}")


def require_packages(url: str) -> None:
    """Check that the packages that a mirror URL needs are installed, without importing them.

    Raises:
        MissingPackageError: A package is missing; the message has the pip command.
    """
    require("fsspec", f"persistence.mirror={url}")
    if package := _MIRROR_PACKAGES.get(url.split("://", 1)[0]):
        require(package, f"persistence.mirror={url}")


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
