"""Summary of a sweep in its parent MLflow run."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trieye.config import TrieyeConfig
from trieye.exceptions import TrieyeError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord
from trieye.process.progress import say
from trieye.run.table import table
from trieye.sweeps.jobs import RUN
from trieye.sweeps.record import SweepRecord
from trieye.sweeps.status import JobStatus, best_first

_MOST_NOTED = 30


def show_in_mlflow(directory: Path, record: SweepRecord, jobs: Sequence[JobStatus]) -> None:
    """Log a summary of the sweep to the parent MLflow run of its jobs, if any.

    Errors of MLflow are only reported, since the sweep does not depend on the summary.

    Args:
        directory: Directory of the sweep.
        record: The sweep.
        jobs: Its jobs.
    """
    runs = {job.index: _run_record(directory, job.index) for job in jobs if job.record is not None}
    run_ids = {index: run.mlflow_run_id for index, run in runs.items() if run is not None}
    first = next((index for index, run_id in run_ids.items() if run_id and _is_of(directory, runs[index])), None)
    if first is None:
        return
    try:
        config = TrieyeConfig.of_run((directory / str(first) / RUN).resolve())
        if not config.sinks.mlflow.enabled:
            return
        from trieye.sinks.mlflow.run import describe_sweep

        uri, run_id = config.persistence.MLFLOW_TRACKING_URI, run_ids[first]
        counts = Counter(job.how for job in jobs)
        metrics = {f"jobs/{how}": float(number) for how, number in counts.items()}
        if "objective" in record.summary:
            metrics["best_objective"] = float(record.summary["objective"])
        describe_sweep(
            uri,
            str(run_id),
            params=_axes(jobs),
            metrics=metrics,
            table=table("jobs", _columns(jobs, run_ids), step=0, time=time.time()).json,
            note=_note(jobs, record),
        )
    except (TrieyeError, OSError, ValueError) as error:
        say(f"sweep: {error}")


def _is_of(directory: Path, run: RunRecord | None) -> bool:
    """Return whether this sweep, not a sweep that it is a copy of, last started a run."""
    return run is not None and run.group is not None and Path(run.group).resolve() == directory.resolve()


def _run_record(directory: Path, index: int) -> RunRecord | None:
    try:
        return RunRecord.read(directory / str(index) / RUN / RUN_RECORD)
    except (TrieyeError, OSError):
        return None


def _axes(jobs: Sequence[JobStatus]) -> dict[str, str]:
    keys = dict.fromkeys(key for job in jobs for key in job.values)
    return {key: ", ".join(dict.fromkeys(job.values[key] for job in jobs if key in job.values)) for key in keys}


def _columns(jobs: Sequence[JobStatus], members: dict[int, str | None]) -> dict[str, list[str | float | int | None]]:
    names = dict.fromkeys(name for job in jobs for name in job.objectives)
    keys = dict.fromkeys(key for job in jobs for key in job.values)
    return {
        "job": [job.index for job in jobs],
        "state": [job.how for job in jobs],
        **{key: [job.values.get(key) for job in jobs] for key in keys},
        "objective": [job.objective for job in jobs],
        **{name: [job.objectives.get(name) for job in jobs] for name in names},
        "run": [members.get(job.index) for job in jobs],
    }


def _note(jobs: Sequence[JobStatus], record: SweepRecord) -> str:
    keys = list(dict.fromkeys(key for job in jobs for key in job.values))
    ranked_jobs = best_first(jobs, record)
    counts = ", ".join(f"{number} {how}" for how, number in Counter(job.how for job in jobs).items())
    lines = [
        f"{len(jobs)} jobs: {counts}",
        "",
        f"| job | {' | '.join(keys)} | objective |",
        "|" + " --- |" * (len(keys) + 2),
    ]
    for job in ranked_jobs[:_MOST_NOTED]:
        cells = [str(job.index), *(job.values.get(key, "").replace("|", r"\|") for key in keys), job.objective_text]
        lines.append(f"| {' | '.join(cells)} |")
    if len(ranked_jobs) > _MOST_NOTED:
        lines += ["", f"and {len(ranked_jobs) - _MOST_NOTED} more, in jobs.json"]
    return "\n".join(lines)
