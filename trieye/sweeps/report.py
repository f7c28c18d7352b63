"""Tables of a sweep: its planned jobs, its best jobs, and its failed jobs with the error message."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from trieye.config.hydra.override_text import bare
from trieye.process.terminal import Terminal, TextTable
from trieye.process.text import command_text, counted
from trieye.sweeps.grid import Grid, headings, short
from trieye.sweeps.importance import Importance, importances
from trieye.sweeps.jobs import OUTPUT, Done, JobElsewhereError
from trieye.sweeps.record import KEEP_GOING, SweepRecord
from trieye.sweeps.status import JobStatus, best_first, status_of

_MOST = 10
_LONGEST = 120
_TEXTS = {"error", "state"}
"""Columns of text; all others contain numbers."""
_UNGUARDED = """Error locating target '__main__."""  # Hydra's message


def plan_table(grid: Grid) -> None:
    """Print the axes of a grid, its first jobs and its last job."""
    console, grid = Terminal(), grid.without_secrets()
    console.print(f"{counted(grid.num_jobs, 'job')}, fingerprint {grid.fingerprint}")
    table = TextTable("axis", right=("values",))
    table.add_column("choices")
    for axis in grid.axes:
        if len(axis.places) > 1:
            choices = [" ".join(values) for values in axis.places]
            shown_choices = choices if len(choices) <= _MOST else [*choices[: _MOST - 1], "...", choices[-1]]
            table.add_row(" ".join(map(bare, axis.keys)), str(len(choices)), ", ".join(shown_choices))
    if table.rows:
        console.print(table)
    constant_words = [word for axis in grid.axes if len(axis.places) == 1 for word in axis.overrides(0)]
    if constant_words:
        console.print(f"same in all jobs: {' '.join(constant_words)}")
    for sentence in grid.conditions.sentences():
        console.print(sentence)
    last_indices = (index for index in reversed(range(grid.size)) if not grid.is_left_out(index))
    for index in dict.fromkeys((*islice(grid, 3), *islice(last_indices, 1))) if table.rows else ():
        values_text = " ".join(f"{key}={value}" for key, value in grid.values(index).items())
        console.print(f"  job {index}: {values_text}")


def final_table(all_jobs: Sequence[JobStatus], record: SweepRecord, directory: Path) -> None:
    """Print the best jobs of a sweep; with several objectives, the Pareto-optimal jobs."""
    if record.modes:
        _pareto_table(all_jobs, record)
        return
    jobs = best_first(all_jobs, record)
    if not jobs:
        return
    jobs += [job for job in all_jobs if job.how == "completed" and job.objective is None]  # not finite, or nothing
    console = Terminal()
    noun, best, num = "trial" if record.is_study else "job", jobs[:_MOST], len(all_jobs)
    columns = {"objective": [job.objective_text or "-" for job in best]}
    if any(job.how != "completed" for job in best):
        columns["state"] = [job.how for job in best]
    title = f"best of {num} {noun}s ({record.mode})" if num > 1 else ""
    console.print(_jobs_table(best, title, columns, noun=noun))
    if len(jobs) > _MOST:
        console.print(f"{len(jobs) - _MOST} more: {command_text('sweep', 'status', directory)}")


def _jobs_table(
    jobs: Sequence[JobStatus], title: str, columns: Mapping[str, Sequence[str]], *, noun: str = "job"
) -> TextTable:
    """Return a table of jobs with their varying values, followed by other columns."""
    keys = list(dict.fromkeys(key for job in jobs for key in job.values))
    table = TextTable(right=(noun, *headings(keys)), title=title)
    for name in columns:
        table.add_column(name, **({} if name in _TEXTS else {"justify": "right", "style": "bold"}))
    for job, *cells in zip(jobs, *columns.values(), strict=True):
        table.add_row(str(job.index), *(short(job.values.get(key, "")) for key in keys), *cells)
    return table


