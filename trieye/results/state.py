"""Status: what became of the jobs and runs of results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trieye.results.runs import LoadedRun
from trieye.sweeps.status import HOWS, How, JobStatus, status_of

_HOW: dict[str, How] = {"FINISHED": "completed", "FAILED": "failed", "KILLED": "incomplete", "RUNNING": "running"}


@dataclass(frozen=True)
class Status:
    """How the jobs of sweeps are, and the runs that belong to no sweep.

    Attributes:
        jobs: The jobs of each sweep, by its directory.
        runs: The paths of the runs of trieye outside of sweeps, by what became of each.
    """

    jobs: dict[str, Sequence[JobStatus]]
    runs: dict[How, list[str]]

    @property
    def missing(self) -> list[int]:
        """Numbers of the jobs that never began; those of several sweeps one after the other."""
        return self.numbers("missing")

    def numbers(self, how: How) -> list[int]:
        """Return the numbers of the jobs that are so."""
        return [job.index for jobs in self.jobs.values() for job in jobs if job.how == how]

    @property
    def counts(self) -> dict[How, int]:
        """How many jobs and runs are how."""
        numbers = {how: len(self.numbers(how)) + len(self.runs.get(how, ())) for how in HOWS}
        return {how: number for how, number in numbers.items() if number}

    @property
    def is_complete(self) -> bool:
        """Whether all jobs and runs have ended well."""
        return self.counts.keys() <= {"completed"}


def status(sweeps: Iterable[str], runs: Iterable[LoadedRun]) -> Status:
    """Return how the jobs of sweeps are, and the runs that belong to none of them.

    Raises:
        SerializationError: The record of a sweep is damaged.
    """
    jobs: dict[str, Sequence[JobStatus]] = {sweep: status_of(Path(sweep)) for sweep in sweeps}
    found: dict[How, list[str]] = {}
    for run in runs:
        if run.job is None and run.status in _HOW:
            found.setdefault(_HOW[run.status], []).append(run.path)
    return Status(jobs, found)
