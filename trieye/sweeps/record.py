"""SweepRecord: the definition of a sweep in its sweep.json, and the base class of JSON records."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from trieye.config.base import did_you_mean
from trieye.config.hydra.launch import name_of_sweep, runs_of_sweep
from trieye.config.hydra.override_text import bare
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.process.lock import RunLock
from trieye.snapshot.signing import is_own_command, sign_command
from trieye.sweeps.grid import Grid, PlainGrid

SWEEP = "sweep.json"
LOCK = "sweep.lock"
CONFIG = "multirun.yaml"
"""The config of the last start."""
OTHER_SWEEP = "for another sweep, omit hydra.sweep.dir or set another directory"
ONLY = "hydra.launcher.only="
"""The option that selects jobs of a sweep; it is not part of the sweep's command."""
KEEP_GOING = "hydra.launcher.fail_fast=false"
"""The option without which a relaunch of a fail-fast sweep ends at the job that failed before."""

_SHOWN = 5
_PLANNED = {"hydra.sweep.dir", *(f"hydra.sweeper.{name}" for name in ("seeds", "zip", "exclude", "when"))}
"""Options that a plan sets for the whole grid."""


def lock_in(directory: Path) -> RunLock:
    """Return the lock that a process holds while it runs the sweep in a directory or changes its record.

    Raises:
        ConfigurationError: The path cannot be recorded.
    """
    if any("\ud800" <= character <= "\udfff" for character in str(directory)):
        raise ConfigurationError(f"{str(directory)!a}: the path of a sweep must be valid UTF-8; rename the directory")
    return RunLock(directory / LOCK, subject="sweep", alternative="set another hydra.sweep.dir")


class JsonRecord(msgspec.Struct, kw_only=True):
    """A JSON file that is read and replaced as a whole."""

    FILE: ClassVar[str]
    """File name."""
    ADVICE: ClassVar[str]
    """Advice for a damaged file."""

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the record in a directory; None if it is missing, or empty after a power failure.

        Raises:
            SerializationError: The file is damaged.
        """
        path = directory / cls.FILE
        try:
            content = path.read_bytes()
            return msgspec.json.decode(content, type=cls) if content else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise SerializationError(f"{path} is damaged: {error}; {cls.ADVICE}") from error

    def write(self, directory: Path, *, is_lasting: bool = True) -> None:
        """Replace the record.

        Args:
            directory: Its directory, created if necessary.
            is_lasting: Whether to fsync, so that the record survives a power failure; takes up to 100 ms.

        Raises:
            OSError: The file cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / self.FILE, msgspec.json.format(msgspec.json.encode(self)), is_lasting=is_lasting)


