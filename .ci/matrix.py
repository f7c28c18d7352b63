"""The fast tests with every Hydra and every Python that trieye supports, each in an environment of its own in .matrix/.

An environment that stands is used again until what it is made of changes. torch is installed where the package index
has a build for the CPU; where it has none, the test files that need torch are left out, and their number is said.
Prints one line for each environment, below it the tests that failed.
"""

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
HYDRA: dict[str, list[str]] = runpy.run_path(str(ROOT / "soak/hydra_versions.py"))["VERSIONS"]
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
CELLS = [(OWN, hydra) for hydra in HYDRA] + [(python, "1.3") for python in ("3.12", "3.13") if python != OWN]
TRAINING = "tests/training"  # its fixtures import torch, and so does each of its tests
SHOWN = ("hydra-core", "omegaconf", "torch", "numpy", "ray")
LISTED = "import importlib.metadata as m; print(*(f'{d.name.lower()}=={d.version}' for d in m.distributions()))"


def interpreter(version: str) -> str | None:
    """Return a Python of this version that runs, on the path or below pyenv's own folder; None if there is none."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for found in (sys.executable if version == OWN else shutil.which(name), *pyenv.glob(f"versions/*/bin/{name}")):
        # a shim of pyenv may have no version behind it
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return str(found)
    return None


def requirements(hydra: str) -> list[str]:
    """Return what has to be installed, all but torch, with the requirements of this Hydra in place of the project's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = [*project["dependencies"], *extras["dev"]]
    return HYDRA[hydra] + [one for one in own if name_of(one) not in {"torch", *map(name_of, HYDRA[hydra])}]


def name_of(requirement: str) -> str:
    """Return the name of a package, without its version."""
    return re.split(r"[^\w-]", requirement, maxsplit=1)[0].lower()


def made(home: Path, python: str, hydra: str) -> Path:
    """Make an environment, unless it stands, and return its Python."""
    wanted = requirements(hydra)
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    torch = next(pin for pin in pins if name_of(pin) == "torch")
    free = {"torch", *map(name_of, HYDRA[hydra])}
    recipe = "\n".join([pin for pin in pins if name_of(pin) not in free] + [f"# {one}" for one in (torch, *wanted)])
    own, note = home / "bin/python", home / "constraints.txt"
    if (home / ".ready").exists() and note.read_text("utf-8") == recipe:
        return own
    subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
    note.write_text(recipe, "utf-8")
    install = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*install, "-c", str(note), *wanted], check=True)
    subprocess.run([*install, "--no-deps", "-e", str(ROOT)], check=True)
    # other builds than `+cpu` would bring gigabytes for CUDA
    subprocess.run([*install, "-c", str(note), f"{torch}+cpu"], check=False, stderr=subprocess.DEVNULL)
    (home / ".ready").touch()
    return own


def left_out(paths: list[str]) -> list[str]:
    """Return the test files that need torch: all of the trainings, and those that import it anywhere."""
    files = (file for path in paths for file in sorted((ROOT / path).rglob("test_*.py")))
    imports = re.compile(r"^\s*(import torch|from torch)\b", re.MULTILINE)
    needing = (one for one in files if ROOT / TRAINING in one.parents or imports.search(one.read_text("utf-8")))
    return [str(file.relative_to(ROOT)) for file in needing]


def judged(name: str, own: Path, paths: list[str]) -> bool:
    """Run the tests in an environment, print its line, and return whether all passed."""
    listed = subprocess.run([str(own), "-c", LISTED], capture_output=True, text=True, check=True).stdout.split()
    versions = dict(one.split("==") for one in listed)
    ignored = [] if "torch" in versions else left_out(paths)
    given = [path for path in paths if "torch" in versions or path.rstrip("/") != TRAINING]
    command = [str(own), "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    options = ["-m", "not slow and not long", "-p", "no:cacheprovider", *(f"--ignore={file}" for file in ignored)]
    began = time.monotonic()
    done = subprocess.run([*command, *options, *given], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    counts = {
        kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", " ".join(lines[-1:]))
    }
    print(
        f"python {name}:",
        ", ".join(f"{package} {versions.get(package, 'none')}" for package in SHOWN) + ":",
        f"{counts.get('passed', 0)} passed, {counts.get('failed', 0) + counts.get('error', 0)} failed,",
        f"{counts.get('skipped', 0)} skipped, {len(ignored)} files left out, {time.monotonic() - began:.0f} s",
        flush=True,
    )
    if done.returncode:
        print(*([line for line in lines if line.startswith(("FAILED", "ERROR"))] or lines[-30:]), sep="\n", flush=True)
    return done.returncode == 0


def main() -> None:
    """Go through the environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=["tests/config"], help="tests to run")
    parser.add_argument("--install-only", action="store_true", help="make the environments and run nothing")
    options, are_good = parser.parse_args(), True
    for version, hydra in CELLS:
        python = interpreter(version)
        if python is None:
            print(f"python {version}: not installed here, left out", flush=True)
            continue
        try:
            own = made(ROOT / ".matrix" / f"{version}-hydra-{hydra}", python, hydra)
        except subprocess.CalledProcessError as error:
            print(f"python {version}, hydra {hydra}: cannot be installed ({error})", flush=True)
            are_good = False
            continue
        if not options.install_only:
            are_good = judged(version, own, options.paths) and are_good
    sys.exit(not are_good)


if __name__ == "__main__":
    main()
