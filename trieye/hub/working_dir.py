"""The working directory of a cluster's workers: which files of a project are sent there, as `working_dir` of Ray."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from trieye.exceptions import ConfigurationError

MOST_BYTES = 200 << 20
"""The head of a cluster keeps the files in memory, and each node unpacks them: data belongs somewhere else."""

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_EXCLUDED = (
    ".*",  # .env, .netrc, .git-credentials, .ssh, .aws, .git, .venv, .trieye_data and other hidden files of tools
    "__pycache__", "node_modules", "site-packages", "cvs",
    "mlruns", "mlflow.db", "multirun", "outputs",
    "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.tfstate", "_netrc",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "credentials", "credentials.json", "kaggle.json", "client_secret*.json", "service_account*.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
"""Names of files and directories that are never sent: credentials, version control, environments, caches, data."""
_EXCLUDED_BY = ("pyvenv.cfg", "run.lock", "sweep.lock")
"""Files of directories that are never sent: environments, runs and sweeps."""
_SHOWN = 3
_GIT_S = 30.0


def project_of_program() -> Path | None:
    """Return the directory of the project that the running program belongs to.

    It is the nearest one above the file of `__main__` that holds `pyproject.toml`, `setup.py`, `setup.cfg` or `.git`,
    or else the directory of the file. None: there is no file, or the program is installed (`site-packages`, `bin`), so
    that the nodes have to have it installed, too.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return None
    directory = Path(main).resolve().parent
    prefixes = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    if not prefixes.isdisjoint((directory, *directory.parents)) or "site-packages" in str(main):
        return None
    return project_around(directory)


def project_around(directory: Path) -> Path:
    """Return the nearest directory, this one or above it, that marks a project; else this one."""
    marked = (path for path in (directory, *directory.parents) if any((path / mark).exists() for mark in _MARKS))
    return next(marked, directory)


def stage(source: Path, into: Path) -> str:
    """Copy the files of a project that are sent into an empty directory, and return a description.

    Ray packs all of that directory. Of the project itself it would pack the targets of links, wherever they are, in all
    versions up to 2.60.

    Raises:
        ConfigurationError: As `files_of`; or there is no file, or far too much.
    """
    files = files_of(source)
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
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, into / file)
    return f"{source} ({len(files)} files, {_size(total)})"


def files_of(source: Path) -> list[Path]:
    """Return the files of a project that are sent, relative to its directory, in order.

    Of a git repository these are the files that git tracks or does not ignore. Hidden files, credentials, environments,
    caches, runs and sweeps are excluded, and so are links to anything that is not sent itself.

    Raises:
        ConfigurationError: There is no such directory, or it contains the home directory.
    """
    if not source.is_dir():
        raise ConfigurationError(f"runtime.working_dir={source}: there is no such directory")
    root = source.resolve()
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - of a user without one it stays `~`
    if root in (home, *home.parents):
        raise ConfigurationError(
            f"runtime.working_dir={source}: this directory is or contains your home directory, which is not sent; "
            "move the program into a directory of its own, name one with runtime.working_dir=DIR, or set "
            "runtime.working_dir=null where the nodes have the code already"
        )
    tracked = _told_by_git(root)
    listed = [
        file for file in (_walked(root) if tracked is None else tracked) if not any(map(_is_excluded, file.parts))
    ]
    directories = {parent for file in listed for parent in file.parents[:-1]}
    excluded = {directory for directory in directories if _has_excluding_file(root / directory)}
    resolved = {file: (root / file).resolve() for file in listed if excluded.isdisjoint(file.parents)}
    own = {path for file, path in resolved.items() if path == root / file}
    return sorted(file for file, path in resolved.items() if path in own and path.is_file())


def _is_excluded(name: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in _EXCLUDED)


def _has_excluding_file(directory: Path) -> bool:
    return any((directory / name).exists() for name in _EXCLUDED_BY)


def _walked(root: Path) -> Iterator[Path]:
    for place, directories, names in os.walk(root):
        directories[:] = [
            name for name in directories if not (_is_excluded(name) or _has_excluding_file(Path(place, name)))
        ]
        yield from (Path(place, name).relative_to(root) for name in names)


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