class SweepRecord(JsonRecord, kw_only=True):
    """Definition and summary of a sweep.

    Attributes:
        program: The words that start its program, without overrides; empty if it was planned without one.
        working_dir: Working directory of the command.
        directory: Absolute directory of the sweep at its last start, which identifies a moved or copied sweep.
        runs: Common name of the runs that `trieye.Run` creates in its jobs, from the directory of the first start.
        spec: The typed overrides, including swept values, without secrets.
        own: The overrides of `hydra.*` keys, such as the directory.
        grid: The grid from `Grid.plain`; None for a search, whose jobs are determined when they start.
        search: The kind, sampler, seed, conditions and space of a search; empty for a grid.
        size: Number of jobs.
        varying: The keys that differ between jobs.
        mode: `max` or `min`: whether a higher or lower objective is better.
        modes: The same for each of several objectives; empty for a single objective.
        created: Start time in Unix seconds.
        summary: Job counts by state, and the best job, at the last completion of a trieye sweeper.
        study: Name and search space of a Ray Tune study; empty for a sweep.
        signature: Signature of the command with the user's key; empty if unsigned.
    """

    FILE = SWEEP
    ADVICE = "restore it, or begin the sweep in another directory"

    program: list[str] = []
    working_dir: str = ""
    directory: str = ""
    runs: str = ""
    spec: list[str]
    own: list[str] = []
    grid: PlainGrid | None = None
    search: dict[str, Any] = {}
    size: int = 0
    varying: list[str] = []
    mode: str = "max"
    modes: list[str] = []
    created: float = msgspec.field(default_factory=time.time)
    summary: dict[str, Any] = {}
    study: dict[str, Any] = {}
    signature: str = ""

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the record of the sweep in a directory.

        Raises:
            ConfigurationError: The directory contains no sweep.
            SerializationError: The file is damaged.
        """
        record = cls.read(directory)
        if record is None and not directory.is_dir():
            suggestion = did_you_mean(directory.name, [other.name for other in directory.parent.glob("*/")])
            raise ConfigurationError(f"{directory} does not exist{suggestion}")
        if record is None:
            subdirs = sorted(path.parent.name for path in directory.glob(f"*/{SWEEP}"))
            hint = f"there is one in {', '.join(subdirs[:_SHOWN])}{', ...' if len(subdirs) > _SHOWN else ''}"
            other = "repeat its command, or for a sweep of another launcher: trieye results table"
            raise ConfigurationError(f"{directory} contains no sweep (no {SWEEP}); {hint if subdirs else other}")
        return record

    @property
    def is_study(self) -> bool:
        """Whether its jobs are trials of Ray Tune."""
        return bool(self.study)

    @property
    def is_search(self) -> bool:
        """Whether each of its jobs gets values when it starts, from a sampler of trieye's sweeper."""
        return self.grid is None and bool(self.search) and not self.is_study

    def the_grid(self) -> Grid:
        """Return the grid.

        Raises:
            ConfigurationError: The sweep has no grid.
        """
        if self.grid is None:
            raise ConfigurationError(
                "this sweep has no grid: it is a search or a study, whose jobs are determined when they start, or used "
                "a sweeper other than hydra/sweeper=trieye; `trieye rerun RUN seed=...` repeats one of its runs"
            )
        return Grid.of_plain(self.grid)

    def sign(self) -> Self:
        """Sign the command with the user's key, so that `relaunch` runs it without confirmation."""
        self.signature = sign_command(self.program, self.working_dir, self.spec, self.own)
        return self

    @property
    def is_signed(self) -> bool:
        """Whether this user's key signed the command; an unsigned command could start any program."""
        return is_own_command(self.signature, self.program, self.working_dir, self.spec, self.own)

    def follow(self, before: Self) -> None:
        """Take over fields of an earlier start; a start of selected jobs also retains the original command."""
        self.created, self.runs = before.created, before.runs
        if any(word.startswith(ONLY) for word in self.own):
            self.program, self.working_dir, self.own = before.program, before.working_dir, before.own
            self.signature = self.sign().signature if before.is_signed else ""

    def extend(self, before: Self, directory: Path) -> None:
        """Take over summary, modes and options of a planned or started grid, which a new plan extends.

        Raises:
            ConfigurationError: The directory has a search, a study, or jobs of another program.
        """
        if before.grid is None:
            kind = "study" if before.is_study else "search"
            raise ConfigurationError(f"{directory} contains a {kind}, which a plan cannot extend; choose another -o")
        self.check_program(before, directory)
        self.created, self.runs, self.summary = before.created, before.runs, before.summary
        self.mode, self.modes = before.mode, before.modes
        keys = {word.partition("=")[0] for word in self.own} | _PLANNED
        self.own += [word for word in before.own if word.partition("=")[0] not in keys]
        self.signature = self.sign().signature if before.is_signed else ""

    def check_program(self, before: Self, directory: Path) -> None:
        """Raise `ConfigurationError` if an earlier start of the sweep ran a program of another name."""
        if (now := _name_of(self.program)) != (name := _name_of(before.program)) and now and name:
            raise ConfigurationError(f"{directory}: its jobs are of the program {name!r}, not {now!r}; {OTHER_SWEEP}")

    def write(self, directory: Path, *, is_lasting: bool = True) -> None:
        """Replace the record, which names its directory from now on; see `Record.write`."""
        self.directory = str(directory.resolve())
        self.runs = self.runs or runs_of_sweep(directory, Path(self.working_dir))
        super().write(directory, is_lasting=is_lasting)

    def at(self, directory: Path) -> Self:
        """Return the record for its current directory.

        A sweep that was moved or copied with its project belongs to the program and the runs of the new project.

        Raises:
            ConfigurationError: The directory is a copy of a sweep and would share its program and runs.
        """
        real_dir = directory.resolve()
        if self.directory in ("", str(real_dir)):
            return self
        runs = self.runs or name_of_sweep(Path(self.directory), Path(self.working_dir))
        project = project_of(real_dir, Path(self.directory), Path(self.working_dir))
        program = None if project is None else moved_program(self.program, Path(self.working_dir), project)
        other = self.read(Path(self.directory))
        is_copy = other is not None and other.created == self.created  # else a new sweep has the directory of this one
        if project is not None and program is not None and not (is_copy and _is_outside(program, project)):
            moved_fields = {"directory": str(real_dir), "runs": runs, "working_dir": str(project), "program": program}
            return msgspec.structs.replace(self, **moved_fields)
        if is_copy:
            raise ConfigurationError(
                f"{directory} is a copy of the sweep in {self.directory}: its jobs would run that sweep's program and "
                "write to its runs; resume the original, or start another sweep in a new directory"
            )
        return msgspec.structs.replace(self, directory=str(real_dir), runs=runs)

    def set_grid(self, grid: Grid) -> None:
        """Set the grid, without secrets, and the number of jobs."""
        self.grid, self.size = grid.without_secrets().plain(), grid.size

    def going_on(self, grid: Grid, words: Sequence[str], directory: Path, *, budget: Sequence[str] = ()) -> Grid:
        """Return the grid of a resumed sweep, in which jobs and shuffled axes retain their recorded order.

        Args:
            grid: The grid of `words`.
            words: The overrides of this start.
            directory: Directory of the sweep.
            budget: Keys that may be raised, and do not identify jobs.

        Raises:
            ConfigurationError: A job would get another index, or the budget is smaller.
        """
        if self.grid is None:
            return grid
        old_grid = self.the_grid().renamed_like(grid).spelled_like(grid).with_constants_of(grid, budget)
        grid = grid.in_the_order_of(old_grid, {word.partition("=")[0] for word in words if "shuffle(" in word})
        new_grid = grid.without_secrets()
        grown = new_grid.grown_from(old_grid)
        if grown is not None:
            return replace(grid, growth=grown.growth)
        keys = {bare(key) for axis in grid.axes for key in axis.keys}
        lost_words = [word for axis in old_grid.axes if len(axis.places) == 1 for word in axis.overrides(0)]
        lost_words = [word for word in lost_words if bare(word.partition("=")[0]) not in keys]
        repeat = f"; repeat {' '.join(lost_words)}" if lost_words else ""
        index = new_grid.first_difference(old_grid)
        was = " ".join(old_grid[index]) if index < old_grid.size else "none"
        now = f"would be {' '.join(new_grid[index])!r}" if index < new_grid.size else "would be gone"
        raise ConfigurationError(
            f"{directory}: its job {index} is {was!r} and {now}{repeat}; a sweep can only grow by values appended to "
            f"its keys (such as seeds), or by a budget that hydra.sweeper.budget=[KEY] names; {OTHER_SWEEP}"
        )


