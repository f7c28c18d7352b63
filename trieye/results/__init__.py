"""Results: load, select and aggregate stored runs as arrays; the import loads no heavy library."""

from importlib import import_module
from typing import Any

_HOME = {
    "Groups": "trieye.results.groups",
    "Results": "trieye.results.results",
    "Scoring": "trieye.results.groups",
    "load": "trieye.results.loading",
}

__all__ = ["Groups", "Results", "Scoring", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
