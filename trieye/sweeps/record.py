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
