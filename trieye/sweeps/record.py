"""SweepRecord: what a sweep is, in its sweep.json, by which it is looked at and started again; how records are kept."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.process.lock import RunLock
from trieye.snapshot.signing import is_own_command, sign_command
from trieye.sweeps.grid import Grid

SWEEP = "sweep.json"
LOCK = "sweep.lock"
ONLY = "hydra.launcher.only="
"""The option by which some jobs of a sweep are run again; it is none of the sweep."""

_SHOWN = 5


def lock_in(directory: Path) -> RunLock:
    """Return the lock by which one process at a time runs the sweep in a directory, or changes its record."""
    return RunLock(directory / LOCK, of="sweep", instead="leave hydra.sweep.dir out")


class Record(msgspec.Struct, kw_only=True):
    """A JSON file that is read as a whole, and replaced as a whole."""

    FILE: ClassVar[str]
    """Its name."""
    ADVICE: ClassVar[str]
    """What to do if it is damaged."""

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the record in a directory, or None if there is none, or it was lost with the power.

        Raises:
            SerializationError: The file is damaged.
        """
        path = directory / cls.FILE
        try:
            held = path.read_bytes()
            return msgspec.json.decode(held, type=cls) if held else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise SerializationError(f"{path} is damaged: {error}; {cls.ADVICE}") from error

    def write(self, directory: Path, *, is_lasting: bool = True) -> None:
        """Replace the record.

        Args:
            directory: Where it is, or will be.
            is_lasting: Whether it has to survive a loss of power, which takes the disk up to 100 ms.

        Raises:
            OSError: It cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / self.FILE, msgspec.json.format(msgspec.json.encode(self)), is_lasting=is_lasting)


class SweepRecord(Record, kw_only=True):
    """A sweep.

    Attributes:
        program: The words that start its program, without overrides; empty if it was planned without one.
        working_dir: Where they were typed.
        directory: Absolute directory of the sweep at its last start, by which a moved or copied sweep is recognised.
        spec: The overrides that were typed, sweeps and all, without secrets.
        own: The overrides of Hydra's own keys, such as the directory.
        grid: The grid as `Grid.plain` describes it; None for a search, whose jobs are known when they begin.
        size: How many jobs there are.
        varying: The keys that differ between jobs.
        mode: Whether more of the objective is better, `max` or less, `min`.
        created: When it was begun, in Unix seconds.
        summary: What became of the jobs when a sweeper of trieye last came to its end, and the best one.
        study: Of a study of Ray Tune: its name, and what it tries; empty for a sweep.
        signature: Of the command, by the user's key; empty if there was none.
    """

    FILE = SWEEP
    ADVICE = "restore it, or begin the sweep in another directory"

    program: list[str] = []
    working_dir: str = ""
    directory: str = ""
    spec: list[str]
    own: list[str] = []
    grid: dict[str, Any] | None = None
    size: int = 0
    varying: list[str] = []
    mode: str = "max"
    created: float = msgspec.field(default_factory=time.time)
    summary: dict[str, Any] = {}
    study: dict[str, Any] = {}
    signature: str = ""

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the record of the sweep in a directory.

        Raises:
            ConfigurationError: There is none.
            SerializationError: The file is damaged.
        """
        record = cls.read(directory)
        if record is None and not directory.is_dir():
            near = did_you_mean(directory.name, [other.name for other in directory.parent.glob("*/")])
            raise ConfigurationError(f"{directory}: there is no such directory{near}")
        if record is None:
            below = sorted(path.parent.name for path in directory.glob(f"*/{SWEEP}"))[:_SHOWN]
            hint = f"; there is one in {', '.join(below)}" if below else ""
            raise ConfigurationError(f"{directory} holds no sweep, which would have a {SWEEP}{hint}")
        return record

    @property
    def is_study(self) -> bool:
        """Whether its jobs are trials of Ray Tune."""
        return bool(self.study)

    def the_grid(self) -> Grid:
        """Return the grid.

        Raises:
            ConfigurationError: It has none.
        """
        if self.grid is None:
            raise ConfigurationError(
                "this sweep has no grid: it is a search or a study, whose jobs are known when they begin, or was begun "
                "with another sweeper than hydra/sweeper=trieye"
            )
        return Grid.of_plain(self.grid)

    def sign(self) -> Self:
        """Sign the command with the user's key, so that `relaunch` runs it without a question."""
        self.signature = sign_command(self.program, self.working_dir, self.spec, self.own)
        return self

    @property
    def is_signed(self) -> bool:
        """Whether this user's key signs the command: whoever else wrote it may have any program started."""
        return is_own_command(self.signature, self.program, self.working_dir, self.spec, self.own)

    def follow(self, before: Self) -> None:
        """Take what a further start leaves as it was; one that is for some of the jobs has options of its own."""
        self.created = before.created
        if any(word.startswith(ONLY) for word in self.own):
            self.program, self.working_dir, self.own = before.program, before.working_dir, before.own
            self.signature = self.sign().signature if before.is_signed else ""

    def write(self, directory: Path, *, is_lasting: bool = True) -> None:
        """Replace the record, which names its directory from now on; see `Record.write`."""
        self.directory = str(directory.resolve())
        super().write(directory, is_lasting=is_lasting)

    def at(self, directory: Path) -> Self:
        """Return the record for the directory in which it is now.

        A sweep that was moved or copied with its project belongs to the program and the runs of the new project.

        Raises:
            ConfigurationError: It is a copy of a sweep whose program and runs it would share.
        """
        here = directory.resolve()
        if self.directory in ("", str(here)) or self.is_study:
            return self
        project = _project_of(here, Path(self.directory), Path(self.working_dir))
        program = None if project is None else _moved(self.program, Path(self.working_dir), project)
        if project is not None and program is not None:
            return msgspec.structs.replace(self, directory=str(here), working_dir=str(project), program=program)
        if (Path(self.directory) / SWEEP).exists():
            raise ConfigurationError(
                f"{directory} is a copy of the sweep in {self.directory}: its jobs would run that sweep's program and "
                "write to its runs; go on with the original, or start another sweep in a new directory"
            )
        return msgspec.structs.replace(self, directory=str(here))

    def set_grid(self, grid: Grid) -> None:
        """Note which jobs there are."""
        self.grid, self.size = grid.without_secrets().plain(), grid.size

    def going_on(self, grid: Grid, words: Sequence[str], directory: Path) -> Grid:
        """Return the grid with which the sweep goes on: a shuffled axis keeps the order that it had.

        Args:
            grid: That of the words.
            words: What was typed now.
            directory: Of the sweep.

        Raises:
            ConfigurationError: A job would get another number.
        """
        if self.grid is None:
            return grid
        then = self.the_grid()
        grid = grid.in_the_order_of(then, {word.partition("=")[0] for word in words if "shuffle(" in word})
        after = grid.without_secrets()
        changed = after.first_renumbered(then)
        if changed is None:
            return grid
        was = " ".join(then[changed]) if changed < then.size else "none"
        now = f"would be {' '.join(after[changed])!r}" if changed < after.size else "would be gone"
        raise ConfigurationError(
            f"{directory}: its job {changed} is {was!r} and {now}; a sweep grows by values that are added at the end "
            "of its first key (a seed, say) and by nothing else. For another sweep leave hydra.sweep.dir out, or name "
            "another directory"
        )


