"""Probe: what a node of a cluster says of itself; it goes there by value, since nothing of trieye may be there."""

import importlib
import os
import platform
import shutil
import sys
import time
from importlib import metadata
from typing import Any


class Probe:
    """Answers on a node; knows the standard library only."""

    def now(self) -> float:
        """Return its Unix time in seconds."""
        return time.time()

    def describe(self, packages: list[str], root: str, token: str) -> dict[str, Any]:
        """Return what is there.

        Args:
            packages: Distributions whose versions are asked for.
            root: Directory of all runs, as it is called where the check was started.
            token: Name of a file that is there now.
        """
        disks, existing = {}, _existing(root)
        for place in {existing, "/tmp"}:  # noqa: S108 - Ray's own files are there
            usage = shutil.disk_usage(place)
            disks[place] = [usage.free, usage.total]
        return {
            "python": platform.python_version(),
            "executable": sys.executable,
            "versions": {name: _version(name) for name in packages},
            "error": _error("trieye"),
            "disks": disks,
            "can_write": os.access(existing, os.W_OK),
            "sees_root": os.path.exists(os.path.join(root, token)),  # noqa: PTH110, PTH118
        }


def _existing(place: str) -> str:
    """Return a directory, or the nearest one above it that is there."""
    while not os.path.isdir(place):  # noqa: PTH112 - the standard library, and little of it
        place = os.path.dirname(place)  # noqa: PTH120
    return place


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _error(name: str) -> str | None:
    """Return why a module cannot be imported, in one line."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
