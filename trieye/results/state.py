"""Status: the states of the jobs and runs of results."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trieye.results.runs import LoadedRun
from trieye.sweeps.status import HOWS, How, JobStatus, status_of

_HOW: dict[str, How] = {"FINISHED": "completed", "FAILED": "failed", "KILLED": "incomplete", "RUNNING": "running"}


@dataclass(frozen=True)
class Status:
    """States of the jobs of sweeps, and of runs outside of sweeps.

    Attributes:
        jobs: The jobs of each sweep, by sweep directory.
        runs: Paths of the trieye runs outside of sweeps, by state.
    """

    jobs: dict[str, Sequence[JobStatus]]
    runs: dict[How, list[str]]

    @property
    def missing(self) -> list[int]:
        """Indices of the jobs that never started, sweep by sweep."""
        return self.numbers("missing")

    def numbers(self, how: How) -> list[int]:
        """Return the indices of the jobs in a state."""
        return [job.index for jobs in self.jobs.values() for job in jobs if job.how == how]

    @property
    def counts(self) -> dict[How, int]:
        """Number of jobs and runs in each state."""
        numbers = {how: len(self.numbers(how)) + len(self.runs.get(how, ())) for how in HOWS}
        return {how: number for how, number in numbers.items() if number}

    @property
    def is_complete(self) -> bool:
        """Whether all jobs and runs have completed."""
        return self.counts.keys() <= {"completed"}


def status(sweeps: Iterable[str], runs: Iterable[LoadedRun]) -> Status:
    """Return the states of the jobs of sweeps, and of runs outside of sweeps; exported runs have no sweep directory.

    Raises:
        SerializationError: The record of a sweep is damaged.
    """
    directories = (sweep for sweep in sweeps if Path(sweep).is_absolute())
    jobs: dict[str, Sequence[JobStatus]] = {sweep: status_of(Path(sweep)) for sweep in directories}
    runs_by_state: dict[How, list[str]] = {}
    for run in runs:
        if run.job is None and run.status in _HOW:
            runs_by_state.setdefault(_HOW[run.status], []).append(run.path)
    return Status(jobs, runs_by_state)
