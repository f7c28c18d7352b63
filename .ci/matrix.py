"""Run the fast tests with every Python, Hydra and set of dependency versions that trieye supports, and print one table.

Each row has an environment of its own in .matrix/, which is reused until its requirements change:

- pinned: the versions of constraints.txt
- lowest: the lowest versions that pyproject.toml allows
- newest: the newest versions of the package index; also runs the tests of docs/private_apis.md
- core: the wheel of `trieye-core` and pytest, with pinned versions; runs tests/test_core.py

torch is installed where the package index has a build for the CPU; elsewhere, the row omits the tests that need torch.
Failed tests are listed below their row. The exit code is 1 if a test failed or an environment could not be installed.
"""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HYDRA: dict[str, list[str]] = runpy.run_path(str(ROOT / "soak/hydra_versions.py"))["VERSIONS"]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line)
TRAINING = "tests/training"  # its fixtures import torch, and so does each of its tests
SHOWN = ("hydra-core", "torch", "numpy", "ray", "mlflow")
LISTED = "import importlib.metadata as m; print(*(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"
COLUMNS = "{:<7} {:<6} {:<7} {:>7} {:>6} {:>7} {:>7} {:>5} s  {}"


@dataclass(frozen=True)
class Row:
    """An environment: its Python, its Hydra, and the versions of all other dependencies."""

    python: str
    hydra: str
    versions: str

    @property
    def name(self) -> str:
        """Name of the environment, which `--only` selects by a part of it."""
        return f"{self.python}-hydra{self.hydra}-{self.versions}"

    @cached_property
    def interpreter(self) -> str | None:
        """A Python of this version that runs, on the path or below pyenv's own folder; None if there is none."""
        pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
        for path in (shutil.which(f"python{self.python}"), *pyenv.glob(f"versions/*/bin/python{self.python}")):
            # a shim of pyenv may have no version behind it
            if path and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
                return str(path)
        return None

    def requirements(self) -> list[str]:
        """Return all requirements except torch, which needs a build for the CPU."""
        if self.versions == "core":
            return ["pytest"]
        hydra = [] if self.versions == "lowest" else HYDRA[self.hydra]
        chosen = {"torch", *map(name_of, hydra)}
        listed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
        return hydra + [one for one in listed if name_of(one) not in chosen]

    def constraints(self) -> list[str]:
        """Return the constraints of pip."""
        if self.versions == "newest":
            return []
        free = {"torch", *(map(name_of, HYDRA[self.hydra]) if self.versions == "pinned" else ())}
        versions = lowest() if self.versions == "lowest" else PINS
        return [f"{name}=={version}" for name, version in versions.items() if name not in free]


ROWS = (
    *(Row(PYTHONS[0], hydra, "pinned") for hydra in HYDRA),
    *(Row(python, "1.3", "pinned") for python in PYTHONS[1:]),
    Row(PYTHONS[0], "1.3", "lowest"),
    Row(PYTHONS[0], "1.3", "newest"),
    *(Row(python, "1.3", "core") for python in PYTHONS),
)


def name_of(requirement: str) -> str:
    """Return the name of a package, without extras and versions."""
    return Requirement(requirement).name.lower()


def lowest() -> dict[str, str]:
    """Return the lower bound of each dependency, extras included, that has one."""
    extras = PROJECT["optional-dependencies"].values()
    wanted = map(Requirement, [*PROJECT["dependencies"], *(one for extra in extras for one in extra)])
    bounds = [(one.name, bound.version) for one in wanted for bound in one.specifier if bound.operator == ">="]
    return dict(bounds)


def install(row: Row) -> Path:
    """Create the environment of a row, unless it is current, and return its Python."""
    home = ROOT / ".matrix" / row.name
    recipe = "\n".join([*row.constraints(), *(f"# {one}" for one in row.requirements())])
    own, note = home / "bin/python", home / "constraints.txt"
    command = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    is_current = (home / ".ready").exists() and note.read_text("utf-8") == recipe
    if not is_current:
        subprocess.run([str(row.interpreter), "-m", "venv", "--clear", str(home)], check=True)
        subprocess.run([*command, "--upgrade", "pip"], check=True)  # the pip of Python 3.11 takes twice as long
        note.write_text(recipe, "utf-8")
    if row.versions == "core":
        with tempfile.TemporaryDirectory() as scratch:
            build = runpy.run_path(str(ROOT / ".ci/distributions.py"))["build"]
            (wheel,) = (path for path in build("trieye-core", Path(scratch), isolated=False) if path.suffix == ".whl")
            subprocess.run([*command, "--force-reinstall", "-c", str(note), *row.requirements(), wheel], check=True)
    elif not is_current or row.versions == "newest":
        newest = ["--upgrade", "--upgrade-strategy", "eager"] if row.versions == "newest" else []
        # other builds than `+cpu` would bring gigabytes for CUDA; some index has this one without that suffix
        for torch in (f"torch=={PINS['torch']}+cpu", *([f"torch=={PINS['torch']}"] if row.python == "3.11" else [])):
            subprocess.run([*command, "-c", str(note), torch], check=False, stderr=subprocess.DEVNULL)
        subprocess.run([*command, *newest, "-c", str(note), *row.requirements()], check=True)
        subprocess.run([*command, "--no-deps", "-e", str(ROOT)], check=True)
    (home / ".ready").touch()
    return own