def _pareto_table(jobs: Sequence[JobStatus], record: SweepRecord) -> None:
    optimal_jobs = best_first(jobs, record)
    if not optimal_jobs:
        return
    names = list(optimal_jobs[0].objectives)
    sign = -1 if record.modes[0] == "max" else 1
    optimal_jobs.sort(key=lambda job: sign * next(iter(job.objectives.values())))
    directions = ", ".join(f"{name} {mode}" for name, mode in zip(names, record.modes, strict=True))
    title = f"{len(optimal_jobs)} Pareto-optimal of {len(jobs)} jobs ({directions})"
    columns = {
        name: [f"{list(job.objectives.values())[index]:g}" for job in optimal_jobs] for index, name in enumerate(names)
    }
    Terminal().print(_jobs_table(optimal_jobs, title, columns))


def failure_table(failed: Sequence[Done], directory: Path) -> None:
    """Print the failed jobs of a sweep with their varying values and errors."""
    states = {job.index: job for job in status_of(directory)}
    shown_failures = [done for done in failed if done.index in states][:_MOST]
    texts = (done.error_text for done in shown_failures)
    errors = [text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..." for text in texts]
    title = f"{counted(len(failed), 'job')} did not complete"
    table = _jobs_table([states[done.index] for done in shown_failures], title, {"error": errors})
    if len(failed) > len(shown_failures):
        table.note(f"{len(failed) - len(shown_failures)} more: {command_text('sweep', 'status', directory)}")
    Terminal().print(table)


def failure_message(failed: Sequence[Done], num: int, directory: Path, *, is_fail_fast: bool) -> str:
    """Return the error message of a sweep with failed jobs.

    Args:
        failed: The failed jobs.
        num: The number of all jobs.
        directory: Directory of the sweep.
        is_fail_fast: Whether the first failure has prevented other jobs from starting.
    """
    num_skipped = sum(isinstance(done.error, JobElsewhereError) for done in failed)
    verb = "failed" if num_skipped < len(failed) else "are running in other processes"
    has_output = any((directory / str(done.index) / OUTPUT).exists() for done in failed)
    retry = f"Output: {directory}/<job>/{OUTPUT}; to retry" if has_output else "To retry"  # none with isolate=none
    separator = " raised" if failed[0].is_raised else ":"
    num_missing = sum(job.record is None for job in status_of(directory)) if is_fail_fast else 0
    missing_text = f"; {num_missing} did not start" if num_missing else ""
    unguarded = "; backend=local finds classes of a program that calls main below `if __name__ == '__main__':`"
    hint = unguarded if _UNGUARDED in failed[0].error_text else ""
    options = [KEEP_GOING] if num_missing else []  # else the failed jobs would end it again
    return (
        f"{len(failed)} of {counted(num, 'job')} {verb}{missing_text}; job {failed[0].index}{separator} "
        f"{failed[0].error_text.removesuffix('.')}{hint}. "
        f"{retry}: {command_text('sweep', 'relaunch', directory, *options)}"
    )


def importance_table(jobs: Sequence[JobStatus]) -> TextTable | None:
    """Return a table of the importance of each varying key for each objective; None with too few completed jobs."""
    completed_jobs = [job for job in jobs if job.how == "completed"]
    objectives = [
        dict(job.objectives) if job.objective is None else {"objective": job.objective} for job in completed_jobs
    ]
    names = dict.fromkeys(name for scores in objectives for name in scores)
    columns = {
        name: importances([job.values for job in completed_jobs], [scores.get(name, math.nan) for scores in objectives])
        for name in names
    }
    return importance_rows({name: shares for name, shares in columns.items() if shares})


def importance_rows(columns: Mapping[str, Sequence[Importance]]) -> TextTable | None:
    """Return a table of importances, one column for each objective; None if none is known."""
    rows = next(iter(columns.values()), ())
    if len(rows) < 2 or all(math.isnan(one.share) for one in rows):  # noqa: PLR2004 - a single key explains all
        return None
    title = "importance: share of the objective's rank variance that each key alone explains"
    table = TextTable("key", right=("jobs",), title=title)
    for name in columns:
        table.add_column(name, justify="right", style="bold")
    by_name = [{one.key: one.share for one in shares} for shares in columns.values()]
    for heading, one in zip(headings([one.key for one in rows]), rows, strict=True):
        cells = (shares.get(one.key, math.nan) for shares in by_name)
        table.add_row(heading, str(one.num_jobs), *("-" if math.isnan(share) else f"{share:.0%}" for share in cells))
    return table
