"""Build the distributions `trieye` and `trieye-core` in isolation, twice each, and compare their hashes.

Both contain the same modules; `trieye-core` requires fewer packages: `[tool.trieye-core]` in pyproject.toml.
Prints one line for each archive. The exit code is 1 if the two builds of an archive differ.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMES = ("trieye", "trieye-core")


def core_pyproject(text: str) -> str:
    """Return the pyproject.toml of `trieye-core`, made from that of `trieye`."""
    project = tomllib.loads(text)
    core, description = project["tool"]["trieye-core"], project["project"]["description"]
    text = text.replace('name = "trieye"', 'name = "trieye-core"', 1).replace(description, core["description"], 1)
    for name in core["without"]:
        text, count = re.subn(rf'^    "{name}\b[^"]*",.*\n', "", text, count=1, flags=re.MULTILINE)
        if count == 0:
            raise ValueError(f"pyproject.toml: tool.trieye-core.without: {name} is no dependency of trieye")
    return re.sub(r"^dev = \[\n(    .*\n)*\]\n", "", text, count=1, flags=re.MULTILINE)


def export(target: Path, name: str) -> None:
    """Copy the files of this checkout that git tracks or could track, with the pyproject.toml of a distribution."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for line in listed.stdout.splitlines():
        if (source := ROOT / line).exists():
            (target / line).parent.mkdir(parents=True, exist_ok=True)
            # an sdist would contain a linked file as a link to nowhere, but the content of linked folders
            shutil.copy(source, target / line, follow_symlinks=source.is_file())
    if name == "trieye-core":
        text = (ROOT / "pyproject.toml").read_text("utf-8")
        (target / "pyproject.toml").write_text(core_pyproject(text), "utf-8")


def build(name: str, target: Path, *, isolated: bool = True) -> list[Path]:
    """Build the sdist of a distribution, and from it the wheel; return both."""
    with tempfile.TemporaryDirectory() as source:
        export(Path(source), name)
        options = [] if isolated else ["--no-isolation"]
        subprocess.run(
            [sys.executable, "-m", "build", *options, "--outdir", str(target), source],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
    return sorted(path for path in target.iterdir() if re.match(rf"{name.replace('-', '_')}-\d", path.name))


def main() -> int:
    """Build, compare, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", type=Path, default=ROOT / "dist", help="directory of the archives")
    target: Path = parser.parse_args().target
    target.mkdir(parents=True, exist_ok=True)
    num_different = 0
    for name in NAMES:
        with tempfile.TemporaryDirectory() as second:
            for archive, other in zip(build(name, target), build(name, Path(second)), strict=True):
                first, again = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (archive, other))
                num_different += first != again
                state = "reproducible" if first == again else "DIFFERS"
                print(f"{archive.name}  {archive.stat().st_size / 1e6:.2f} MB  sha256 {first[:16]}  {state}")
    return 1 if num_different else 0


if __name__ == "__main__":
    sys.exit(main())
