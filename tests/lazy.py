"""Modules that are imported when a test uses them, because every process of the tests imports all test files."""

from importlib import import_module
from typing import Any


def lazily(name: str) -> Any:
    """Return a stand-in for a module that imports it at the first access to an attribute."""
    return _Lazy(name)


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest looks them up in each object of a test file
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