def _project_of(here: Path, before: Path, working_dir: Path) -> Path | None:
    """Return the directory that contains a sweep under the path it had below its working directory, if any."""
    if not before.is_relative_to(working_dir):
        return None
    below = before.relative_to(working_dir).parts
    project = here.parents[len(below) - 1] if 0 < len(below) <= len(here.parents) else None
    return project if project is not None and here.relative_to(project).parts == below else None


def _moved(program: Sequence[str], before: Path, project: Path) -> list[str] | None:
    """Return the words of a program with the paths of another project; None if its file or module is not there."""
    if not program:
        return []
    interpreter, *rest = program
    module = rest[1].partition(".")[0] if rest[:1] == ["-m"] else None
    script = f"{module}.py" if module is not None else rest[0]
    is_there = [(place / script).exists() or bool(module and (place / module).is_dir()) for place in (project, before)]
    words = [_below(word, before, project) for word in rest]
    if module is None and not Path(project, words[0]).exists():
        return None
    if module is not None and is_there == [False, True]:
        return None
    own = _below(interpreter, before, project)
    return [own if Path(own).exists() else interpreter, *words]


def _below(word: str, before: Path, project: Path) -> str:
    path = Path(word)
    return str(project / path.relative_to(before)) if path.is_absolute() and path.is_relative_to(before) else word
