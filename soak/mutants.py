"""Change one operator, constant or condition at a time, and check that a test fails.

Each mutant is a fork of this process that imports the changed module and runs the tests of its package, beginning with
the tests of the module, until one fails; if none does, the tests of other packages that import the module. Prints a
line for each surviving mutant, then one JSON line: the killed share. Survivors are either equivalent to the original or
show a missing test; the script fails only if the unchanged tests fail. The tests of the package take most of the time.
"""

import argparse
import ast
import contextlib
import copy
import importlib.abc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np  # noqa: F401 - imported once for all forks, like the next ones
import pyarrow.parquet  # noqa: F401
import pydantic  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 600
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one module.

    Attributes:
        file: The changed file.
        line: Its changed line.
        before: The original line.
        after: The changed statement.
        source: The changed module.
    """

    file: Path
    line: int
    before: str
    after: str
    source: str


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the changed forms of a node, which keep its fields apart from one."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITES:
            yield _with(node, ops=[OPPOSITES[type(operator)]()])
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in OPPOSITES:
            yield _with(node, op=OPPOSITES[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Break() | ast.Continue():
            yield OPPOSITES[type(node)]()
        case ast.If(test=test) | ast.While(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Return(value=ast.expr()):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    other = copy.copy(node)
    vars(other).update(fields)
    return other


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Yield the mutants of a module; annotations and docstrings do not change."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    for parent in list(ast.walk(tree)):
        for name, value in ast.iter_fields(parent):
            if name in {"annotation", "returns", "decorator_list", "type_params"}:
                continue
            for index, node in enumerate(value if isinstance(value, list) else [value]):
                if not isinstance(node, ast.AST):
                    continue
                for other in changed(node):
                    _put(parent, name, index, ast.copy_location(other, node))
                    line = getattr(node, "lineno", getattr(parent, "lineno", 1))
                    source = ast.unparse(ast.fix_missing_locations(tree))
                    _put(parent, name, index, node)
                    yield Mutant(file, line, lines[line - 1].strip(), ast.unparse(other).splitlines()[0], source)


def _put(parent: ast.AST, name: str, index: int, node: ast.AST) -> None:
    value = getattr(parent, name)
    if isinstance(value, list):
        value[index] = node
    else:
        setattr(parent, name, node)


class Finder(importlib.abc.MetaPathFinder, SourceFileLoader):  # type: ignore[misc]  # two of its bases disagree
    """Imports the mutant instead of its module."""

    def __init__(self, mutant: Mutant) -> None:
        name = ".".join(mutant.file.relative_to(ROOT).with_suffix("").parts)
        SourceFileLoader.__init__(self, name.removesuffix(".__init__"), str(mutant.file))
        self._source = mutant.source

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of the changed module; None for all others."""
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, _: str) -> CodeType:
        """Return the code of the changed source."""
        return compile(self._source, self.path, "exec", dont_inherit=True)


def start(mutant: Mutant | None, groups: list[list[Path]]) -> int:
    """Fork a process that runs groups of tests with a mutant until one fails, and return its id."""
    if pid := os.fork():
        return pid
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silent, number)
    signal.alarm(TIMEOUT_S)  # a mutant that never ends is killed
    code = 1
    with contextlib.suppress(BaseException):
        if mutant is not None:
            sys.meta_path.insert(0, Finder(mutant))
        codes = (pytest.main(["-x", "-q", "-p", "no:cacheprovider", *map(str, tests)]) for tests in groups)
        code = next((int(code) for code in codes if code), 0)
    os._exit(code)


def tests_of(file: Path) -> list[list[Path]]:
    """Return the test files of the package of a module: a group of files named after the module, and the others."""
    package = file.relative_to(ROOT / "trieye").parts[0]
    files = sorted((ROOT / "tests" / package).rglob("test_*.py"))
    named = [test for test in files if file.stem in test.stem]
    return [group for group in (named, [test for test in files if test not in named]) if group]


def tests_elsewhere(file: Path) -> list[list[Path]]:
    """Return the test files of other packages that name a module."""
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    own = ROOT / "tests" / file.relative_to(ROOT / "trieye").parts[0]
    others = [test for test in sorted((ROOT / "tests").rglob("test_*.py")) if own not in test.parents]
    tests = [test for test in others if name in test.read_text()]
    return [tests] if tests else []


def pass_unchanged(tests: list[Path]) -> bool:
    """Return whether tests pass without a mutant."""
    return os.waitstatus_to_exitcode(os.waitpid(start(None, [tests]), 0)[1]) == 0


def survivors_of(sample: list[Mutant], tests: Callable[[Path], list[list[Path]]], at_once: int) -> Iterator[Mutant]:
    """Run mutants against tests of their modules, and yield the survivors."""
    begun_at, num_survivors, running = time.monotonic(), 0, dict[int, Mutant]()
    for number, mutant in enumerate([*sample, *[None] * at_once]):
        if mutant is not None:
            running[start(mutant, tests(mutant.file))] = mutant
        while running and (len(running) >= at_once or mutant is None):
            pid, status = os.wait()
            done = running.pop(pid)
            if os.waitstatus_to_exitcode(status) == 0:
                num_survivors += 1
                yield done
        if number % 25 == 24:
            sys.stderr.write(f"{number + 1} mutants, {num_survivors} survived, {time.monotonic() - begun_at:.0f} s\n")


def main() -> int:
    """Run the mutants, and print the survivors and the score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300, help="number of sampled mutants")
    parser.add_argument("--packages", nargs="+", default=["stats", "checkpoints"], help="packages of trieye/")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--at-once", type=int, default=2, help="concurrent processes")
    options = parser.parse_args()
    files = [file for package in options.packages for file in sorted((ROOT / "trieye" / package).rglob("*.py"))]
    everything = [mutant for file in files for mutant in mutants_of(file)]
    sample = random.Random(options.seed).sample(everything, min(options.mutants, len(everything)))
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))  # of the package `tests`
    for package in options.packages:
        if not pass_unchanged(sorted((ROOT / "tests" / package).rglob("test_*.py"))):
            sys.stderr.write(f"the tests of {package} fail without a mutant\n")
            return 1
    suspects = list(survivors_of(sample, tests_of, options.at_once))
    for test in sorted({test for suspect in suspects for group in tests_elsewhere(suspect.file) for test in group}):
        if not pass_unchanged([test]):
            sys.stderr.write(f"{test} fails without a mutant\n")
            return 1
    killed = len(sample)
    for survivor in survivors_of(suspects, tests_elsewhere, options.at_once):
        killed -= 1
        where = f"{survivor.file.relative_to(ROOT)}:{survivor.line}"
        print(f"{where}: {survivor.before}  ->  {survivor.after}", flush=True)
    line = {"soak": "mutants", "mutants": len(sample), "of": len(everything), "killed": killed, "seed": options.seed}
    print(json.dumps({**line, "share": round(killed / max(len(sample), 1), 3)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
