"""Probe: describes one node of a Ray cluster; pickled by value, because trieye may not be installed on the node."""

import importlib
import os
import platform
import shutil
import sys
import time
from importlib import metadata
from typing import Any


class Probe:
    """Runs on a node as a Ray actor; uses the standard library only."""

    def now(self) -> float:
        """Return the node's Unix time in seconds."""
        return time.time()

    def describe(self, packages: list[str], root: str, token: str) -> dict[str, Any]:
        """Return versions, disks and access to the root directory of runs.

        Args:
            packages: Distributions whose versions are returned.
            root: Path of the root directory of runs on the machine that started the check.
            token: Name of a file that exists in that directory during the check.
        """
        disks, existing_dir = {}, _existing(root)
        for directory in {existing_dir, "/tmp"}:  # noqa: S108 - Ray's own files are in /tmp
            usage = shutil.disk_usage(directory)
            disks[directory] = (usage.free, usage.total)
        return {
            "python": platform.python_version(),
            "executable": sys.executable,
            "versions": {name: _version(name) for name in packages},
            "import_error": _error("trieye"),
            "disks": disks,
            "can_write": os.access(existing_dir, os.W_OK),
            "sees_root": os.path.exists(os.path.join(root, token)),  # noqa: PTH110, PTH118
        }


def _existing(directory: str) -> str:
    """Return a directory, or its nearest existing parent."""
    while not os.path.isdir(directory):  # noqa: PTH112 - few imports
        directory = os.path.dirname(directory)  # noqa: PTH120
    return directory


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _error(name: str) -> str | None:
    """Return in one line why a module cannot be imported; None if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - any error is reported
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
