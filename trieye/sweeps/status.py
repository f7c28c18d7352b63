"""How the jobs of a sweep are, from their files."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trieye.exceptions import SerializationError
from trieye.sweeps.jobs import RUN, JobRecord
from trieye.sweeps.record import SweepRecord

How = Literal["completed", "running", "failed", "pruned", "incomplete", "missing"]
"""`incomplete` = it was killed or interrupted; `missing` = it never began."""

HOWS: tuple[How, ...] = ("completed", "running", "failed", "pruned", "incomplete", "missing")

ENDED: frozenset[How] = frozenset(("completed", "pruned"))
"""What nobody has to go on with."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a job is.

    Attributes:
        index: Its number.
        how: What became of it.
        values: What varies, by key.
        record: What it says of itself; None if it never began.
        has_checkpoint: Whether it would go on from a checkpoint.
        is_away: Whether its run is on the disk of another machine.
        problem: What is wrong with its files.
    """

    index: int
    how: How
    values: Mapping[str, str]
    record: JobRecord | None = None
    has_checkpoint: bool = False
    is_away: bool = False
    problem: str | None = None

    @property
    def objective(self) -> float | None:
        """What it returned."""
        return self.record.objective if self.record is not None else None


def status_of(directory: Path) -> list[JobStatus]:
    """Return how each job of a sweep is, in the order of their numbers; what is left out of the grid is left out here.

    Raises:
        ConfigurationError: The directory holds no sweep.
        SerializationError: The record of the sweep is damaged; that of a job is only said.
    """
    sweep = SweepRecord.of(directory)
    grid = sweep.the_grid() if sweep.grid is not None else None
    return [
        _status(directory / str(index), index, grid.values(index) if grid is not None else None, sweep.varying)
        for index in (grid if grid is not None else range(sweep.size))
    ]


def sum_up(directory: Path, record: SweepRecord) -> None:
    """Note in the record of a sweep what became of its jobs, and which of those that came to their end is the best."""
    jobs = status_of(directory)
    record.summary = dict(Counter(job.how for job in jobs))
    numbers = {job.index: job.objective for job in jobs if job.how == "completed" and job.objective is not None}
    numbers = {index: number for index, number in numbers.items() if math.isfinite(number)}
    if numbers:
        best = (max if record.mode == "max" else min)(numbers, key=lambda index: numbers[index])
        record.summary |= {"best": best, "objective": numbers[best]}


def _status(directory: Path, index: int, values: Mapping[str, str] | None, varying: Sequence[str]) -> JobStatus:
    try:
        record = JobRecord.read(directory)
    except SerializationError as error:
        return JobStatus(index, "incomplete", values or {}, problem=str(error))
    if record is None:
        return JobStatus(index, "missing", values or {})
    if values is None:
        values = record.values(varying)
    state = record.state_now
    how: How = "incomplete" if state == "lost" or state == "interrupted" else state  # noqa: PLR1714 - for mypy
    run = directory / RUN
    saved = how == "incomplete" and any((run / "checkpoints").glob("checkpoint_step_*"))
    return JobStatus(index, how, values, record, saved, is_away=run.is_symlink() and not run.exists())
