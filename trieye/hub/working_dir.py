"""Selects the project files that are uploaded to a cluster's workers as Ray's `working_dir`, and copies them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from trieye.exceptions import ConfigurationError

MOST_BYTES = 200 << 20
"""Upper bound of an upload: the head node keeps the files in memory and each node unpacks them, so send no data."""

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_EXCLUDED = (
    ".*",  # .env, .netrc, .git-credentials, .ssh, .aws, .git, .venv, .trieye_data and other hidden files
    "__pycache__", "node_modules", "site-packages", "cvs",
    "mlruns", "mlflow.db", "multirun", "outputs",
    "*.env", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.tfstate", "_netrc",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "credentials", "credentials.json", "kaggle.json", "client_secret*.json", "service_account*.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml",
)  # fmt: skip
"""Names of files and directories that are never sent: credentials, version control, environments, caches, data."""
_EXCLUDED_BY = ("pyvenv.cfg", "run.lock", "sweep.lock")
"""Files that mark directories that are never sent: environments, runs and sweeps."""
_SHOWN = 3
_GIT_S = 30.0


def project_of_program() -> Path | None:
    """Return the directory of the project that the running program belongs to.

    This is the nearest directory above the file of `__main__` that holds `pyproject.toml`, `setup.py`, `setup.cfg` or
    `.git`, or else the directory of that file. Return None if `__main__` has no file, or if the program is installed
    (`site-packages`, `bin`): then it must be installed on the nodes, too.
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
    """Return the nearest project root at or above a directory, or the directory itself if there is none."""
    roots = (path for path in (directory, *directory.parents) if any((path / mark).exists() for mark in _MARKS))
    return next(roots, directory)


def stage(source: Path, into: Path) -> str:
    """Copy the project files to upload into an empty directory, and return a description.

    Ray packs the whole directory. It must not pack the project directly: all versions up to 2.60 follow links, even out
    of the project.

    Raises:
        ConfigurationError: As `files_of`; or no file is left, or the files exceed `MOST_BYTES`.
    """
    files = files_of(source)
    sizes = {file: (source / file).stat().st_size for file in files}
    if not files:
        raise ConfigurationError(
            f"runtime.working_dir={source}: the directory has no file to send to the workers: it is empty, git ignores "
            "all of its files, or trieye never sends files of their kind. Set runtime.working_dir=DIR, or "
            "runtime.working_dir=null if the nodes have the code already"
        )
    total = sum(sizes.values())
    if total > MOST_BYTES:
        largest = sorted(sizes, key=lambda file: -sizes[file])[:_SHOWN]
        file_list = ", ".join(f"{file} ({_size(sizes[file])})" for file in largest)
        raise ConfigurationError(
            f"runtime.working_dir={source}: its {len(files)} files have {_size(total)}, but at most "
            f"{_size(MOST_BYTES)} are sent to each node; the largest: {file_list}. Add them to .gitignore, or set "
            "runtime.working_dir=null if the nodes have the code already"
        )
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / file, into / file)
    return f"{source} ({len(files)} files, {_size(total)})"


def files_of(source: Path) -> list[Path]:
    """Return the project files to upload, as sorted paths relative to the directory.

    In a git repository these are the files that git tracks or does not ignore, also in submodules and nested
    repositories. Hidden files, credentials, environments, caches, runs and sweeps are excluded, and so are links to
    files that are not uploaded themselves; a link to a directory becomes a copy of the uploaded files below its target.

    Raises:
        ConfigurationError: The directory does not exist, it is or contains the home directory, or git cannot list its
            files.
    """
    if not source.is_dir():
        raise ConfigurationError(f"runtime.working_dir={source}: the directory does not exist")
    root = source.resolve()
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - stays `~` for a user without a home
    if root in (home, *home.parents):
        raise ConfigurationError(
            f"runtime.working_dir={source}: this directory is or contains your home directory, which is not sent; "
            "move the program into a separate directory, set runtime.working_dir=DIR, or set "
            "runtime.working_dir=null if the nodes have the code already"
        )
    tracked = _git_files(root)
    files = [
        file for file in (_all_files(root) if tracked is None else tracked) if not any(map(_is_excluded, file.parts))
    ]
    directories = {parent for file in files for parent in file.parents[:-1]}
    excluded_directories = {directory for directory in directories if _has_excluding_file(root / directory)}
    resolved_paths = {file: (root / file).resolve() for file in files if excluded_directories.isdisjoint(file.parents)}
    regular_paths = {path for file, path in resolved_paths.items() if path == root / file and path.is_file()}
    linked_directories = {
        file: path for file, path in resolved_paths.items() if path.is_dir() and path not in (root / file).parents
    }
    return sorted(
        {file for file, path in resolved_paths.items() if path in regular_paths}
        | {
            file / path.relative_to(directory)
            for file, directory in linked_directories.items()
            for path in regular_paths
            if path.is_relative_to(directory)
        }
    )


def _is_excluded(name: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in _EXCLUDED)


def _has_excluding_file(directory: Path) -> bool:
    return any((directory / name).exists() for name in _EXCLUDED_BY)


def _all_files(root: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(root):
        directories[:] = [
            name for name in directories if not (_is_excluded(name) or _has_excluding_file(Path(parent, name)))
        ]
        links = [name for name in directories if Path(parent, name).is_symlink()]
        yield from (Path(parent, name).relative_to(root) for name in (*names, *links))


def _git_files(source: Path) -> list[Path] | None:
    """Return the files below a directory that git tracks or does not ignore; None outside a repository."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        if not any((directory / ".git").exists() for directory in (source, *source.parents)):
            return None
        reason = " ".join(os.fsdecode(getattr(error, "stderr", None) or str(error)).split())
        raise ConfigurationError(
            f"runtime.working_dir={source}: git cannot list the files of this repository: {reason}; "
            "repair the repository, or set runtime.working_dir=null if the nodes have the code already"
        ) from error
    files: list[Path] = []
    for subpath in (Path(os.fsdecode(entry)) for entry in done.stdout.split(b"\0") if entry not in (b"", b"./")):
        is_repository = (source / subpath / ".git").exists() and not (source / subpath).is_symlink()
        files += [subpath / file for file in _git_files(source / subpath) or ()] if is_repository else [subpath]
    return files


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1024:.0f} KiB" if num_bytes < 1 << 20 else f"{num_bytes / (1 << 20):.1f} MiB"
