"""Private APIs of dependencies: find them in the source, and read the table of docs/private_apis.md."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("trieye", "hydra_plugins")
TABLE = ROOT / "docs" / "private_apis.md"

OWN = ("its own", "its caller", "named by the drop-in API", "as root_data_dir is resolved")
"""Reasons after `noqa: SLF001` that mark private names of trieye itself."""

DOCUMENTED = {
    "_asdict", "_fields", "_make", "_replace",  # named tuples
    "_getframe", "_thread",
    "__get_pydantic_core_schema__", "__pydantic_init_subclass__",
}  # fmt: skip
"""Names with an underscore that Python and pydantic document."""

_ROW = re.compile(r"^\| `([\w/.]+)` \| `([\w.]+)` \| (.+) \| `(\S+::\w+)` \|$")
_OF_A_LIBRARY = re.compile(r"__(?:ray|pydantic|torch|numpy|hydra)_\w+__")
_IN_TEXT = re.compile(r"[a-z]\w*(?:\.\w+)*\._[a-z][\w.]*|RAY_(?:[a-z]\w+|\w+_ENV_VAR)")


class Row(NamedTuple):
    """A line of the table: a module, a private name in it, the effect of its removal, and the test that detects it."""

    module: str
    api: str
    effect: str
    test: str


def table() -> list[Row]:
    """Return the lines of the table.

    Raises:
        ValueError: A line of the table is malformed.
    """
    lines = [line for line in TABLE.read_text("utf-8").splitlines() if line.startswith("| `")]
    rows = [Row(*match.groups()) for line in lines if (match := _ROW.match(line))]
    if len(rows) != len(lines):
        raise ValueError(f"{TABLE}: {next(line for line in lines if not _ROW.match(line))}")
    return rows


def modules() -> dict[str, Path]:
    """Return the file of each module by its name in the table: its path without the package `trieye`."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = {path.relative_to(ROOT).as_posix().removeprefix("trieye/"): path for path in paths}
    return {name: path for name, path in names.items() if not name.startswith(("template/", "conf/"))}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree, the module first."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))


def used() -> set[tuple[str, str]]:
    """Return (module, name) of the private names of other packages that the source uses; imported ones in full.

    Covers imports, attributes that trieye does not define, attributes of other objects that the linter flags, names
    in `getattr` and similar functions, and names in strings, such as the name of a logger.
    """
    files = modules()
    defined = {name for path in files.values() for node in nodes_of(path) for name in _defined_by(node)}
    return {
        (module, name)
        for module, path in files.items()
        for name in [
            *(name for node in nodes_of(path) for name in _used_by(node, defined)),
            *_flagged_by_linter(path.read_text("utf-8")),
        ]
        if name not in DOCUMENTED
    }


def _defined_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.arg(arg=name):
            yield name


def _used_by(node: ast.AST, defined: set[str]) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module), level=0) if not module.startswith((*PACKAGES, "__future__")):
            yield from (name for alias in node.names if "._" in f".{(name := f'{module}.{alias.name}')}")
        case ast.Import():
            yield from (alias.name for alias in node.names if "._" in f".{alias.name}")
        case ast.Attribute(attr=name) if _is_private(name) and name not in defined:
            yield name
        case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
            if _is_private(name) and name not in defined:
                yield name
        case ast.Constant(value=str(text)) if _OF_A_LIBRARY.fullmatch(text):
            yield text
        case ast.Constant(value=str(text)) if _IN_TEXT.fullmatch(text):
            yield next((part for part in text.split(".") if part.startswith("_")), text)


def _is_private(name: str) -> bool:
    return name.startswith("_") and (not name.startswith("__") or _OF_A_LIBRARY.fullmatch(name) is not None)


def _flagged_by_linter(source: str) -> Iterator[str]:
    for line in source.splitlines():
        code, is_private, reason = line.partition("noqa: SLF001")
        if is_private and not reason.removeprefix(" - ").startswith(OWN):
            yield from re.findall(r"(?<!self)[.\"](_[a-z]\w*)", code.split("#")[0])
