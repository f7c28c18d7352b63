"""What lies in a directory of checkpoints or buffers, state by state; nothing is changed."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trieye.checkpoints.manifest import PARTS_DIRECTORY, check_no_link, read_manifest
from trieye.exceptions import SerializationError
from trieye.files.checksum import FileEntry, verify_file

State = Literal["whole", "sizes fit", "partial", "damaged", "set aside", "0.1.5", "link"]

_PART = re.compile(rf"{PARTS_DIRECTORY}/seg-(\d+)-(\d+)-.*")


@dataclass(frozen=True)
class Saved:
    """One state that was saved.

    Attributes:
        name: Name of its directory or file.
        step: Its global step.
        state: What is known of it: `sizes fit` means that nobody looked at its bytes, `partial` that rows of its replay
            are damaged, and nothing else.
        saved: Unix time in seconds; None if that cannot be read.
        sequence: Its number among the saves into this directory.
        is_rated: Whether it can be the best one: it has an objective, or was saved as the best.
        mode: Whether a higher or a lower objective is better.
        shared_bytes: How many of its bytes other checkpoints share: they are on the disk once.
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

    @property
    def is_broken(self) -> bool:
        """Whether it is damaged, and no run has set it aside yet."""
        return self.state in {"partial", "damaged", "link"}


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


def disk_bytes(*directories: Path) -> int:
    """Return the bytes of all files below directories, those with several names once."""
    found = {(about.st_dev, about.st_ino): about for directory in directories for about in _files_below(directory)}
    return sum(about.st_size for about in found.values())


def _saved(path: Path, step: int, suffix: str, *, checksums: bool) -> Saved | None:
    if path.is_symlink():
        return Saved(path.name, step, "link", problems=(f"{path} is a link, and those are not followed",))
    if suffix == ".pkl" and path.is_file():
        return Saved(path.name, step, "0.1.5", saved=path.stat().st_mtime, size_bytes=path.stat().st_size)
    if suffix == ".pkl" or not path.is_dir():  # something else, or deleted by a living run
        return None
    problems = list(_problems(path, checksums=checksums))
    if problems:  # a second look tells damage from a checkpoint that a living run is replacing
        problems = list(_problems(path, checksums=checksums)) if path.exists() else []
    parts = [match for name, _ in problems if (match := _PART.fullmatch(name))]
    broken: State = "partial" if len(parts) == len(problems) else "damaged"
    files = list(_files_below(path))
    found = Saved(
        path.name,
        step,
        "set aside" if suffix else broken if problems else "whole" if checksums else "sizes fit",
        size_bytes=sum(about.st_size for about in files),
        shared_bytes=sum(about.st_size for about in files if about.st_nlink > 1),
        problems=tuple(problem for _, problem in problems),
        lost_rows=tuple(f"{match[1]}-{int(match[2]) - 1}" for match in parts),
    )
    try:
        manifest = read_manifest(path)
    except SerializationError:
        return found if path.exists() else None
    about, objective = manifest.metadata, manifest.metadata.get("objective")
    is_number = isinstance(objective, int | float)
    return replace(
        found,
        saved=manifest.created,
        sequence=manifest.sequence,
        attempt=about.get("attempt"),
        objective=objective if is_number else None,
        is_rated=is_number or bool(about.get("is_best")),
        mode="min" if about.get("mode") == "min" else "max",
    )


def _problems(path: Path, *, checksums: bool) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a saved directory, file by file, each with the name of the file."""
    try:
        check_no_link(path)
        manifest = read_manifest(path)
    except SerializationError as error:
        yield "", str(error)
        return
    for name, entry in manifest.files.items():
        try:
            if checksums or not _has_size(path / name, entry):
                verify_file(path / name, entry)
        except SerializationError as error:
            yield name, str(error)


def _has_size(path: Path, entry: FileEntry) -> bool:
    try:
        return not path.is_symlink() and path.stat().st_size == entry.size_bytes
    except OSError:
        return False


def _files_below(directory: Path) -> Iterator[os.stat_result]:
    for file in directory.rglob("*"):
        try:
            about = file.lstat()
        except FileNotFoundError:  # it is being replaced
            continue
        if stat.S_ISREG(about.st_mode):
            yield about


def marked(found: list[Saved]) -> list[Saved]:
    """Mark what `load_checkpoint_path=latest` and `=best` mean; a run decides the same when it starts."""
    usable = [saved for saved in found if saved.is_usable]
    if not usable:
        return found
    latest = usable[-1]
    sign = 1 if latest.mode == "max" else -1
    rated = [saved for saved in usable if saved.objective is not None] or [s for s in usable if s.is_rated]
    best = max(rated, key=lambda saved: (sign * (saved.objective or 0.0), saved.sequence), default=None)
    marks = {"best": best, "latest": latest}
    return [replace(row, marks=tuple(mark for mark, marked in marks.items() if marked is row)) for row in found]
