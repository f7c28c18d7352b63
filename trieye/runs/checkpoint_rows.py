"""CheckpointRow: the checkpoints and buffers on the disk of a run; read-only."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trieye.checkpoints.manifest import PARTS_DIRECTORY, check_no_link, read_manifest
from trieye.exceptions import SerializationError
from trieye.files.checksum import FileEntry, verify_file
from trieye.files.run_files import BUFFER_PREFIX, BUFFERS, CHECKPOINT_PREFIX, CHECKPOINTS, CRASH_PREFIX, RUN_RECORD
from trieye.runs.config import persistence_of
from trieye.runs.finding import RunReference, run_directory
from trieye.runs.stored_run import disk_bytes, files_below

CheckpointState = Literal["whole", "sizes fit", "partial", "damaged", "set aside", "0.1.5", "link"]

SAVED_DIRECTORIES = (CHECKPOINTS, BUFFERS)
_PART = re.compile(rf"{PARTS_DIRECTORY}/seg-(\d+)-(\d+)-.*")


@dataclass(frozen=True)
class CheckpointRow:
    """A checkpoint or a buffer on disk.

    Attributes:
        name: Name of its directory or file.
        step: Its global step.
        state: Its state: `sizes fit` means that its bytes were not read, `partial` that only rows of its replay are
            damaged, `set aside` that it was quarantined.
        saved: Unix time in seconds; None if that cannot be read.
        sequence: Its number among the saves into this directory.
        is_rated: Whether it can be the best one: it has an objective, or was saved as the best.
        mode: Whether a higher or a lower objective is better.
        shared_bytes: How many of its bytes it shares with other checkpoints: they are on disk once.
        problems: The damage of each file.
        lost_rows: Rows of its replay that are lost, such as `100-199`.
        marks: `best`, `latest`.
    """

    name: str
    step: int
    state: CheckpointState
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
        """Whether a run can resume from it, if known."""
        return self.state in {"whole", "sizes fit", "partial"}

    @property
    def is_broken(self) -> bool:
        """Whether it is damaged and not yet quarantined."""
        return self.state in {"partial", "damaged", "link"}


@dataclass(frozen=True)
class SavedFiles:
    """The checkpoints and buffers of a run, the newest last.

    Attributes:
        run_dir: Its directory.
        disk_bytes: Bytes on disk of all of it; shared parts count once.
        checkpoints: Its checkpoints.
        buffers: The buffers that the drop-in API saved with them.
        crashes: States at an error; only a run with another name starts from one.
    """

    run_dir: Path
    disk_bytes: int
    checkpoints: list[CheckpointRow]
    buffers: list[CheckpointRow]
    crashes: list[CheckpointRow] = field(default_factory=list)


def checkpoints(run: RunReference, *, root: Path | None = None, checksums: bool = False) -> SavedFiles:
    """Return the checkpoints and buffers of a run; it may be alive, or of trieye 0.1.5.

    Args:
        run: The run, its directory or its name.
        root: Directory of all apps; None: the directories of the project around the working directory.
        checksums: Whether to read every byte; otherwise only names and sizes are checked.

    Raises:
        ConfigurationError: There is no such run.
    """
    run_dir = run_directory(run, root=root, marks=(RUN_RECORD, *SAVED_DIRECTORIES))
    names = persistence_of(run_dir)  # `verify` reports a damaged config
    directories = [run_dir / names.checkpoint_save_dir_name, run_dir / names.buffer_save_dir_name]
    return SavedFiles(
        run_dir,
        disk_bytes(*directories),
        _marked(rows_in(directories[0], CHECKPOINT_PREFIX, checksums=checksums)),
        rows_in(directories[1], BUFFER_PREFIX, checksums=checksums),
        rows_in(directories[0], CRASH_PREFIX, checksums=checksums),
    )


def rows_in(directory: Path, prefix: str, *, checksums: bool) -> list[CheckpointRow]:
    """Return the rows of the names `<prefix><step>`, the newest last.

    Args:
        directory: Where to look; it need not exist.
        prefix: `checkpoint_step_`, `buffer_step_` or `crash-`.
        checksums: Whether to read every byte, not only names and sizes.
    """
    pattern = re.compile(re.escape(prefix) + r"(\d+)(\.pkl|\.damaged(?:-\d+)?)?")
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    pairs = [(path, match) for path in paths if (match := pattern.fullmatch(path.name))]
    rows = [row for path, match in pairs if (row := _saved(path, int(match[1]), match[2] or "", checksums=checksums))]
    converted_steps = {row.step for row in rows if row.is_usable}
    visible_rows = [row for row in rows if row.state != "0.1.5" or row.step not in converted_steps]
    return sorted(visible_rows, key=lambda row: (row.sequence, row.step))


def _saved(path: Path, step: int, suffix: str, *, checksums: bool) -> CheckpointRow | None:
    if path.is_symlink():
        return CheckpointRow(path.name, step, "link", problems=(f"{path} is a link, and those are not followed",))
    if suffix == ".pkl" and path.is_file():
        return CheckpointRow(path.name, step, "0.1.5", saved=path.stat().st_mtime, size_bytes=path.stat().st_size)
    if suffix == ".pkl" or not path.is_dir():  # something else, or deleted by a living run
        return None
    problems = list(_problems(path, checksums=checksums))
    if problems:  # a second look tells damage from a checkpoint that a living run is replacing
        problems = list(_problems(path, checksums=checksums)) if path.exists() else []
    parts = [match for name, _ in problems if (match := _PART.fullmatch(name))]
    damage_state: CheckpointState = "partial" if len(parts) == len(problems) else "damaged"
    file_stats = list(files_below(path))
    row = CheckpointRow(
        path.name,
        step,
        "set aside" if suffix else damage_state if problems else "whole" if checksums else "sizes fit",
        size_bytes=sum(file_stat.st_size for file_stat in file_stats),
        shared_bytes=sum(file_stat.st_size for file_stat in file_stats if file_stat.st_nlink > 1),
        problems=tuple(problem for _, problem in problems),
        lost_rows=tuple(f"{match[1]}-{int(match[2]) - 1}" for match in parts),
    )
    try:
        manifest = read_manifest(path)
    except SerializationError:
        return row if path.exists() else None
    metadata, objective = manifest.metadata, manifest.metadata.get("objective")
    is_number = isinstance(objective, int | float)
    return replace(
        row,
        saved=manifest.created,
        sequence=manifest.sequence,
        attempt=metadata.get("attempt"),
        objective=objective if is_number else None,
        is_rated=is_number or bool(metadata.get("is_best")),
        mode="min" if metadata.get("mode") == "min" else "max",
    )


def _problems(path: Path, *, checksums: bool) -> Iterator[tuple[str, str]]:
    """Yield the problems of a saved directory, each with the name of the file."""
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


def _marked(rows: list[CheckpointRow]) -> list[CheckpointRow]:
    """Mark the rows that `load_checkpoint_path=latest` and `=best` would load."""
    usable_rows = [saved for saved in rows if saved.is_usable]
    if not usable_rows:
        return rows
    latest_row = usable_rows[-1]
    sign = 1 if latest_row.mode == "max" else -1
    rated = [saved for saved in usable_rows if saved.objective is not None] or [s for s in usable_rows if s.is_rated]
    best_row = max(rated, key=lambda saved: (sign * (saved.objective or 0.0), saved.sequence), default=None)
    row_by_mark = {"best": best_row, "latest": latest_row}
    return [replace(row, marks=tuple(mark for mark, marked in row_by_mark.items() if marked is row)) for row in rows]
