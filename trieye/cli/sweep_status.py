"""`trieye sweep status`: show the state of each job of a sweep."""

import argparse
import platform
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trieye.cli.arguments import sweep_directory
from trieye.cli.output import Parts, show
from trieye.exceptions import ConfigurationError
from trieye.process.text import command_text, counted

if TYPE_CHECKING:
    from trieye.process.terminal import TextTable
    from trieye.sweeps.jobs import JobRecord
    from trieye.sweeps.record import SweepRecord
    from trieye.sweeps.status import JobStatus

UNFINISHED = ("failed", "incomplete", "missing")

_COLORS = {
    "completed": "cyan", "running": "green", "unknown": "green", "failed": "red", "pruned": "magenta",
    "incomplete": "yellow", "removed": "yellow", "missing": "", "waiting": "",
}  # fmt: skip
_NOTES = {
    "unknown": "last seen on another machine; `trieye sweep relaunch` waits for its heartbeat",
    "removed": "its run was deleted; `trieye sweep relaunch --only removed` reruns the job",
}
_LONGEST = 80
_UNFOLDED = 10_000


def print_status(options: argparse.Namespace) -> int:
    """Show the jobs of a sweep; return 0 if all are completed or pruned."""
    from trieye.sweeps.record import SweepRecord
    from trieye.sweeps.status import HOWS, pareto_optimal_jobs, status_of

    directory = sweep_directory(options.dir)
    record, jobs = SweepRecord.of(directory), status_of(directory)
    modes = record.modes
    counts, optimal_jobs = Counter(job.how for job in jobs), pareto_optimal_jobs(jobs, modes) if modes else []

    def parts() -> Parts:
        from trieye.process.terminal import Text

        yield from tables_of(jobs)
        summary = (Text(f"{counts[how]} {how}", _COLORS[how]) for how in HOWS if counts[how])
        yield Text(f"{counted(len(jobs), 'job')}: ").append_text(Text(", ").join(summary))
        if optimal_jobs:
            plural = "s" if len(optimal_jobs) > 1 else ""
            yield f"Pareto-optimal ({', '.join(modes)}): job{plural} {', '.join(map(str, optimal_jobs))}"
        if counts.keys() & set(UNFINISHED):
            yield _advice(record, directory)

    document = {"sweep": directory, "counts": counts, "modes": modes, "pareto_optimal": optimal_jobs}
    show(options, "sweep.status", {**document, "jobs": [_row(job) for job in jobs]}, parts())
    return 0 if counts["completed"] + counts["pruned"] == len(jobs) else 1


def _advice(record: "SweepRecord", directory: Path) -> str:
    from trieye.process.identity import ProcessIdentity
    from trieye.sweeps.record import KEEP_GOING, lock_in

    try:
        record.at(directory)
    except ConfigurationError as error:  # a copy
        return str(error)
    holder = lock_in(directory).holder()  # trying the lock itself could make a sweep fail that starts now
    if holder is not None and ProcessIdentity.of_mapping(holder).liveness != "dead":
        return f"process {holder.get('pid')} is running the sweep, and starts the jobs that are left"
    is_fail_fast = "hydra.launcher.fail_fast=true" in record.own  # else a failed job would end the sweep again
    options = [KEEP_GOING] if is_fail_fast else []
    return f"run unfinished jobs: {command_text('sweep', 'relaunch', directory, *options)}"


def tables_of(jobs: "Sequence[JobStatus]") -> Parts:
    """Yield a table of jobs; on a narrow terminal, their errors and notes are lines below it."""
    from trieye.process.terminal import Terminal

    console, notes = Terminal(), {job.index: note for job in jobs if (note := _note(job))}
    table = _table(jobs, notes)
    if not notes or console.measure(table, options=console.options.update(width=_UNFOLDED)).maximum <= console.width:
        yield table
        return
    yield _table(jobs, {})
    for index, note in notes.items():
        yield f"job {index}: {note}"


def _row(job: "JobStatus") -> dict[str, Any]:
    record = job.record
    return {
        "index": job.index,
        "state": job.how,
        "values": dict(job.values),
        "objective": job.objective,
        "objectives": dict(job.objectives),
        "has_checkpoint": job.has_checkpoint,
        "step": record.step if record else None,
        "attempt": record.attempt if record else 0,
        "host": record.host if record else None,
        "heartbeat": record.heartbeat if record else None,
        "error": job.problem or (record.error if record else None),
        "reason": job.reason,
    }


def _note(job: "JobStatus") -> str:
    """Return the error of a job, or a note on its state; an empty string if there is none."""
    if job.problem or job.record is None:
        note = job.problem or job.reason or ""
    elif job.how == "running" and job.record.host == platform.node():
        note = f"last heartbeat {max(time.time() - job.record.heartbeat, 0):.0f} s ago"
    elif job.how == "incomplete":
        note = "resumes from its checkpoint" if job.has_checkpoint else "restarts in the same directory"
    else:
        note = " ".join((_NOTES.get(job.how) or job.record.error or job.reason or "").split())
    return note if len(note) <= _LONGEST else f"{note[:_LONGEST]} ..."


def _took_s(job: "JobStatus", record: "JobRecord") -> float:
    is_here = job.how == "running" and record.host == platform.node()
    return max(time.time() - record.started, 0.0) if is_here else record.took_s


def _table(jobs: "Sequence[JobStatus]", notes: dict[int, str]) -> "TextTable":
    from trieye.process.terminal import Text, TextTable
    from trieye.sweeps.grid import headings, short

    keys = list(dict.fromkeys(key for job in jobs for key in job.values))
    records = [job.record for job in jobs if job.record is not None]
    hosts = ["host"] if any(record.host != platform.node() for record in records) else []
    steps = ["step"] if any(record.step is not None for record in records) else []  # of runs of trieye
    note_column = [""] if notes else []
    table = TextTable()
    widths = {"state": max((len(job.how) for job in jobs), default=0)}
    widths["host"] = max((len(record.host) for record in records), default=0)
    for name in ("job", "state", *headings(keys), *steps, "objective", "attempt", "time", *hosts, *note_column):
        side: Any = "left" if name in ("state", "host", "") else "right"
        table.add_column(name, justify=side, min_width=widths.get(name))
    for job in jobs:
        record = job.record
        step = "" if record is None or record.step is None else f"{record.step:,}"
        table.add_row(
            str(job.index),
            Text(job.how, style=_COLORS[job.how]),
            *(short(job.values.get(key, "")) for key in keys),
            *([step] if steps else []),
            job.objective_text,
            "" if record is None else str(record.attempt),
            "" if record is None else f"{_took_s(job, record):.0f} s",
            *(["" if record is None else record.host] if hosts else []),
            *([notes.get(job.index, "")] if notes else []),
        )
    return table
