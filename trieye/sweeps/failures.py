"""The end of a sweep with failed jobs: their table, and the error message."""

from collections.abc import Sequence
from pathlib import Path

from trieye.process.terminal import Terminal, TextTable
from trieye.process.text import counted
from trieye.sweeps.grid import short
from trieye.sweeps.jobs import OUTPUT, Done, JobElsewhereError
from trieye.sweeps.record import KEEP_GOING
from trieye.sweeps.report import headings
from trieye.sweeps.status import status_of

_MAX_ROWS = 10
_LONGEST = 120
_UNGUARDED = """Error locating target '__main__."""  # Hydra's message


def failure_table(failed: Sequence[Done], directory: Path) -> None:
    """Print the failed jobs of a sweep with their varying values and errors."""
    states = {job.index: job for job in status_of(directory)}
    shown = [(done, states[done.index]) for done in failed if done.index in states][:_MAX_ROWS]
    keys = list(dict.fromkeys(key for _, job in shown for key in job.values))
    table = TextTable(right=("job", *headings(keys)), title=f"{counted(len(failed), 'job')} did not complete")
    table.add_column("error")
    for done, job in shown:
        error = done.error_text if len(done.error_text) <= _LONGEST else f"{done.error_text[:_LONGEST]} ..."
        table.add_row(str(done.index), *(short(job.values.get(key, "")) for key in keys), error)
    if len(failed) > len(shown):
        table.note(f"{len(failed) - len(shown)} more: trieye sweep status {directory}")
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
    raised = " raised" if failed[0].is_raised else ":"
    num_missing = sum(job.record is None for job in status_of(directory)) if is_fail_fast else 0
    missing = f"; {num_missing} did not start" if num_missing else ""
    unguarded = "; backend=local finds classes of a program that calls main below `if __name__ == '__main__':`"
    hint = unguarded if _UNGUARDED in failed[0].error_text else ""
    option = f" {KEEP_GOING}" if num_missing else ""  # else the failed jobs would end it again
    return (
        f"{len(failed)} of {counted(num, 'job')} {verb}{missing}; job {failed[0].index}{raised} "
        f"{failed[0].error_text.removesuffix('.')}{hint}. "
        f"{retry}: trieye sweep relaunch {directory}{option}"
    )
