"""load: from a path, an address or several of them to the runs that are there, of whatever program."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.run_files import RUN_RECORD
from trieye.results.event_files import OF_ADD_HPARAMS, EventDirectories, event_files
from trieye.results.mlflow_store import MlflowStore
from trieye.results.results import Results
from trieye.results.run_directories import RunDirectories
from trieye.results.runs import LoadedRun, Problems, is_seed
from trieye.sinks.mlflow.store import database_of
from trieye.sweeps.grid import Grid, bare
from trieye.sweeps.jobs import RUN, JobRecord
from trieye.sweeps.record import SWEEP, SweepRecord

Place = str | PathLike[str]

_SQLITE = b"SQLite format 3\0"
_MAX_DEPTH = 6
_RUNS = "runs"
_NEVER = {"mlruns", "checkpoints", "buffers", "node_modules"}
"""Directories that hold no runs, and many files."""


def load(places: Place | Iterable[Place]) -> Results:
    """Find runs, and read what they are, not their points: those are read when they are asked for.

    Args:
        places: The directory of a run, an app, all apps or a sweep; a TensorBoard log directory; an SQLite database of
            MLflow, as a path or as `sqlite:///mlflow.db`; or several of these. A run that is found twice counts once.

    Returns:
        The runs; what is damaged or foreign is left out, and named in `problems`.

    Raises:
        ConfigurationError: There is no such place, or no run is in it.
    """
    given = [places] if isinstance(places, str | PathLike) else list(places)
    found = _Found()
    for place in given:
        found.add(place)
    return Results.of(found.runs(), problems=found.problems, sweeps=found.sweeps)


class _Found:
    """What was found so far."""

    def __init__(self) -> None:
        self.problems = Problems()
        self.sweeps: dict[str, frozenset[int]] = {}
        self._directories, self._events = RunDirectories(self.problems), EventDirectories(self.problems)
        self._runs: list[LoadedRun] = []
        self._seen: set[str] = set()
        self._named: set[str] = set()

    def runs(self) -> list[LoadedRun]:
        """Return the runs, each once: of one that is in MLflow, too, its directory, which knows what is superseded."""
        in_directories = {run.run_id for run in self._runs if run.run_id and run.source is self._directories}
        by_path = {
            run.path: run for run in self._runs if run.source is self._directories or run.run_id not in in_directories
        }
        return [replace(run, is_named=str(Path(run.path).resolve()) in self._named) for run in by_path.values()]

    def add(self, place: Place) -> None:
        """Look for runs at a place."""
        path, known = _path_of(place), len(self._runs)
        self._named.add(str((path.parent if path.name == RUN_RECORD or "tfevents" in path.name else path).resolve()))
        self._add_path(place, path)
        self._runs[known:] = [replace(run, place=str(place)) for run in self._runs[known:]]

    def _add_path(self, place: Place, path: Path) -> None:
        if path.is_file():
            self._add_file(path)
        elif not self._walk(path, path):
            raise ConfigurationError(
                f"{place}: there are no runs in it; a run of trieye has a {RUN_RECORD}, a sweep a {SWEEP}, a run of "
                f"another program TensorBoard event files{_databases_in(path)}"
            )

    def _add_file(self, path: Path) -> None:
        if "tfevents" in path.name:
            self._runs.append(self._events.run(path.parent, path.parent))
        elif path.name in {RUN_RECORD, SWEEP}:
            self._walk(path.parent, path.parent)
        else:
            self._runs += MlflowStore(path, self.problems).runs()

    def _walk(self, directory: Path, root: Path, depth: int = 0) -> bool:
        """Take the runs in a directory and below it; tell whether there is anything that belongs to runs."""
        real = directory.resolve()
        if str(real) in self._seen or depth > _MAX_DEPTH:
            return True
        self._seen.add(str(real))
        if (real / RUN_RECORD).is_file():
            above = real.parent
            self._add_run(real, above.parent if above.name == _RUNS else above)
            return True
        if (directory / SWEEP).is_file():
            self._add_sweep(directory)
            return True
        has_events = bool(event_files(directory))
        if has_events:
            self._runs.append(self._events.run(directory, root))
        below = [
            path for path in _directories_in(directory) if not (has_events and OF_ADD_HPARAMS.fullmatch(path.name))
        ]
        foreign = [path for path in below if not self._walk(path, root, depth + 1)]
        is_ours = has_events or len(foreign) < len(below)
        if (is_ours and not has_events) or directory.name == _RUNS:
            for path in foreign:
                self.problems.note(path, f"left out: it has no {RUN_RECORD}, no {SWEEP} and no event files")
        return is_ours

    def _add_run(
        self, directory: Path, home: Path, job: int | None = None, varied: Mapping[str, str] | None = None
    ) -> None:
        run = self._directories.run(directory, home, job=job, varied=varied)
        if run is not None:
            self._runs.append(run)

    def _add_sweep(self, directory: Path) -> None:
        sweep = self._record_of(directory)
        grid = sweep.the_grid() if sweep is not None and sweep.grid is not None else None
        directory = directory.resolve()
        self.sweeps[str(directory)] = frozenset() if grid is None else _seeds_of(grid)
        for index in sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal()):
            link = directory / str(index) / RUN
            if (link / RUN_RECORD).exists():
                real = link.resolve()
                self._seen.add(str(real))
                varied: Mapping[str, str] = {}
                if grid is not None:
                    varied = grid.values(index) if index < grid.size else {}
                elif sweep is not None:
                    varied = self._searched(directory / str(index), sweep)
                self._add_run(real, directory, job=index, varied=varied)
            elif link.is_symlink() and not link.exists():
                self.problems.note(link, f"left out: the run of job {index} is no longer where the link leads")

    def _record_of(self, directory: Path) -> SweepRecord | None:
        try:
            return SweepRecord.of(directory)
        except SerializationError as error:
            self.problems.note(directory, f"what varies in it is not known: {error}")
            return None

    def _searched(self, directory: Path, sweep: SweepRecord) -> Mapping[str, str]:
        try:
            record = JobRecord.read(directory)
        except SerializationError as error:
            self.problems.note(directory, error)
            return {}
        return {} if record is None else record.values(sweep.varying)


def _seeds_of(grid: Grid) -> frozenset[int]:
    """Return the seeds of the jobs of a sweep, of those that never began, too."""
    return frozenset(
        int(value)
        for axis in grid.axes
        for place in axis.places
        for key, value in zip(axis.keys, place, strict=True)
        if is_seed(bare(key)) and value.lstrip("-").isdecimal()
    )


def _path_of(place: Place) -> Path:
    text = str(place)
    if "://" in text or text.startswith("sqlite:"):
        path = database_of(text)
        if path is None:
            raise ConfigurationError(
                f"{text}: only SQLite stores of MLflow can be read directly, as sqlite:///mlflow.db; of others give "
                "the directory of the runs"
            )
    else:
        path = Path(text).expanduser()
    if not path.exists():
        parent = path.absolute().parent
        near = did_you_mean(path.name, [one.name for one in parent.iterdir()] if parent.is_dir() else [])
        raise ConfigurationError(f"{text}: there is no such file or directory{near}")
    return path


def _directories_in(directory: Path) -> Iterator[Path]:
    try:
        held = sorted(directory.iterdir())
    except OSError:
        return
    for path in held:
        if path.is_dir() and not path.name.startswith(".") and path.name not in _NEVER:
            yield path


def _databases_in(directory: Path) -> str:
    if not directory.is_dir():
        return ""
    found = [path for path in sorted(directory.glob("**/*.db")) if _is_sqlite(path)]
    return f"; for what MLflow holds, give sqlite:///{found[0].absolute()}" if found else ""


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False
