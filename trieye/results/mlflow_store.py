"""MlflowStore: reads the runs in an MLflow SQLite database by SQL, without importing MLflow."""

import contextlib
import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.results.runs import FOREIGN_AXIS, LoadedRun, PointReader, Points, Problems, Series, own_tags, seed_in, typed

_SQLITE = b"SQLite format 3\0"
_TABLES = {"experiments", "runs", "params", "tags", "metrics", "latest_metrics"}
_HIGHEST = np.finfo(np.float64).max
"""MLflow's representation of infinity."""

_AT_ONCE = 2000
"""Rows fetched per batch; batches 100 times larger take twice as long."""

_FEW_RUNS = 20
"""Up to this many runs are looked up by index; for more, reading the whole metric in disk order is faster."""

_BUSY_TIMEOUT_S = 10.0
_RUN_ID, _SWEEP, _PARENT_OF_A_SWEEP = "trieye.run_id", "trieye.sweep", "trieye.sweep_parent"

# The primary key begins with metric and time, and contains all selected columns.
_POINTS = """
    SELECT run_uuid, step, CASE WHEN is_nan THEN NULL ELSE value END, timestamp FROM metrics
    WHERE "key" = ? {} ORDER BY timestamp, step
"""


def is_sqlite(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


class MlflowStore(PointReader):
    """A database that MLflow may be writing to.

    Args:
        path: The database file.
        problems: Collects a message for each unreadable file.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path, self._problems = path, problems

    def runs(self) -> list[LoadedRun]:
        """Return the runs that are not deleted, in order of their start.

        Raises:
            ConfigurationError: The file is not an MLflow database, or cannot be read.
        """
        with self._reading() as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if not tables >= _TABLES:
                raise ConfigurationError(
                    f"{self._path} is not an MLflow database: it lacks the tables {', '.join(sorted(_TABLES - tables))}"
                )
            params, tags = (_by_run(connection, table) for table in ("params", "tags"))
            steps = dict(connection.execute("SELECT run_uuid, max(step) FROM latest_metrics GROUP BY run_uuid"))
            rows = connection.execute(
                """
                SELECT run_uuid, runs.name, experiments.name, status, start_time FROM runs
                JOIN experiments USING (experiment_id)
                WHERE runs.lifecycle_stage = 'active' AND experiments.lifecycle_stage = 'active'
                ORDER BY start_time, run_uuid
                """
            ).fetchall()
        return [
            self._run(row, params.get(row[0], {}), tags.get(row[0], {}), steps.get(row[0]))
            for row in rows
            if _PARENT_OF_A_SWEEP not in tags.get(row[0], {})
        ]

    def _run(
        self, row: tuple[Any, ...], params: Mapping[str, str], tags: Mapping[str, str], step: int | None
    ) -> LoadedRun:
        run_uuid, name, experiment, status, start_ms = row
        values = {key: typed(text) for key, text in sorted(params.items())}
        return LoadedRun(
            path=f"sqlite:///{self._path}#{run_uuid}",
            name=name or run_uuid,
            app=experiment,
            params=values,
            seed=seed_in(values),
            status=status or "UNKNOWN",
            step=step,
            source=self,
            axis=params.get("loop.axis", FOREIGN_AXIS if _RUN_ID not in tags else "step"),
            created=math.nan if start_ms is None else start_ms / 1000,
            run_id=tags.get(_RUN_ID, ""),
            sweep=tags.get(_SWEEP, ""),
            tags=own_tags(tags),
        )

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the metric names of the runs."""
        run_uuids = {_uuid(run) for run in runs}
        with self._reading() as connection:
            rows = connection.execute('SELECT DISTINCT run_uuid, "key" FROM latest_metrics').fetchall()
        return {name for run_uuid, name in rows if run_uuid in run_uuids}

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run, keyed by `LoadedRun.path`."""
        names = sorted(self.metrics(runs) if metrics is None else metrics)
        points: dict[str, dict[str, Series]] = {run.path: {} for run in runs}
        with self._reading() as connection:
            for name in names:
                for run, series in zip(runs, _series(connection, name, runs), strict=True):
                    if len(series.steps):
                        points[run.path][name] = series
        return points

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        # SQLite would create files next to a database that no process has open, or fail if it may not.
        is_at_rest = not any(self._path.with_name(self._path.name + suffix).exists() for suffix in ("-wal", "-journal"))
        address = f"{self._path.absolute().as_uri()}?{'immutable=1' if is_at_rest else 'mode=ro'}"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")  # all reads see one snapshot
                yield connection
        except sqlite3.Error as error:
            raise ConfigurationError(f"{self._path} cannot be read as an MLflow database: {error}") from error


def _by_run(connection: sqlite3.Connection, table: str) -> dict[str, dict[str, str]]:
    by_run: dict[str, dict[str, str]] = {}
    for run_uuid, key, value in connection.execute(f'SELECT run_uuid, "key", value FROM {table}'):  # noqa: S608 - ours
        by_run.setdefault(run_uuid, {})[key] = value or ""
    return by_run


def _series(connection: sqlite3.Connection, name: str, runs: Sequence[LoadedRun]) -> Iterator[Series]:
    """Yield the points of a metric for each run, in order of time."""
    index_by_uuid = {_uuid(run): number for number, run in enumerate(runs)}
    condition = f"AND run_uuid IN ({', '.join('?' * len(runs))})" if len(runs) <= _FEW_RUNS else ""
    cursor = connection.execute(_POINTS.format(condition), (name, *(index_by_uuid if condition else ())))
    batches = [[("", 0, 0.0, 0)], *iter(lambda: cursor.fetchmany(_AT_ONCE), [])]  # the first one of no run
    parts = [_columns(rows, index_by_uuid) for rows in batches]
    codes, steps, values, times = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    values[np.abs(values) == _HIGHEST] *= np.inf
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(runs) + 1))
    steps, values, times = steps[order], values[order], times[order]
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield Series(steps[first:end], values[first:end], times[first:end])


def _columns(rows: Sequence[tuple[Any, ...]], numbers: Mapping[str, int]) -> tuple[NDArray[Any], ...]:
    """Convert rows to columns; run ids become indices, or -1 for runs that were not requested."""
    ids, steps, values, times = zip(*rows, strict=True)
    codes = np.fromiter((numbers.get(run_uuid, -1) for run_uuid in ids), np.int32, len(ids))
    return codes, np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.float64) / 1000


def _uuid(run: LoadedRun) -> str:
    return run.path.rpartition("#")[2]
