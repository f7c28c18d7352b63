"""Results: load, select and aggregate stored runs as arrays; the import loads no heavy library."""

from importlib import import_module
from typing import Any

from trieye.renames import no_attribute

_HOME = {
    "RunGroups": "trieye.results.groups",
    "Results": "trieye.results.results",
    "ScoreDefinition": "trieye.results.groups",
    "load": "trieye.results.loading",
}

__all__ = ["Results", "RunGroups", "ScoreDefinition", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise no_attribute(__name__, name)
    return getattr(import_module(_HOME[name]), name)
