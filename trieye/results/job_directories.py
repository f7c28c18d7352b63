"""JobDirectories: runs of any Hydra program, from the return value, the config and the metric files of each job."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import yaml

from trieye.config.fingerprint import leaves
from trieye.config.hydra.override_text import bare
from trieye.config.redaction import redacted, redacted_values
from trieye.exceptions import ConfigurationError, SerializationError
from trieye.files.run_files import RUN_RECORD
from trieye.results.csv_files import is_metric_file, points_in_csv
from trieye.results.event_files import points_in_events
from trieye.results.mlflow_files import FileStore, is_file_store
from trieye.results.mlflow_store import MlflowStore, is_sqlite
from trieye.results.runs import LoadedRun, PointReader, Points, Problems, Series, seed_in, typed
from trieye.sweeps.jobs import OUTPUT_DIR, JobRecord

HYDRA = ".hydra"
"""Subdirectory of the config and the overrides that Hydra stores for a job."""

OBJECTIVE = "objective"
"""Metric of a returned number; a dict has `objective/<key>`, a list `objective_0`, `objective_1`."""

_MAX_DEPTH = 6
_SKIPPED = {"checkpoints", "artifacts", "node_modules"}
_ATTEMPT = re.compile(r"version_\d+")
"""Directories that Lightning numbers by attempt."""
_DIGITS = re.compile(r"(\d+)")

_LOADER: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
"""In C, which takes a tenth of the time."""


def _plain(loader: Any, node: yaml.Node) -> Any:
    """Return a node whose tag names an object, such as a `pathlib.Path`, as plain data; no object is constructed."""
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        items = loader.construct_sequence(node, deep=True)
        return str(PurePath(*map(str, items))) if ":pathlib." in node.tag else items
    return node.value or node.tag


_LOADER.add_constructor(None, _plain)  # for all unknown tags

_STATUS = {"completed": "FINISHED", "failed": "FAILED", "running": "RUNNING"}


def output_dir_of(job_dir: Path) -> Path:
    """Return Hydra's output directory of a job; `hydra.sweep.subdir` may set one outside the job's directory."""
    link = job_dir / OUTPUT_DIR
    return link.resolve() if link.is_dir() else job_dir


class _MetricFiles(NamedTuple):
    """The metric files of a job, by kind: directories of event files, MLflow stores, CSV files."""

    event_dirs: list[Path]
    stores: list[Path]
    tables: list[Path]


class JobDirectories(PointReader):
    """Reads the jobs of Hydra programs that are no trieye runs.

    The points of a job come from TensorBoard event files, MLflow stores and CSV files below its output directory. A
    metric in files of several kinds is read from the first kind. A metric in several directories of one kind, such as
    `train/` and `val/`, is prefixed with the directory; attempts (`version_0`, `version_1`) are one directory.

    Args:
        problems: Collects a message for each unreadable file.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._jobs: dict[str, tuple[JobRecord | None, Path, _MetricFiles]] = {}  # with the output directory
        self._points: dict[str, Points] = {}

    def run(
        self,
        directory: Path,
        app: str,
        name: str,
        *,
        sweep: str = "",
        index: int | None = None,
        varied: Mapping[str, str] | None = None,
        modes: Sequence[str] = (),
    ) -> LoadedRun | None:
        """Return the run of a job; None if it has neither a return value nor metric files, or has a trieye run.

        Args:
            directory: Its directory, which `status.json` is in if trieye started the job.
            app: Name of the program.
            name: Name of the run.
            sweep: Directory of its sweep; empty for a single run.
            index: Index in the sweep.
            varied: Values that vary in the sweep, by key.
            modes: `max` or `min` for each returned number: whether higher or lower values are better; empty: unknown.
        """
        record, output_dir = self.record(directory), output_dir_of(directory)
        files, objectives = _metric_files(output_dir), list(_returned(record))
        if files is None or not (any(files) or objectives):
            return None
        path, config, params = str(directory.resolve()), output_dir / HYDRA, self._params(output_dir, record)
        self._jobs[path] = record, output_dir, files
        return LoadedRun(
            path=path,
            name=name,
            app=app,
            params=params,
            seed=seed_in(params),
            status="UNKNOWN" if record is None else _status(record, directory),
            step=None,
            source=self,
            created=config.stat().st_mtime if config.is_dir() else record.started if record else float("nan"),
            sweep=sweep,
            job=index,
            varied={key: typed(value) for key, value in (varied or {}).items()},
            objective=objectives[0] if objectives[:1] == [OBJECTIVE] or len(objectives) == 1 else "",
            modes=dict(zip(objectives, modes, strict=False)),
        )

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return all points of each run, keyed by `LoadedRun.path`; files are read whole, regardless of `metrics`."""
        del metrics
        for run in runs:
            if run.path not in self._points:
                self._points[run.path] = self._read(run.path)
        return {run.path: self._points[run.path] for run in runs}

    def record(self, directory: Path) -> JobRecord | None:
        """Return the record of a job of a sweep by trieye; None if there is none, or, with a note, if it is damaged."""
        try:
            return JobRecord.read(directory)
        except SerializationError as error:
            self._problems.note(directory, error)
            return None

    def _params(self, output_dir: Path, record: JobRecord | None) -> dict[str, Any]:
        """Return the config of a job by dotted name, without secrets; only its overrides if no config can be read."""
        config = _yaml_of(output_dir / HYDRA / "config.yaml", self._problems)
        if isinstance(config, dict):
            return dict(leaves(redacted(config)))
        pairs = (word.partition("=") for word in (record.overrides if record is not None else ()))
        return {bare(key): typed(value) for key, _, value in pairs}

    def _read(self, path: str) -> Points:
        record, root, files = self._jobs[path]
        points = self._points_in(files, root)
        if record is None:
            return points
        numbers = _returned(record)
        for name in sorted(numbers.keys() & points.keys()):
            self._problems.note(path, f"metric {name} of its files is hidden by the return value of the same name")
        step = max((int(series.steps.max()) for series in points.values() if len(series.steps)), default=0)
        times = np.array([record.ended or record.heartbeat])
        return {**points, **{key: Series(np.array([step]), np.array([value]), times) for key, value in numbers.items()}}

    def _points_in(self, files: _MetricFiles, root: Path) -> Points:
        """Return the points of all files of a job."""
        parts_by_kind = (
            [(_name(path, root), points_in_events(path, self._problems)) for path in files.event_dirs],
            [part for store in files.stores for part in self._parts_in_mlflow(store)],
            [(_name(path.with_suffix(""), root), points_in_csv(path, self._problems)) for path in files.tables],
        )
        return {metric: series for parts in reversed(parts_by_kind) for metric, series in _merged(parts).items()}

    def _parts_in_mlflow(self, path: Path) -> list[tuple[str, Points]]:
        store = FileStore(path, self._problems) if path.is_dir() else MlflowStore(path, self._problems)
        try:
            runs = store.runs()
        except ConfigurationError:  # a database of another program, such as Optuna
            return []
        points = store.read(runs, None)
        return [(run.name, points[run.path]) for run in runs]


def _metric_files(root: Path) -> _MetricFiles | None:
    """Return the files below a directory; None if it contains a trieye run."""
    files = _MetricFiles([], [], [])
    for name, subdirectories, names in os.walk(root):
        directory = Path(name)
        if RUN_RECORD in names:
            return None
        if any("tfevents" in name for name in names):
            files.event_dirs.append(directory)
        paths = [directory / name for name in sorted(names, key=_by_number)]
        files.stores.extend([directory] if is_file_store(directory) else [])
        files.stores.extend(path for path in paths if path.suffix == ".db" and is_sqlite(path))
        files.tables.extend(path for path in paths if path.suffix == ".csv" and is_metric_file(path))
        is_leaf = len(directory.relative_to(root).parts) >= _MAX_DEPTH or directory in files.stores
        unsorted = [one for one in subdirectories if not (is_leaf or one in _SKIPPED or one.startswith("."))]
        subdirectories[:] = sorted(unsorted, key=_by_number)
    return files


def _name(path: Path, root: Path) -> str:
    return "/".join(part for part in path.relative_to(root).parts if not _ATTEMPT.fullmatch(part))


def _by_number(name: str) -> list[str | int]:
    """Return a sort key that puts `version_10` after `version_2`: later attempts replace points of earlier ones."""
    return [int(part) if part.isdecimal() else part for part in _DIGITS.split(name)]


def _merged(parts: Sequence[tuple[str, Points]]) -> dict[str, Series]:
    """Merge the points of several directories; a metric in several gets their names as prefix.

    Points under the same name are attempts of one job: a later attempt replaces the earlier points from its first step.
    """
    by_metric: dict[str, dict[str, Series]] = {}
    for name, points in parts:
        for metric, series in points.items():
            by_name = by_metric.setdefault(metric, {})
            by_name[name] = _continued(by_name[name], series) if name in by_name else series
    series_by_metric = {}
    for metric, by_name in by_metric.items():
        for name, series in by_name.items():
            series_by_metric[metric if len(by_name) == 1 or not name else f"{name}/{metric}"] = series
    return series_by_metric


def _continued(old_series: Series, new_series: Series) -> Series:
    is_kept = old_series.steps < new_series.steps.min()
    return Series(*(np.concatenate([old[is_kept], new]) for old, new in zip(old_series, new_series, strict=True)))


def _returned(record: JobRecord | None) -> dict[str, float]:
    """Return the returned numbers by metric; the objective first."""
    if record is None:
        return {}
    objective = {} if record.number is None else {OBJECTIVE: record.number}
    if record.number != record.objective:  # not finite, and listed among the objectives
        return objective
    return objective | {
        key if key.startswith(f"{OBJECTIVE}_") else f"{OBJECTIVE}/{key}": number  # with `_`, the number of a list
        for key, number in record.objectives.items()
    }


def _status(record: JobRecord, directory: Path) -> str:
    if record.state == "running" and record.liveness(directory) == "dead":
        return "KILLED"
    return _STATUS.get(record.state, "KILLED")


def overrides_of(directory: Path) -> dict[str, str]:
    """Return the overrides in the `.hydra` of a job, by key; empty if there are none."""
    words = _yaml_of(directory / HYDRA / "overrides.yaml")
    pairs = (str(word).partition("=") for word in words or ())
    return {bare(key): redacted_values(key, [value])[0] for key, _, value in pairs}


def program_of(directory: Path) -> str:
    """Return the name of the program of a job, `hydra.job.name`; the name of its directory if it is not recorded."""
    try:
        return str(_yaml_of(directory / HYDRA / "hydra.yaml")["hydra"]["job"]["name"])
    except (KeyError, TypeError):  # also without the file
        return directory.name


def _yaml_of(path: Path, problems: Problems | None = None) -> Any:
    """Return the content of a YAML file; None if it is missing or, with a note in `problems`, damaged."""
    try:
        loader = _LOADER(path.read_bytes())
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (OSError, yaml.YAMLError) as error:
        if problems is not None and path.exists():
            problems.note(path, " ".join(str(error).split()))
        return None
