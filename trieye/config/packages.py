"""Optional packages: dependencies of `trieye` that `trieye-core` lacks, and packages of extras."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from trieye.exceptions import MissingPackageError

_FULL = frozenset({"cookiecutter", "fsspec", "gymnasium", "matplotlib", "mlflow", "ray", "torch"})
"""Modules that the distribution `trieye` installs, and `trieye-core` does not."""

_SMALL = frozenset({"fsspec", "matplotlib"})
"""Modules of `_FULL` that are installed alone, because they have few requirements."""

_EXTRAS = {
    "ale_py": "atari", "av": "video", "cmaes": "optuna", "cv2": "atari", "envpool": "envpool", "gcsfs": "gcs",
    "lightning": "lightning",
    "minari": "minari", "optuna": "optuna", "pytorch_lightning": "lightning", "s3fs": "s3", "stable_baselines3": "sb3",
    "transformers": "transformers", "wandb": "wandb",
}  # fmt: skip
"""Extra of both distributions that installs a module."""

_NAMES = {
    "av": "PyAV", "cv2": "OpenCV", "envpool": "EnvPool", "gymnasium": "Gymnasium", "lightning": "Lightning",
    "mlflow": "MLflow",
    "optuna": "Optuna", "pytorch_lightning": "Lightning", "ray": "Ray", "stable_baselines3": "stable-baselines3",
    "transformers": "Transformers",
}  # fmt: skip


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it; a directory of the same name does not count."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


def import_directories() -> tuple[tuple[str, int], ...]:
    """Return the directories on `sys.path` with their modification times, which change when a package is installed.

    Reading the metadata of 240 packages takes 15 ms; with this as an argument, a cached function notices changes.
    """
    directories = (directory for directory in map(Path, sys.path) if directory.is_dir())
    return tuple((str(directory), directory.stat().st_mtime_ns) for directory in directories)


def require(module: str, purpose: str, otherwise: str = "") -> None:
    """Check that a module is installed, without importing it.

    Args:
        module: Name of the module.
        purpose: Function or setting that needs it, such as `runtime.kind=ray`.
        otherwise: Alternative to the installation, such as `set runtime.kind=local`.

    Raises:
        MissingPackageError: It is not installed; the message has the pip command.
    """
    if not is_installed(module):
        raise missing(module, purpose, otherwise)


def load(module: str, purpose: str, otherwise: str = "") -> Any:
    """Import a module; arguments and errors as in `require`."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the module is installed, and one of its requirements is missing
        raise missing(error.name, purpose, otherwise) from error


def missing(module: str, purpose: str, otherwise: str = "") -> MissingPackageError:
    """Return the error for a module that is not installed; arguments as in `require`."""
    alternative = f", or {otherwise}" if otherwise else ""
    name = _NAMES.get(module, module)
    return MissingPackageError(f"{purpose} needs {name}, which is not installed: {command(module)}{alternative}")


@contextmanager
def explaining(purpose: str) -> Iterator[None]:
    """Name the pip command if an import in the block fails; imports of unknown modules, such as a program's, pass.

    Raises:
        MissingPackageError: A package that trieye can use is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if isinstance(error, MissingPackageError) or (module not in _FULL and module not in _EXTRAS):
            raise
        raise missing(module, purpose) from error


def command(module: str) -> str:
    """Return the pip command that installs a module."""
    if module in _FULL and module not in _SMALL:
        return "pip install trieye"
    if module in _EXTRAS:
        return f"pip install '{_distribution()}[{_EXTRAS[module]}]'"
    return f"pip install {module}"


def _distribution() -> str:
    """Return the installed distribution of trieye; an extra of the other one would install much more, or too little."""
    from importlib.metadata import PackageNotFoundError, distribution  # imports 15 modules

    try:
        distribution("trieye")
    except PackageNotFoundError:
        return "trieye-core"
    return "trieye"
