"""The main module of a program in the local processes of its jobs: imported there if it is guarded, else sent by value.

A guarded module contains `if __name__ == "__main__":`. Its classes and functions can then be pickled, inspected and
named by `_target_` in jobs as well.
"""

import ast
import io
import itertools
import pickle
import sys
from contextlib import suppress
from multiprocessing.spawn import prepare
from operator import attrgetter
from pathlib import Path
from symtable import symtable
from types import FunctionType
from typing import Any

import cloudpickle

_NAME = "__main__"


def dumped(value: object) -> bytes:
    """Pickle an object for `loaded` in a process that has not imported the main module."""
    if (main := _importable()) is not None:
        buffer = io.BytesIO()
        pickler = _ReferringPickler(buffer, guarded_names=main[1])
        pickler.dump(value)
        if pickler.has_references:
            return pickle.dumps(main[0]) + buffer.getvalue()
    return pickle.dumps(None) + bytes(cloudpickle.dumps(value))


def loaded(content: bytes) -> Any:
    """Return the object of `dumped`; imports the main module first if the object refers to it."""
    with io.BytesIO(content) as file:
        if arguments := pickle.load(file):  # noqa: S301 - written by the driver
            prepare(arguments)  # as in a process that `multiprocessing` spawns: the module runs as `__mp_main__`
        return pickle.load(file)  # noqa: S301 - written by the driver


class _ReferringPickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles importable classes and functions of the main module by reference."""

    def __init__(self, file: io.BytesIO, guarded_names: set[str]) -> None:
        super().__init__(file)
        self.has_references, self._guarded_names = False, guarded_names

    def reducer_override(self, obj: Any) -> Any:
        """Return a reference to an object of the main module, or leave it to cloudpickle."""
        is_main = isinstance(obj, type | FunctionType) and obj.__module__ == _NAME
        if is_main and (name := obj.__qualname__).partition(".")[0] not in self._guarded_names:
            with suppress(AttributeError):  # the object has no name in the module
                for depth in itertools.count():
                    if _main_object(name, depth) is obj:
                        self.has_references = True
                        return _main_object, (name, depth)
        return super().reducer_override(obj)


def _main_object(name: str, depth: int) -> Any:
    """Return a named object, or the function below `depth` of its decorators, such as `hydra.main`."""
    layer = attrgetter(name)(sys.modules[_NAME])
    for _ in range(depth):
        layer = layer.__wrapped__
    return layer


def _importable() -> tuple[dict[str, str], set[str]] | None:
    """Return how to import the main module, and the names that its guarded blocks define; None if it is not guarded."""
    main = sys.modules[_NAME]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if file is None or (spec is not None and spec.name.endswith(_NAME)):  # `prepare` does not run a `__main__.py`
        return None
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None
    blocks = [node for node in body if isinstance(node, ast.If) and _is_guard(node.test)]
    tables = [symtable(ast.unparse(block), file, "exec") for block in blocks]
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    guarded_names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
    read_ids = {node.id for item in body if item not in blocks for node in ast.walk(item) if isinstance(node, ast.Name)}
    if not blocks or guarded_names & read_ids:  # functions of the module need the names
        return None
    return {"init_main_from_name": spec.name} if spec is not None else {"init_main_from_path": file}, guarded_names


def _is_guard(test: ast.expr) -> bool:
    return {"__name__", _NAME} <= {getattr(node, "id", getattr(node, "value", None)) for node in ast.walk(test)}
