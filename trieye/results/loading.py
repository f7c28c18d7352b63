"""load: find the runs of trieye and other programs at paths and MLflow addresses."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

from trieye.config.base import did_you_mean
from trieye.config.hydra.override_text import bare
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.run_files import RUN_RECORD
from trieye.process.text import counted
from trieye.results.event_files import OF_ADD_HPARAMS, EventDirectories, event_files
from trieye.results.exported import ExportedRuns
from trieye.results.job_directories import HYDRA, JobDirectories, output_dir_of, overrides_of, program_of
from trieye.results.mlflow_files import FileStore, is_file_store
from trieye.results.mlflow_store import MlflowStore, is_sqlite
from trieye.results.results import Results
from trieye.results.run_directories import RunDirectories
from trieye.results.runs import LoadedRun, PointReader, Problems, is_seed, listed
from trieye.runs.finding import has_file
from trieye.sinks.mlflow.store import database_of
from trieye.sweeps.grid import Grid
from trieye.sweeps.jobs import RUN
from trieye.sweeps.record import SWEEP, SweepRecord

Place = str | PathLike[str]

_MAX_DEPTH, _MAX_SHOWN = 6, 5
_MULTIRUN = "multirun.yaml"
"""File of Hydra's sweepers in the directory of a sweep."""

_PREFERENCE = (RunDirectories, JobDirectories, EventDirectories, ExportedRuns, MlflowStore, FileStore)
"""Of several sources with the same run, the first counts; MLflow also has superseded points."""

_ARCHIVES = {".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z"}
_RUNS = "runs"
_NEVER = {"mlruns", "checkpoints", "buffers", "node_modules"}
"""Directories that contain many files but no runs."""


def load(places: Place | Iterable[Place]) -> Results:
    """Find runs and read their records; points are read on demand.

    Args:
        places: The directory of a run, an app, all apps or a sweep; a TensorBoard log directory; an SQLite database of
            MLflow, as a path or as `sqlite:///mlflow.db`; a Parquet file of `Results.export`; or several of these. A
            run found twice counts once.

    Returns:
        The runs; damaged runs and unrelated directories are skipped and reported in `problems`.

    Raises:
        ConfigurationError: A path does not exist or contains no run.
    """
    search = _Search()
    for location in [places] if isinstance(places, str | PathLike) else places:
        search.add(location)
    return Results.of(search.runs(), problems=search.problems, sweeps=search.sweeps)