def omitted(paths: list[str]) -> list[str]:
    """Return the test files that need torch: all of the trainings, and those that import it anywhere."""
    files = (file for path in paths for file in sorted((ROOT / path).rglob("test_*.py")))
    imports = re.compile(r"^\s*(import torch|from torch)\b", re.MULTILINE)
    needing = (one for one in files if ROOT / TRAINING in one.parents or imports.search(one.read_text("utf-8")))
    return [str(file.relative_to(ROOT)) for file in needing]


def tests(row: Row, own: Path, paths: list[str], ignored: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests of a row."""
    command = [str(own), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if row.versions == "core":  # in a folder from which the checkout cannot be imported
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(ROOT / "tests/test_core.py", scratch)
            return subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    options = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not slow and not long or canary"]
    if row.versions != "pinned":  # other versions warn about other things
        options += ["-o", "filterwarnings=default"]
    if row.versions == "newest":
        table = (ROOT / "docs/private_apis.md").read_text("utf-8")
        paths = [*paths, *sorted({f"tests/{path}" for path in re.findall(r"`([\w/]+\.py::\w+)`", table)})]
    paths = [path for path in paths if not ignored or path.rstrip("/") != TRAINING]
    options += [f"--ignore={file}" for file in ignored]
    return subprocess.run([*command, *options, *paths], cwd=ROOT, capture_output=True, text=True, check=False)


def judge(row: Row, paths: list[str]) -> bool:
    """Run the tests of a row, print its line, and return whether all passed."""
    own = install(row)
    listed = subprocess.run([str(own), "-c", LISTED], capture_output=True, text=True, check=True).stdout.split()
    versions = dict(one.split("==") for one in listed)
    ignored = [] if "torch" in versions or row.versions == "core" else omitted(paths)
    began = time.monotonic()
    done = tests(row, own, paths, ignored)
    lines = done.stdout.splitlines()
    counts = {kind: count for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", " ".join(lines[-1:]))}
    failed = int(counts.get("failed", 0)) + int(counts.get("error", 0))
    shown = ", ".join(f"{package} {versions[package]}" for package in SHOWN if package in versions)
    cells = (counts.get("passed", 0), failed, counts.get("skipped", 0), len(ignored), f"{time.monotonic() - began:.0f}")
    print(COLUMNS.format(row.python, row.hydra, row.versions, *cells, shown), flush=True)
    if done.returncode:
        failed_lines = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        print(*(failed_lines or [*lines, *done.stderr.splitlines()][-30:]), sep="\n", flush=True)
    return done.returncode == 0


def selected(parts: list[str]) -> Iterator[Row]:
    """Yield the rows whose name contains one of `parts`; all rows if there are none."""
    for row in ROWS:
        if not parts or any(part in row.name for part in parts):
            yield row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", default=["tests/config"], help="tests to run")
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--only", nargs="*", default=[], metavar="PART", help=f"rows whose name contains it: {names}")
    options, are_good = parser.parse_args(), True
    print(COLUMNS.format("python", "hydra", "deps", "passed", "failed", "skipped", "omitted", "time", "versions"))
    for row in selected(options.only):
        if row.interpreter is None:
            print(f"{row.python:<7} {row.hydra:<6} {row.versions:<7} not run: no Python {row.python} here", flush=True)
            continue
        try:
            are_good = judge(row, options.paths) and are_good
        except subprocess.CalledProcessError as error:
            print(f"{row.python:<7} {row.hydra:<6} {row.versions:<7} cannot be installed: {error}", flush=True)
            are_good = False
    sys.exit(not are_good)


if __name__ == "__main__":
    main()
