"""What lies in a directory of checkpoints or buffers, state by state; nothing is changed."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trieye.checkpoints.manifest import PARTS_DIRECTORY, Manifest, check_no_link, read_manifest
from trieye.exceptions import CheckpointError, SerializationError
from trieye.files.checksum import verify_file

State = Literal["whole", "sizes fit", "partial", "damaged", "set aside", "0.1.5", "link"]

_PART = re.compile(rf"{PARTS_DIRECTORY}/seg-(\d+)-(\d+)-.*")


@dataclass(frozen=True)
class Saved:
    """One thing that was saved.

    Attributes:
        name: Name of its directory or file.
        step: Its global step.
        state: What is known of it: `sizes fit` means that nobody looked at its bytes, `partial` that rows of its replay
            are damaged, and nothing else.
        saved: Unix time in seconds; None if that cannot be read.
        sequence: Its number among the saves into this directory.
        attempt: The attempt that saved it.
        objective: How good it is.
        is_rated: Whether it can be the best one: it has an objective, or was saved as the best.
        mode: Whether a higher or a lower objective is better.
        size_bytes: Size of its files.
        shared_bytes: How many of those other checkpoints share: they are on the disk once.
        problems: What is wrong with it, file by file.
        lost_rows: Rows of its replay that are lost, such as `100-199`.
        marks: `best`, `latest`.
    """

    name: str
    step: int
    state: State
    saved: float | None = None
    sequence: int = -1
    attempt: int | None = None
    objective: float | None = None
    is_rated: bool = False
    mode: Literal["max", "min"] = "max"
    size_bytes: int = 0
    shared_bytes: int = 0
    problems: tuple[str, ...] = ()
    lost_rows: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether a run can go on from it, as far as known."""
        return self.state in {"whole", "sizes fit", "partial"}


def saved_in(directory: Path, prefix: str, *, checksums: bool) -> list[Saved]:
    """Return what was saved under names `<prefix><step>`, the newest last.

    Args:
        directory: Where to look; it need not exist.
        prefix: `checkpoint_step_` or `buffer_step_`.
        checksums: Whether to read every byte, not only names and sizes.
    """
    pattern = re.compile(re.escape(prefix) + r"(\d+)(\.pkl|\.damaged(?:-\d+)?)?")
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    named = [(path, match) for path in paths if (match := pattern.fullmatch(path.name))]
    found = [
        saved for path, match in named if (saved := _saved(path, int(match[1]), match[2] or "", checksums=checksums))
    ]
    converted = {saved.step for saved in found if saved.is_usable}
    shown = [saved for saved in found if saved.state != "0.1.5" or saved.step not in converted]
    return sorted(shown, key=lambda saved: (saved.sequence, saved.step))


def problems_of(path: Path, *, checksums: bool = True) -> list[tuple[str, str]]:
    """Return what is wrong with a saved directory, file by file, each with its name; nothing if it is whole.

    A second look tells damage from one that is being replaced.

    Args:
        path: The directory.
        checksums: Whether to compare every byte, not only sizes.
    """
    if not list(_problems(path, checksums=checksums)):
        return []
    return list(_problems(path, checksums=checksums)) if path.exists() else []


def _problems(path: Path, *, checksums: bool) -> Iterator[tuple[str, str]]:
    try:
        check_no_link(path)
        manifest = read_manifest(path)
    except SerializationError as error:
        yield "", str(error)
        return
    for name, entry in manifest.files.items():
        try:
            if checksums:
                verify_file(path / name, entry)
            else:
                _compare_size(path / name, entry.size_bytes)
        except SerializationError as error:
            yield name, str(error)


def _compare_size(path: Path, size_bytes: int) -> None:
    try:
        found = path.lstat().st_size
    except OSError as error:
        raise CheckpointError(f"{path} is damaged: {error.strerror or error}") from error
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link; only what was written here is read")
    if found != size_bytes:
        raise CheckpointError(f"{path} is damaged: it has {found} bytes, {size_bytes} were written")


def _saved(path: Path, step: int, suffix: str, *, checksums: bool) -> Saved | None:
    if path.is_symlink():
        return Saved(path.name, step, "link", problems=(f"{path} is a link, and those are not followed",))
    if suffix == ".pkl" and path.is_file():
        return Saved(path.name, step, "0.1.5", saved=path.stat().st_mtime, size_bytes=path.stat().st_size)
    if suffix == ".pkl" or not path.is_dir():  # something else, or deleted by a living run
        return None
    problems = problems_of(path, checksums=checksums)
    parts = [match for name, _ in problems if (match := _PART.fullmatch(name))]
    broken: State = "partial" if len(parts) == len(problems) else "damaged"
    state: State = "set aside" if suffix else broken if problems else "whole" if checksums else "sizes fit"
    size_bytes, shared_bytes = sizes(path)
    found = Saved(path.name, step, state, size_bytes=size_bytes, shared_bytes=shared_bytes)
    lost = tuple(f"{match[1]}-{int(match[2]) - 1}" for match in parts)
    found = replace(found, problems=tuple(problem for _, problem in problems), lost_rows=lost)
    try:
        return replace(found, **_described(read_manifest(path)))
    except SerializationError:
        return found if path.exists() else None


def _described(manifest: Manifest) -> dict[str, Any]:
    about = manifest.metadata
    objective = about.get("objective")
    return {
        "saved": manifest.created,
        "sequence": manifest.sequence,
        "attempt": about.get("attempt"),
        "objective": objective if isinstance(objective, int | float) else None,
        "is_rated": isinstance(objective, int | float) or bool(about.get("is_best")),
        "mode": "min" if about.get("mode") == "min" else "max",
    }


def sizes(path: Path) -> tuple[int, int]:
    """Return the bytes of all files of a directory, and of those that have other names, too."""
    size_bytes = shared_bytes = 0
    for file in path.rglob("*"):
        try:
            about = file.lstat()
        except FileNotFoundError:  # it is being replaced
            continue
        if file.is_file() and not file.is_symlink():
            size_bytes += about.st_size
            shared_bytes += about.st_size if about.st_nlink > 1 else 0
    return size_bytes, shared_bytes


def disk_bytes(directory: Path) -> int:
    """Return the bytes of all files below a directory, those with several names once."""
    found = {}
    for file in directory.rglob("*"):
        try:
            about = file.lstat()
        except FileNotFoundError:
            continue
        if file.is_file() and not file.is_symlink():
            found[about.st_dev, about.st_ino] = about.st_size
    return sum(found.values())
