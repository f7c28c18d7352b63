"""Print the result of a command: for the terminal, or with `--json` as the document that docs/json.md describes."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from trieye.process.terminal import RenderableType

Parts: TypeAlias = "Iterable[RenderableType]"
"""Tables and texts that are printed below one another."""


def show(options: argparse.Namespace, schema: str, document: Any, parts: Parts) -> None:
    """Print a document with `--json`, else the parts below one another.

    Args:
        options: `json`.
        schema: Name of the schema, as in docs/json.md.
        document: See `print_json`.
        parts: Tables and texts; a generator runs only without `--json`.
    """
    if options.json:
        print_json(schema, document)
        return
    from trieye.process.terminal import Terminal

    console = Terminal()
    for part in parts:
        console.print(part)


def print_json(schema: str, document: Any) -> None:
    """Print a document as one line of JSON, with the name and version of its schema as the first key.

    Args:
        schema: Name of the schema, as in docs/json.md.
        document: A mapping or a dataclass of plain data, dataclasses, paths and NumPy arrays.
    """
    print(json.dumps({"schema": f"trieye.{schema}/1", **plain(document)}, allow_nan=False), flush=True)


def plain(value: Any) -> Any:
    """Convert a value to JSON types; NaN and infinities become null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "tolist"):  # NumPy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    return None if isinstance(value, float) and not isfinite(value) else value
