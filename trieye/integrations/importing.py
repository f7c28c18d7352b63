"""Runs of other programs as runs of an app, with their points at the times at which they were made."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np

from trieye.exceptions import ConfigurationError, SerializationError, TrieyeError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord, RunStatus
from trieye.integrations.mlflow_files import FileStore
from trieye.integrations.opening import adopted_config, run_dir_of, safe_name
from trieye.integrations.wandb.offline import OfflineRuns
from trieye.results.event_files import EventDirectories
from trieye.results.loading import load
from trieye.results.mlflow_store import MlflowStore
from trieye.results.runs import LoadedRun, Problems
from trieye.run.run import Run

ORIGIN, WHOLE = "trieye.imported_from", "trieye.imported_points"
"""Tags of an imported run: where it was, and once it is whole how many points it has."""


class Imported(NamedTuple):
    """What became of a run.

    Attributes:
        directory: Of the run here.
        num_metrics, num_points: What it has.
        num_left_out: Points that are NaN or infinite, which a run only counts.
        is_new: Whether it was not here before.
    """

    directory: Path
    num_metrics: int
    num_points: int
    num_left_out: int
    is_new: bool


def _in_event_files(path: Path, problems: Problems) -> list[LoadedRun]:
    runs = _of_source(path, EventDirectories, problems, "a directory with TensorBoard event files below it")
    source = EventDirectories(problems, names_media=True)
    return [replace(run, source=source) for run in runs]


def _in_mlflow(path: Path, problems: Problems) -> list[LoadedRun]:
    if path.is_dir():
        below = next((held for held in (path / "mlruns", path) if list(held.glob("*/*/meta.yaml"))), None)
        if below is not None:
            return FileStore(below, problems).runs()
        databases = sorted(held for held in (path / "mlflow.db", path / "mlruns/mlflow.db") if held.is_file())
        path = databases[0] if databases else path
    return _of_source(path, MlflowStore, problems, "a database such as mlflow.db, or a directory mlruns")


def _in_wandb(path: Path, problems: Problems) -> list[LoadedRun]:
    return OfflineRuns(path, problems).runs()


KINDS: Mapping[str, Callable[[Path, Problems], list[LoadedRun]]] = {
    "tensorboard": _in_event_files,
    "mlflow": _in_mlflow,
    "wandb-offline": _in_wandb,
}


def _of_source(path: Path, source: type, problems: Problems, wanted: str) -> list[LoadedRun]:
    results = load(path)
    for text in results.problems:
        problems.texts.setdefault(text)
    found = [run for run in results.runs if isinstance(run.source, source) and not run.run_id]
    if not found:
        raise ConfigurationError(f"{path}: the runs in it are those of trieye already; give {wanted}")
    return found


def import_runs(
    kind: str, path: Path, *, root: Path = Path(".trieye_data"), app: str | None = None
) -> tuple[list[Imported], list[str]]:
    """Import the runs of another program; one that was interrupted is imported again, one that is whole is left alone.

    Args:
        kind: `tensorboard`, `mlflow` or `wandb-offline`.
        path: Directory of event files, database or directory of MLflow, or directory or file of wandb.
        root: Directory of all apps.
        app: Name of the app; None: that of the other program.

    Returns:
        The imported runs, and what was left out, with the reason.

    Raises:
        ConfigurationError: There is no such path, or no run in it.
    """
    problems, imported = Problems(), list[Imported]()
    for run in runs_at(kind, path, problems):
        try:
            imported.append(import_run(run, root=root, app=app))
        except TrieyeError as error:
            problems.leave_out(run.path, error)
    return imported, list(problems.texts)


def runs_at(kind: str, path: Path, problems: Problems) -> list[LoadedRun]:
    """Return the runs of another program.

    Args:
        kind: One of `KINDS`.
        path: Where they are.
        problems: Takes what cannot be read.

    Raises:
        ConfigurationError: There is no such place, or no run in it.
    """
    if not path.exists():
        raise ConfigurationError(f"there is no {path.absolute()}")
    found = KINDS[kind](path, problems)
    if not found:
        reasons = "".join(f"; {text}" for text in problems.texts)
        raise ConfigurationError(f"{path}: there are no runs in it{reasons}")
    return found


def import_run(found: LoadedRun, *, root: Path, app: str | None) -> Imported:
    """Make a run of what was found; one that was not finished begins anew, and one that is here is left as it is.

    Args:
        found: A run of another program.
        root: Directory of all runs.
        app: Name of the app; None: that of the other program.

    Raises:
        RunLockedError: It is being imported by another process.
    """
    own_app, name = safe_name(app or found.app), safe_name(found.name)
    given = {"root": root, **({"seed": found.seed} if found.seed is not None and found.seed >= 0 else {})}
    record, directory = _place(found, name, own_app, root)
    points = found.source.read([found], None).get(found.path, {})
    num_points = sum(len(series.steps) for series in points.values())
    num_finite = sum(int(np.isfinite(series.values).sum()) for series in points.values())
    made = Imported(directory, len(points), num_finite, num_points - num_finite, is_new=True)
    if record is not None and record.tags.get(WHOLE) == str(num_points):
        return made._replace(is_new=False)
    status = found.status if found.status in get_args(RunStatus) and found.status != "RUNNING" else ""
    run = Run(adopted_config(directory.name, own_app, {**given, "description": f"imported from {found.path}"})).open()
    try:
        run.set_tags({ORIGIN: found.path})
        run.log_params(found.params)
        if record is not None:
            run.supersede(0)
        for metric, series in points.items():
            _log(run, metric, series)
        run.flush()
        run.set_tags({WHOLE: str(num_points)})
    except BaseException:
        run.close("FAILED")
        raise
    run.close(cast("RunStatus", status or ("KILLED" if found.status == "RUNNING" else "FINISHED")))
    _date(directory, found.created)
    return made


def _place(found: LoadedRun, name: str, app: str, root: Path) -> tuple[RunRecord | None, Path]:
    """Return the first directory of that name, or with a number, that is free or has this run, and its record."""
    for number in count(1):
        directory = run_dir_of(name if number == 1 else f"{name}-{number}", app=app, root=root)
        record = _record(directory)
        if record is None or record.tags.get(ORIGIN) == found.path:
            return record, directory
    raise AssertionError("there are names without end")


def _record(directory: Path) -> RunRecord | None:
    try:
        return RunRecord.read(directory / RUN_RECORD)
    except SerializationError:
        return RunRecord(app_name="unknown", run_name="unknown")  # somebody's, and not to be touched


def _log(run: Run, metric: str, series: Any) -> None:
    rows = zip(series.steps.tolist(), series.values.tolist(), series.times.tolist(), strict=True)
    for step, value, time in rows:
        run.log(metric, value, step=step, wall_time=None if math.isnan(time) else time)


def _date(directory: Path, created: float) -> None:
    """Let the record say when the run was begun, not when it was imported."""
    path = directory / RUN_RECORD
    record = RunRecord.read(path)
    if record is not None and math.isfinite(created):
        record.created = created
        record.save(path)