def _name_of(program: Sequence[str]) -> str:
    """Return the name of a program's file or module, without suffix and package."""
    words = [word for word in program[1:3] if word != "-m"]
    return "" if not words else words[0].rpartition(".")[2] if program[1] == "-m" else Path(words[0]).stem


def project_of(new_dir: Path, old_dir: Path, working_dir: Path) -> Path | None:
    """Return the current working directory of a program whose sweep or run moved with it; None if it cannot be told.

    Args:
        new_dir: Current directory of the sweep or run.
        old_dir: Its directory at its last start.
        working_dir: The working directory at that start.
    """
    if not old_dir.is_relative_to(working_dir):
        return None
    parts = old_dir.relative_to(working_dir).parts
    project = new_dir.parents[len(parts) - 1] if 0 < len(parts) <= len(new_dir.parents) else None
    return project if project is not None and new_dir.relative_to(project).parts == parts else None


def _is_outside(program: Sequence[str], project: Path) -> bool:
    """Return whether the file or module of a program is outside of a project."""
    script_index = _first_of(program)
    if program[script_index : script_index + 1] == ["-m"]:
        return not _has_module(project, program[script_index + 1])
    return bool(program) and not Path(project, program[script_index]).resolve().is_relative_to(project)


def _has_module(root: Path, name: str) -> bool:
    path = root / name.partition(".")[0]
    return path.is_dir() or path.with_suffix(".py").exists()


def _first_of(program: Sequence[str]) -> int:
    """Return the index of the script or of `-m`, which follows the interpreter and its flags, such as `-u`."""
    words = enumerate(program)
    return next((index for index, word in words if index and (word == "-m" or not word.startswith("-"))), len(program))


def moved_program(program: Sequence[str], old_root: Path, project: Path) -> list[str] | None:
    """Return the words of a program with the paths of another project; None if its file or module does not exist."""
    if not program:
        return []
    words = [_below(word, old_root, project) for word in program]
    words[0] = words[0] if Path(words[0]).exists() else program[0]
    script, *names = program[_first_of(program) :] or [""]
    if script == "-m" and names:
        exists = _has_module(project, names[0]) or not _has_module(old_root, names[0])  # else it is installed
    else:
        exists = bool(script) and (project / _below(script, old_root, project)).exists()  # "": an interactive session
    return words if exists else None


def _below(word: str, old_root: Path, project: Path) -> str:
    path = Path(word)
    return str(project / path.relative_to(old_root)) if path.is_absolute() and path.is_relative_to(old_root) else word
