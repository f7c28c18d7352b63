"""JobStatus: the states of the jobs of a sweep, from their files."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from trieye.exceptions import SerializationError
from trieye.files.run_files import CHECKPOINT_PREFIX
from trieye.process.identity import Liveness
from trieye.sweeps.jobs import RUN, STUDY_LIMITS, JobRecord
from trieye.sweeps.objectives import pareto_optimal
from trieye.sweeps.record import SweepRecord, lock_in
from trieye.sweeps.slurm_array import SlurmArray, TaskState

How = Literal["completed", "running", "unknown", "waiting", "failed", "pruned", "incomplete", "removed", "missing"]
"""`incomplete`: killed or interrupted; `waiting`: not running, and a driver or a Slurm task will run it; `missing`:
never started; `removed`: completed, but its run was deleted since; `unknown`: last seen running on a machine whose
process table is out of reach."""

HOWS: tuple[How, ...] = get_args(How)

ENDED: frozenset[How] = frozenset(("completed", "pruned"))
"""States of jobs that need no relaunch."""

ENDED_BY = "ended_by"
"""Key in the summary of a study of the limit that ended it; the trials that had not started are pruned."""

_CHECKPOINT = re.compile(rf"{CHECKPOINT_PREFIX}\d+(\.pkl)?")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job.

    Attributes:
        index: Index of the job.
        how: Its state.
        values: Its varying values, by key.
        record: Its record; None if it never started.
        has_checkpoint: Whether its run has a checkpoint; an incomplete job resumes from it. False if the run is on the
            disk of another machine.
        is_away: Whether its run is on the disk of another machine.
        problem: Damage of its files.
        reason: Why it was pruned.
    """

    index: int
    how: How
    values: Mapping[str, str]
    record: JobRecord | None = None
    has_checkpoint: bool = False
    is_away: bool = False
    problem: str | None = None
    reason: str | None = None

    @property
    def objective(self) -> float | None:
        """The objective that the job returned, or None."""
        return self.record.objective if self.record is not None else None

    @property
    def objectives(self) -> Mapping[str, float]:
        """The numbers that the job returned as a list or dict, by name."""
        return self.record.objectives if self.record is not None else {}

    @property
    def objective_text(self) -> str:
        """The objectives for display."""
        number = self.record.number if self.record is not None else None
        if number is not None:
            return f"{number:g}"
        return " ".join(f"{name}={value:g}" for name, value in self.objectives.items())


def status_of(directory: Path) -> list[JobStatus]:
    """Return the state of each job of a sweep, in order of index, except jobs excluded from the grid.

    Raises:
        ConfigurationError: The directory contains no sweep.
        SerializationError: The record of the sweep is damaged; a damaged job record only sets `problem`.
    """
    sweep = SweepRecord.of(directory)
    grid = sweep.the_grid() if sweep.grid is not None else None
    jobs = [
        _status(directory / str(index), index, grid.values(index) if grid is not None else None, sweep)
        for index in (grid if grid is not None else range(sweep.size))
    ]
    array = SlurmArray.read(directory) if any(job.how in ("missing", "incomplete", "unknown") for job in jobs) else None
    tasks = array.jobs() if array is not None else {}
    is_driven = any(job.how == "missing" for job in jobs) and lock_in(directory).is_held_elsewhere()
    return [replace(job, how=_scheduled(job, tasks.get(job.index), is_driven=is_driven)) for job in jobs]


def _scheduled(job: JobStatus, task: TaskState | None, *, is_driven: bool) -> How:
    """Return the state of a job with regard to its Slurm task, if any, and to the driver of its sweep."""
    if job.how == "unknown" and task is not None and task.state == "RUNNING":
        return "running"
    is_waiting = (job.how in ("missing", "incomplete") and task is not None) or (job.how == "missing" and is_driven)
    return "waiting" if is_waiting else job.how


def sum_up(jobs: Sequence[JobStatus], record: SweepRecord) -> None:
    """Set the summary of a sweep's record: the job counts by state, and the best or Pareto-optimal completed jobs.

    Trials that a limit of their study ended count as completed.
    """
    limit = {key: value for key, value in record.summary.items() if key == ENDED_BY}
    record.summary = {**limit, **Counter(job.how for job in jobs)}
    ranked = best_first([job for job in jobs if job.how == "completed" or job.reason in STUDY_LIMITS], record)
    if record.modes:
        record.summary["pareto_optimal"] = [job.index for job in ranked]
    elif ranked:
        record.summary |= {"best": ranked[0].index, "objective": ranked[0].objective}


def best_first(jobs: Sequence[JobStatus], record: SweepRecord) -> list[JobStatus]:
    """Return the jobs with an objective, the best first; with several objectives, the Pareto-optimal jobs in order."""
    if record.modes:
        optimal_indices = pareto_optimal_jobs(jobs, record.modes)
        return [job for job in jobs if job.index in optimal_indices]
    sign = -1.0 if record.mode == "max" else 1.0
    return sorted((job for job in jobs if job.objective is not None), key=lambda job: sign * (job.objective or 0.0))


def pareto_optimal_jobs(jobs: Sequence[JobStatus], modes: Sequence[str]) -> list[int]:
    """Return the indices of the completed jobs that are Pareto-optimal in a sweep with several objectives."""
    values = {job.index: tuple(job.objectives.values()) for job in jobs if job.how == "completed"}
    return pareto_optimal(values, modes)


def _status(directory: Path, index: int, values: Mapping[str, str] | None, sweep: SweepRecord) -> JobStatus:
    try:
        record = JobRecord.read(directory)
    except SerializationError as error:
        return JobStatus(index, "incomplete", values or {}, problem=str(error))
    if record is None:
        limit = sweep.summary.get(ENDED_BY)
        return JobStatus(index, "missing" if limit is None else "pruned", values or {}, reason=limit)
    values = record.values(sweep.varying) if values is None else {**values, **record.values(values)}
    run, how = directory / RUN, _how(directory, record)
    is_away = how != "removed" and run.is_symlink() and not run.exists()
    return JobStatus(index, how, values, record, _has_checkpoint(run), is_away, reason=record.reason)


def _has_checkpoint(run: Path) -> bool:
    # `persistence.checkpoint_save_dir_name` may name any directory; quarantined checkpoints have a suffix
    return any(_CHECKPOINT.fullmatch(path.name) for path in run.glob(f"*/{CHECKPOINT_PREFIX}*"))


def _how(directory: Path, record: JobRecord) -> How:
    if record.state == "completed":
        return "removed" if is_removed(directory, record) else "completed"
    if record.state == "running":
        by_liveness: dict[Liveness, How] = {"alive": "running", "dead": "incomplete", "unknown": "unknown"}
        return by_liveness[record.liveness(directory)]
    return "incomplete" if record.state in ("lost", "interrupted") else record.state  # type: ignore[return-value]


def is_removed(directory: Path, record: JobRecord) -> bool:
    """Return whether the run of a job was on this machine and has been deleted.

    The directory of the app's runs still exists in that case; otherwise the run is on another machine's disk.
    """
    run = directory / RUN
    if record.is_brought or not run.is_symlink() or run.exists():
        return False
    return (directory / run.readlink()).parent.is_dir()
