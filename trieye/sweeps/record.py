"""SweepRecord: what a sweep is, in its sweep.json, by which it is looked at and started again."""

import time
from pathlib import Path
from typing import Any, Self

import msgspec

from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.atomic import write_atomic
from trieye.sweeps.grid import Grid

SWEEP = "sweep.json"
_SHOWN = 5


class SweepRecord(msgspec.Struct, kw_only=True):
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
        summary: What a sweeper says at the end.
    """

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

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Return the record of the sweep in a directory, or None if there is none.

        Raises:
            SerializationError: The file is damaged.
        """
        path = directory / SWEEP
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.MsgspecError as error:
            raise SerializationError(f"{path} is damaged: {error}") from error

    @classmethod
    def of(cls, directory: Path) -> Self:
        """Return the record of the sweep in a directory.

        Raises:
            ConfigurationError: There is none.
            SerializationError: The file is damaged.
        """
        record = cls.read(directory)
        if record is None:
            below = sorted(path.parent.name for path in directory.glob(f"*/{SWEEP}"))[:_SHOWN]
            hint = f"; there is one in {', '.join(below)}" if below else ""
            raise ConfigurationError(f"{directory} holds no sweep, which would have a {SWEEP}{hint}")
        return record

    def write(self, directory: Path) -> None:
        """Replace the record.

        Raises:
            OSError: It cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        write_atomic(directory / SWEEP, msgspec.json.format(msgspec.json.encode(self)))

    def the_grid(self) -> Grid:
        """Return the grid.

        Raises:
            ConfigurationError: It is a search, which has none.
        """
        if self.grid is None:
            raise ConfigurationError("this sweep is a search: what a job is to try is known when it begins")
        return Grid.of_plain(self.grid)

    def check_same(self, grid: Grid, directory: Path) -> None:
        """Make sure that a grid may take the place of the one in the record.

        Raises:
            ConfigurationError: A job would get another number.
        """
        then = self.the_grid()
        if then.without != grid.without and then.axes == grid.axes:
            return  # left out or not, each has its number
        changed = grid.first_renumbered(then)
        if changed is None:
            return
        was = " ".join(then[changed]) if changed < then.size else "none"
        now = f"would be {' '.join(grid[changed])!r}" if changed < grid.size else "would be gone"
        raise ConfigurationError(
            f"{directory}: its job {changed} is {was!r} and {now}; a sweep grows by values that are added at the end "
            "of its first key (a seed, say) and by nothing else. For another sweep leave hydra.sweep.dir out, or name "
            "another directory"
        )
