"""Run the jobs of a sweep as a Slurm array: submit it, and wait for it unless it is detached."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trieye.config.launcher import LauncherConfig
from trieye.exceptions import RunInterrupted
from trieye.process.progress import say
from trieye.sweeps.jobs import Done, Job, JobRecord, ReportedError
from trieye.sweeps.progress import SweepProgress
from trieye.sweeps.slurm import LOGS, core_hours, submit_jobs
from trieye.sweeps.slurm_array import SlurmArray

_FIRST_POLL_S, _LONGEST_POLL_S = 1.0, 15.0
_USUAL = {"None", "Resources", "Priority", "JobArrayTaskLimit", "BeginTime", "Cleaning"}
"""Reasons of pending tasks that need no action."""

_LARGE_CORE_H = 10_000
"""Threshold in core-hours above which core-years are shown too, as a warning."""


def run_on_slurm(
    directory: Path, jobs: Sequence[Job], options: LauncherConfig, progress: SweepProgress
) -> dict[int, Done]:
    """Submit jobs, and return their outcomes by index; a detached sweep has none.

    Args:
        directory: Directory of the sweep.
        jobs: The jobs.
        options: Options of the launcher.
        progress: Shows the jobs.

    Raises:
        ConfigurationError: An array of the sweep is still pending or running, or sbatch refused the script.
        RunInterrupted: A signal arrived; the array continues.
    """
    if not jobs:
        return {}
    before = {job.index: JobRecord.read(directory / str(job.index)) for job in jobs}
    array = submit_jobs(directory, [job.index for job in jobs], options)
    num = len(array.tasks)
    say(f"sweep: submitted Slurm array {array.id}: {num} task{'s' if num > 1 else ''}{_cost(num, options)}")
    if options.detach:
        say(f"sweep: status: trieye sweep status {directory}; cancel: scancel {array.id}")
        return {}
    try:
        return _wait(directory, {job.index: job for job in jobs}, array, before, progress)
    except KeyboardInterrupt:
        interrupt = RunInterrupted(
            f"Slurm array {array.id} continues; status: trieye sweep status {directory}; cancel: scancel {array.id}"
        )
    interrupt.tell(say)
    raise interrupt


def _cost(num_tasks: int, options: LauncherConfig) -> str:
    hours = core_hours(num_tasks, options)
    if hours is None:
        return ""
    years = f" ({hours / 8766:,.1f} core-years)" if hours >= _LARGE_CORE_H else ""
    return f", at most {hours:,.0f} core-hours{years}"


def _wait(
    directory: Path,
    left: dict[int, Job],
    array: SlurmArray,
    before: Mapping[int, JobRecord | None],
    progress: SweepProgress,
) -> dict[int, Done]:
    """Return the outcomes of jobs when all have ended, or the array has."""
    ended: dict[int, Done] = {}
    running: set[int] = set()
    reasons: set[str] = set()
    poll_s = _FIRST_POLL_S
    while left:
        tasks = array.states()
        is_over = tasks == {}  # before the records, which are then final
        for reason in {task.reason for task in (tasks or {}).values() if task.state == "PENDING"} - _USUAL - reasons:
            reasons.add(reason)
            say(f"sweep: tasks are pending because of {reason}; `squeue -j {array.id}` lists them")
        for index, job in list(left.items()):
            record = JobRecord.read(directory / str(index))
            is_new = record is not None and record != before[index]
            if (is_new or is_over) and index not in running:
                progress.began(job)
                running.add(index)
            done = _outcome(index, record if is_new else None, directory / LOGS / f"{array.id}_*.log", is_over=is_over)
            if done is not None:
                progress.ended(left.pop(index), done)
                ended[index] = done
        progress.show()
        if left:
            time.sleep(poll_s)
            poll_s = min(1.5 * poll_s, _LONGEST_POLL_S)
    return ended


def _outcome(index: int, record: JobRecord | None, logs: Path, *, is_over: bool) -> Done | None:
    """Return the outcome of a job; None if it has not ended."""
    if record is not None and record.state in ("completed", "pruned"):
        return Done(index, record.objective, is_pruned=record.state == "pruned")
    if record is not None and record.state == "failed":
        return Done(index, error=ReportedError(record.error or "failed"))
    if is_over:
        return Done(index, error=ReportedError(f"its Slurm task ended before the job did; output of the tasks: {logs}"))
    return None
