"""Shipment: the project of a program as one archive, which the workers of a cluster get a copy of."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trieye.exceptions import ConfigurationError

MOST_BYTES = 200 << 20
"""The head of a cluster keeps it in memory, and each node unpacks it: data belongs somewhere else."""

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_LEFT_OUT = {"__pycache__", "node_modules", "site-packages", "mlruns", "multirun", "outputs"}
_WHEN = (1980, 1, 1, 0, 0, 0)
_SHOWN = 3
_GIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Shipment:
    """What is sent.

    Attributes:
        source: The directory.
        archive: The ZIP file; the same content gives the same bytes, which a node that has them does not fetch again.
        num_files: How many files are in it.
        num_bytes: Size of the archive.
    """

    source: Path
    archive: Path
    num_files: int
    num_bytes: int

    def __str__(self) -> str:
        return f"{self.source} ({self.num_files} files, {_size(self.num_bytes)})"


def project_of_program() -> Path | None:
    """Return the directory of the project that the running program belongs to.

    It is the nearest one above the file of `__main__` that holds `pyproject.toml`, `setup.py`, `setup.cfg` or `.git`,
    or else the one of the file itself. None: there is no file, or the program is installed (`site-packages`, `bin`), so
    that the nodes have to have it installed, too.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return None
    directory = Path(main).resolve().parent
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    if any(directory == prefix or prefix in directory.parents for prefix in prefixes) or "site-packages" in str(main):
        return None
    for place in (directory, *directory.parents):
        if any((place / mark).exists() for mark in _MARKS):
            return place
    return directory


def pack(source: Path, into: Path) -> Shipment:
    """Write the files of a project into an archive below a directory.

    Of a git repository those that git tracks or does not ignore; else all but hidden directories, environments, caches,
    and the directories of runs and sweeps.

    Raises:
        ConfigurationError: There is no such directory, nothing is in it, or far too much.
    """
    if not source.is_dir():
        raise ConfigurationError(f"runtime.working_dir={source}: there is no such directory")
    files = sorted(set(_files_of(source)))
    sizes = {file: (source / file).stat().st_size for file in files}
    if not files:
        raise ConfigurationError(f"runtime.working_dir={source}: there is no file in it to send to the workers")
    total = sum(sizes.values())
    if total > MOST_BYTES:
        largest = sorted(sizes, key=lambda file: -sizes[file])[:_SHOWN]
        named = ", ".join(f"{file} ({_size(sizes[file])})" for file in largest)
        raise ConfigurationError(
            f"runtime.working_dir={source}: its {len(files)} files have {_size(total)}, and {_size(MOST_BYTES)} is the "
            f"most that is sent to each node; the largest: {named}. Name them in .gitignore, or set "
            "runtime.working_dir=null where the nodes have the code already"
        )
    archive = into / "project.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            entry = zipfile.ZipInfo(file.as_posix(), _WHEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = ((source / file).stat().st_mode & 0o777) << 16
            packed.writestr(entry, (source / file).read_bytes())
    return Shipment(source, archive, len(files), archive.stat().st_size)


def _files_of(source: Path) -> Iterator[Path]:
    told = _told_by_git(source)
    if told is not None:
        yield from (file for file in told if (source / file).is_file() and not _LEFT_OUT & set(file.parts))
        return
    for place, directories, names in os.walk(source):
        here = Path(place)
        directories[:] = [
            name
            for name in directories
            if name not in _LEFT_OUT and not name.startswith(".") and not (here / name / "pyvenv.cfg").exists()
        ]
        yield from ((here / name).relative_to(source) for name in names if (here / name).is_file())


def _told_by_git(source: Path) -> list[Path] | None:
    """Return what git tracks or does not ignore below a directory; None where that is no repository."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [Path(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1024:.0f} KiB" if num_bytes < 1 << 20 else f"{num_bytes / (1 << 20):.1f} MiB"