class _Search:
    """Collects the runs of several paths."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.sweeps: dict[str, frozenset[int]] = {}
        self._homes: dict[Path, RunDirectories] = {}
        self._jobs, self._events = JobDirectories(self.problems), EventDirectories(self.problems)
        self._exported_sweeps: dict[str, str] = {}
        self._hydra_sweeps: dict[Path, tuple[str, dict[Path, dict[str, str]]]] = {}  # program and overrides of each job
        self._runs: list[LoadedRun] = []
        self._seen: set[str] = set()
        self._named: set[str] = set()

    def runs(self) -> list[LoadedRun]:
        """Return each run once, from its preferred source."""
        sources: dict[Hashable, PointReader] = {}
        for run in sorted(self._runs, key=lambda run: _PREFERENCE.index(type(run.source))):
            sources.setdefault(run.key, run.source)
        preferred_runs = {
            run.path: replace(run, is_named=run.is_named or str(Path(run.path).resolve()) in self._named)
            for run in self._runs
            if isinstance(run.source, RunDirectories) or run.source is sources[run.key]
        }
        return list(preferred_runs.values())

    def add(self, location: Place) -> None:
        """Add the runs at a location."""
        path, num_before = _path_of(location), len(self._runs)
        self._named.add(str((path.parent if path.name == RUN_RECORD or "tfevents" in path.name else path).resolve()))
        if path.is_file():
            self._add_file(path)
        elif not self._walk(path, path):
            raise ConfigurationError(
                f"{location}: no runs found; a trieye run has a {RUN_RECORD}, a sweep has a {SWEEP}, and a run of "
                f"another program has TensorBoard event files, or {HYDRA} and TensorBoard, MLflow or CSV files (return "
                f"values are only recorded with hydra/launcher=trieye){_databases_in(path)}"
            )
        self._runs[num_before:] = [replace(run, place=str(location)) for run in self._runs[num_before:]]

    def _add_file(self, path: Path) -> None:
        if "tfevents" in path.name:
            self._runs.append(self._events.run(path.parent, path.parent))
        elif path.name in {RUN_RECORD, SWEEP}:
            self._walk(path.parent, path.parent)
        elif path.suffix.lower() == ".parquet":
            exported_runs = ExportedRuns(path, self.problems, self._exported_sweeps)
            self._runs += exported_runs.runs()
            self.sweeps |= exported_runs.sweeps
        elif path.suffix.lower() in _ARCHIVES:
            raise ConfigurationError(f"{path}: runs in archives cannot be read; extract it and pass its directory")
        else:
            self._runs += MlflowStore(path, self.problems).runs()

    def _walk(self, directory: Path, root: Path, depth: int = 0) -> bool:
        """Add the runs in and below a directory; return whether it contains runs or files of runs."""
        real_dir = directory.resolve()
        if str(real_dir) in self._seen:
            return True
        self._seen.add(str(real_dir))
        if (is_run := has_file(real_dir, RUN_RECORD)) is not False:
            parent = real_dir.parent
            if is_run:
                self._keep(self._reader_of(parent.parent if parent.name == _RUNS else parent).run(real_dir))
            else:
                self.problems.note(directory, "skipped: it cannot be read: Permission denied")
            return True
        if (directory / SWEEP).is_file():
            self._add_sweep(directory)
            return True
        if (directory / HYDRA).is_dir() and self._add_hydra_job(directory, root):
            return True
        if is_file_store(directory):
            self._runs += FileStore(directory, self.problems).runs()
            return True
        has_events = bool(event_files(directory))
        if has_events:
            self._runs.append(self._events.run(directory, root))
        return self._walk_below(directory, root, depth, has_events=has_events)

    def _walk_below(self, directory: Path, root: Path, depth: int, *, has_events: bool) -> bool:
        """Add the runs below a directory; return whether it contains runs or files of runs."""
        subdirs = [
            path for path in _directories_in(directory) if not (has_events and OF_ADD_HPARAMS.fullmatch(path.name))
        ]
        if subdirs and depth == _MAX_DEPTH:
            limit = f"directories more than {_MAX_DEPTH} levels below"
            self.problems.note(root, f"skipped: {limit}; to load their runs, pass them as well")
            return True
        foreign_dirs = [path for path in subdirs if not self._walk(path, root, depth + 1)]
        has_runs = has_events or len(foreign_dirs) < len(subdirs)
        if (has_runs and not has_events) or directory.name == _RUNS:
            for path in foreign_dirs:
                self.problems.note(path, f"skipped: no {RUN_RECORD}, {SWEEP} or event files")
        return has_runs

    def _add_hydra_job(self, directory: Path, root: Path) -> bool:
        """Add a job of a Hydra program without trieye; return whether it has points."""
        sweep = next((parent for parent in directory.parents[:_MAX_DEPTH] if (parent / _MULTIRUN).is_file()), None)
        if sweep is None:
            name = directory.name if directory == root else directory.relative_to(root).as_posix()
            return self._keep(self._jobs.run(directory, program_of(directory), name))
        if sweep not in self._hydra_sweeps:
            overrides = {path.parent: overrides_of(path.parent) for path in sweep.glob(f"**/{HYDRA}")}
            self._hydra_sweeps[sweep] = program_of(directory), overrides
        app, jobs = self._hydra_sweeps[sweep]
        varied = {
            key: value
            for key, value in jobs[directory].items()
            if any(other.get(key) != value for other in jobs.values())
        }
        home, name = str(sweep.resolve()), f"{sweep.resolve().name}/{directory.relative_to(sweep).as_posix()}"
        index = int(directory.name) if directory.name.isdecimal() else None
        return self._keep(self._jobs.run(directory, app, name, sweep=home, index=index, varied=varied))

    def _reader_of(self, home: Path) -> RunDirectories:
        return self._homes.setdefault(home, RunDirectories(home, self.problems))

    def _keep(self, run: LoadedRun | None) -> bool:
        self._runs += [] if run is None else [run]
        return run is not None

    def _add_sweep(self, directory: Path) -> None:
        sweep = self._record_of(directory)
        grid = None if sweep.grid is None else sweep.the_grid()
        directory = directory.resolve()
        self.sweeps[str(directory)] = frozenset() if grid is None else seeds_of(grid)
        app, empty_jobs, num_before = "", list[str](), len(self._runs)
        for index in sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal()):
            job_dir = directory / str(index)
            link = job_dir / RUN
            if link.is_symlink() and not link.exists():
                self.problems.note(link, f"skipped: the run of job {index} no longer exists at the target of the link")
                continue
            varied_values: Mapping[str, str] = {}
            if grid is not None:
                varied_values = grid.values(index) if index < grid.size else {}
            elif (record := self._jobs.record(job_dir)) is not None:
                varied_values = record.values(sweep.varying)
            if has_file(link, RUN_RECORD):
                run_dir = link.resolve()
                self._seen.add(str(run_dir))
                # a recorded "max" may be the default of a program whose Hydra config has no `loop`
                mode = "min" if sweep.mode == "min" else None
                self._keep(self._reader_of(directory).run(run_dir, job=index, varied=varied_values, mode=mode))
                continue
            app, name = app or program_of(output_dir_of(job_dir)), f"{directory.name}/{index}"
            modes, home = sweep.modes or [sweep.mode] * bool(sweep.mode), str(directory)
            run = self._jobs.run(job_dir, app, name, sweep=home, index=index, varied=varied_values, modes=modes)
            record = None if self._keep(run) else self._jobs.record(job_dir)
            empty_jobs += [str(index)] if record is not None and record.state == "completed" else []
        if grid is not None:
            runs = (replace(run, planned_seeds=_planned_seeds(grid, run.job)) for run in self._runs[num_before:])
            self._runs[num_before:] = runs
        if empty_jobs and self._runs:
            jobs = f"{counted(len(empty_jobs), 'completed job')} ({listed(empty_jobs, _MAX_SHOWN)})"
            self.problems.note(directory, f"{jobs} returned no number and wrote no metrics")

    def _record_of(self, directory: Path) -> SweepRecord:
        try:
            return SweepRecord.of(directory)
        except SerializationError as error:
            self.problems.note(directory, f"its varying keys are unknown: {error}")
            return SweepRecord(spec=[], mode="")


def seeds_of(grid: Grid) -> frozenset[int]:
    """Return the seeds of all jobs of a sweep, including jobs that never started."""
    return frozenset(
        int(value)
        for axis in grid.axes
        for values in axis.places
        for key, value in zip(axis.keys, values, strict=True)
        if _is_seed(key, value)
    )


def _planned_seeds(grid: Grid, index: int | None) -> frozenset[int] | None:
    """Return the seeds of the jobs that differ from this one only by their seed; None: all seeds of the grid."""
    has_zipped_seed = any(len(axis.keys) > 1 and any(map(is_seed, map(bare, axis.keys))) for axis in grid.axes)
    is_product = not grid.without and not grid.conditions and not has_zipped_seed
    if is_product or index is None or index >= grid.size:
        return None
    other_values = {key: value for key, value in grid.values(index).items() if not is_seed(key)}
    job_values = (grid.values(job_index) for job_index in grid.find(other_values))
    return frozenset(int(value) for values in job_values for key, value in values.items() if _is_seed(key, value))


def _is_seed(key: str, value: str) -> bool:
    return is_seed(bare(key)) and value.lstrip("-").isdecimal()


def _path_of(location: Place) -> Path:
    text = str(location)
    if "://" in text or text.startswith("sqlite:"):
        path = database_of(text)
        if path is None:
            raise ConfigurationError(
                f"{text}: only SQLite stores of MLflow can be read, as sqlite:///mlflow.db; for other stores pass the "
                "run directories"
            )
    else:
        path = Path(text).expanduser()
    if not path.exists():
        parent = path.absolute().parent
        hint = did_you_mean(path.name, [entry.name for entry in parent.iterdir()] if parent.is_dir() else [])
        raise ConfigurationError(f"{text}: no such file or directory{hint}")
    return path


def _directories_in(directory: Path) -> Iterator[Path]:
    try:
        entries = sorted(directory.iterdir())
    except OSError:
        return
    for path in entries:
        if path.is_dir() and not path.name.startswith(".") and path.name not in _NEVER:
            yield path


def _databases_in(directory: Path) -> str:
    databases = [path for path in sorted(directory.glob("**/*.db")) if is_sqlite(path)]
    return f"; to load its MLflow runs, pass sqlite:///{databases[0].absolute()}" if databases else ""
