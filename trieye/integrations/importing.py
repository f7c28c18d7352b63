"""Import of foreign runs from TensorBoard, MLflow and wandb; points retain their original times."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple, cast, get_args

import numpy as np

from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.files.run_files import RUN_RECORD
from trieye.files.run_record import RunRecord, RunStatus
from trieye.integrations.opening import adopted_config, run_dir_of, safe_name
from trieye.integrations.wandb.offline import OfflineRuns
from trieye.results.event_files import EventDirectories
from trieye.results.job_directories import JobDirectories
from trieye.results.loading import load
from trieye.results.mlflow_files import FileStore
from trieye.results.mlflow_store import MlflowStore
from trieye.results.runs import LoadedRun, Points, Problems, Series, is_seed
from trieye.run.media import LAST_S
from trieye.run.run import Run
from trieye.stats.aggregator import MAX_STEP

ORIGIN, WHOLE = "trieye.imported_from", "trieye.imported_points"
"""Tags of an imported run: the resolved path of the original, and the number of points once the import is complete."""

_SQLITE = "sqlite:///"


class Imported(NamedTuple):
    """Outcome of the import of one run.

    Attributes:
        directory: Directory of the imported run.
        num_metrics, num_points: Number of imported metrics and finite points.
        num_left_out: Number of NaN and infinite points, which a run counts but does not store.
        is_new: False if an earlier import was already complete.
    """

    directory: Path
    num_metrics: int
    num_points: int
    num_left_out: int
    is_new: bool


def _in_event_files(path: Path, problems: Problems) -> list[LoadedRun]:
    description = "a directory with TensorBoard event files below it"
    runs = _of_source(path, (EventDirectories, JobDirectories), problems, description)
    source = EventDirectories(problems, names_media=True)
    return [replace(run, source=source) if isinstance(run.source, EventDirectories) else run for run in runs]


def _in_mlflow(path: Path, problems: Problems) -> list[LoadedRun]:
    if path.is_dir():
        store = next((folder for folder in (path / "mlruns", path) if list(folder.glob("*/*/meta.yaml"))), None)
        if store is not None:
            return FileStore(store, problems).runs()
        databases = sorted(file for file in (path / "mlflow.db", path / "mlruns/mlflow.db") if file.is_file())
        path = databases[0] if databases else path
    return _of_source(path, MlflowStore, problems, "a database such as mlflow.db, or a directory mlruns")


KINDS: Mapping[str, Callable[[Path, Problems], list[LoadedRun]]] = {
    "tensorboard": _in_event_files,
    "mlflow": _in_mlflow,
    "wandb-offline": lambda path, problems: OfflineRuns(path, problems).runs(),
}


def _of_source(path: Path, source: type | tuple[type, ...], problems: Problems, description: str) -> list[LoadedRun]:
    results = load(path)
    for text in results.problems:
        problems.texts.setdefault(text)
    foreign = [run for run in results.runs if isinstance(run.source, source) and not run.run_id]
    if not foreign:
        raise ConfigurationError(f"{path}: contains only trieye runs; expected {description}")
    return foreign


def import_runs(
    kind: str, path: Path, *, root: Path = Path(".trieye_data"), app: str | None = None
) -> tuple[list[Imported], list[str]]:
    """Import the runs of another logger; incomplete imports restart, and complete imports are skipped.

    Args:
        kind: `tensorboard`, `mlflow` or `wandb-offline`.
        path: Directory of event files, MLflow database or directory, or wandb directory or file.
        root: Directory of all apps.
        app: Name of the app; None: the app or project of each foreign run.

    Returns:
        The imported runs, and messages about skipped data.

    Raises:
        ConfigurationError: The path does not exist or contains no run.
    """
    problems, imported_runs = Problems(), list[Imported]()
    for run in runs_at(kind, path, problems):
        try:
            imported_runs.append(import_run(run, root=root, app=app, problems=problems))
        except TrieyeError as error:
            problems.leave_out(run.path, error)
    return imported_runs, list(problems.texts)


def runs_at(kind: str, path: Path, problems: Problems) -> list[LoadedRun]:
    """Return the runs of another logger.

    Args:
        kind: One of `KINDS`.
        path: File or directory of the runs.
        problems: Collects a message for each unreadable file.

    Raises:
        ConfigurationError: The path does not exist or contains no run.
    """
    if not path.exists():
        raise ConfigurationError(f"{path.absolute()} does not exist")
    runs = KINDS[kind](path, problems)
    if not runs:
        reasons = "".join(f"; {text}" for text in problems.texts)
        raise ConfigurationError(f"{path}: contains no {kind} runs{reasons}")
    return runs


def import_run(foreign: LoadedRun, *, root: Path, app: str | None, problems: Problems) -> Imported:
    """Import a run; an incomplete import restarts from scratch, and a complete one is left unchanged.

    Args:
        foreign: A run of another logger.
        root: Directory of all runs.
        app: Name of the app; None: the app or project of the foreign run.
        problems: Collects messages about invalid steps and times.

    Raises:
        RunLockedError: Another process is importing the run.
        SerializationError: The record of a run with the same name cannot be read.
    """
    own_app, name = safe_name(app or foreign.app), safe_name(foreign.name)
    settings = {"root": root, **({"seed": foreign.seed} if foreign.seed is not None and foreign.seed >= 0 else {})}
    record, directory = _target(foreign, name, own_app, root)
    points = _valid(foreign.source.read([foreign], None).get(foreign.path, {}), foreign.path, problems)
    num_points = sum(len(series.steps) for series in points.values())
    num_finite = sum(int(np.isfinite(series.values).sum()) for series in points.values())
    imported = Imported(directory, len(points), num_finite, num_points - num_finite, is_new=True)
    if record is not None and record.tags.get(WHOLE) == str(num_points):
        return imported._replace(is_new=False)
    status = {"RUNNING": "KILLED"}.get(foreign.status, foreign.status)
    config_items = {**settings, "description": f"imported from {foreign.path}"}
    with Run(adopted_config(directory.name, own_app, config_items)) as run:
        tags = {key.removeprefix("tags."): text for key, text in foreign.tags.items()}
        run.set_tags({**tags, ORIGIN: _origin(foreign)})
        has_seed = foreign.seed is None or any(map(is_seed, foreign.params))
        run.log_params(foreign.params if has_seed else {**foreign.params, "seed": foreign.seed})
        if record is not None:
            run.supersede(0)
        for metric, series in points.items():
            rows = zip(series.steps.tolist(), series.values.tolist(), series.times.tolist(), strict=True)
            for step, value, time in rows:
                run.log(metric, value, step=step, wall_time=None if math.isnan(time) else time)
        run.flush()
        run.set_tags({WHOLE: str(num_points)})
        run.close(cast("RunStatus", status if status in get_args(RunStatus) else "FINISHED"))
    _date(directory, foreign.created)
    return imported


def _valid(points: Points, path: str, problems: Problems) -> Points:
    """Return the points whose step a run accepts, with NaN for times that it rejects; both are reported."""
    valid_points, num_steps, num_times = dict[str, Series](), 0, 0
    for metric, (steps, values, times) in points.items():
        is_step, is_time = (steps >= -MAX_STEP) & (steps <= MAX_STEP), (times >= 0) & (times <= LAST_S)
        valid_points[metric] = Series(steps[is_step], values[is_step], np.where(is_time, times, math.nan)[is_step])
        num_steps += int((~is_step).sum())
        num_times += int((~is_time & ~np.isnan(times)).sum())
    if num_steps:
        problems.note(path, f"left out {num_steps:,} points: a step must be within +-2**62")
    if num_times:
        problems.note(path, f"{num_times:,} points have no valid Unix time in seconds; they get the time of the import")
    return valid_points


def _target(foreign: LoadedRun, name: str, app: str, root: Path) -> tuple[RunRecord | None, Path]:
    """Return the first of `name`, `name-2`, ... that is unused or holds this run, with its record."""
    names = (name if index == 1 else f"{name}-{index}" for index in count(1))
    directories = (run_dir_of(each, app=app, root=root) for each in names)
    candidates = ((RunRecord.read(directory / RUN_RECORD), directory) for directory in directories)
    return next(item for item in candidates if item[0] is None or _is_import(item[0], foreign))


def _origin(foreign: LoadedRun) -> str:
    scheme = _SQLITE if foreign.path.startswith(_SQLITE) else ""
    return f"{scheme}{Path(foreign.path.removeprefix(scheme)).resolve()}"


def _is_import(record: RunRecord, foreign: LoadedRun) -> bool:
    """Return whether a run was imported from `foreign`, perhaps before it was moved."""
    origin = record.tags.get(ORIGIN)
    if origin is None or origin == _origin(foreign):
        return origin is not None
    has_same_start = (Path(origin).name, record.created) == (Path(foreign.path).name, foreign.created)
    return has_same_start and not Path(origin).exists()


def _date(directory: Path, created_at: float) -> None:
    """Set the creation time in the record to the start of the original run."""
    path = directory / RUN_RECORD
    record = RunRecord.read(path)
    if record is not None and 0 <= created_at <= LAST_S:
        record.created = created_at
        record.save(path)
