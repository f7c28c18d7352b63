"""RunDirectories: reads trieye runs from their directories, and caches the points of many runs in one file."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trieye.config.fingerprint import split_parameters
from trieye.exceptions import ConfigurationError, JournalError, SerializationError
from trieye.files.run_files import HISTORY, JOURNAL, RUN_RECORD
from trieye.history.history import read_history
from trieye.history.segments import range_of
from trieye.journal.ranges import Range
from trieye.renames import current_override
from trieye.results import compacted
from trieye.results.compacted import Compacted
from trieye.results.runs import LoadedRun, PointReader, Points, Problems, own_tags, points_in, seed_in, typed
from trieye.runs.stored_run import StoredRun

MIN_COMPACTED = 16
"""Minimum number of runs of an app or sweep to cache: reading a run takes 10 to 20 ms, reading the cache 1 ms."""

MAX_COMPACTED_ITEMS = 50_000_000
"""Maximum number of points to cache, which need 1.2 GB of memory; with more points, each run is read separately."""

_THREADS = 4
_UNSETTLED = "RUNNING"


class RunDirectories(PointReader):
    """Reads the run directories of an app or a sweep.

    Args:
        home: Directory of the app or sweep.
        problems: Collects a message for each unreadable run or file.
    """

    def __init__(self, home: Path, problems: Problems) -> None:
        self._home, self._problems = home, problems
        self._file: tuple[Compacted, list[str]] | None = None  # cache and its up-to-date runs, once opened

    def run(
        self,
        directory: Path,
        *,
        job: int | None = None,
        varied: Mapping[str, str] | None = None,
        mode: str | None = None,
    ) -> LoadedRun | None:
        """Return the run in a directory; None, with a note in `problems`, if its record is unreadable.

        Args:
            directory: Directory of the run, absolute and without links.
            job: Index of its job in the sweep.
            varied: Values that vary in the sweep, by key.
            mode: `max` or `min` of the objective, if the sweep rather than `loop.mode` determines it.
        """
        try:
            run = StoredRun.read(directory)
            record, config = run.record, run.config
        except (ConfigurationError, SerializationError) as error:
            if (directory / RUN_RECORD).exists():  # else it was deleted in the meantime
                reason = str(error).removeprefix(f"{directory}: ").removeprefix(f"{directory}/")
                self._problems.note(directory, f"skipped: {reason}")
            return None
        params, defaults = split_parameters(config)
        if not config.get("sinks", {}).get("log_config", True):
            defaults = {}
            params = {key: value for key, value in params.items() if key == "loop.objective" and value is not None}
        params |= {name: typed(text) for name, text in record.params.items()}
        return LoadedRun(
            path=str(directory),
            name=record.run_name,
            app=record.app_name,
            params=params,
            seed=seed_in(params),
            status="KILLED" if run.status == "LOST" else run.status,
            step=run.step,
            source=self,
            axis=record.axis,
            created=record.created,
            run_id=record.run_id,
            is_copy=record.copy_of(directory) is not None,
            sweep=str(self._home) if job is not None else record.group or "",
            job=job,
            defaults=defaults,
            varied={current_override(key, params): typed(value) for key, value in (varied or {}).items()},
            is_closed=record.status != _UNSETTLED,
            modes={} if mode is None else {str(params.get("loop.objective")): mode},
            tags=own_tags({**(config.get("tags") or {}), **record.tags}),
        )

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the metric names of the runs; for an ended run, from run.json instead of its points."""
        names: set[str] = set()
        unlisted_runs = []
        for run in runs:
            try:
                stored_run = StoredRun.read(Path(run.path))
            except ConfigurationError:
                unlisted_runs.append(run)
                continue
            names |= set(stored_run.metrics)
            if not stored_run.metrics or stored_run.status in {"RUNNING", "LOST"}:
                unlisted_runs.append(run)
        return names.union(*(points for points in self.read(unlisted_runs, None).values()))

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run except superseded points, keyed by `LoadedRun.path`."""
        ended_runs = [run for run in runs if run.status != _UNSETTLED]
        if len(ended_runs) < MIN_COMPACTED:
            return dict(self._read_each(runs, metrics))
        points_by_path = self._read_compacted(metrics)
        stale_runs = [run for run in ended_runs if run.path not in points_by_path]
        if len(stale_runs) >= MIN_COMPACTED and _num_items(run.path for run in stale_runs) <= MAX_COMPACTED_ITEMS:
            compacted_points = self._compact(stale_runs)
            points_by_path |= {path: _selected(points, metrics) for path, points in compacted_points.items()}
        other_runs = [run for run in runs if run.path not in points_by_path]
        return points_by_path | dict(self._read_each(other_runs, metrics))

    def _read_compacted(self, metrics: Collection[str] | None) -> dict[str, Points]:
        """Return the cached points of the runs that have not changed since; checks for changes once."""
        try:
            if self._file is None:
                cache = Compacted(self._home / compacted.FILE)
                self._file = cache, [path for path, stamp in cache.stamps.items() if _stamp(path) == stamp]
            cache, fresh_paths = self._file
            points = cache.read(metrics) if fresh_paths else {}
        except compacted.DAMAGE:
            self._file = None
            return {}
        return {path: points[path] for path in fresh_paths}

    def _compact(self, stale_runs: Sequence[LoadedRun]) -> Mapping[str, Points]:
        """Return all points of stale runs, and write a cache with these and the up-to-date points of the old cache."""
        stamps = {run.path: _stamp(run.path) for run in stale_runs}
        num_problems = len(self._problems.texts)
        read = dict(self._read_each(stale_runs, None))
        if len(self._problems.texts) > num_problems:  # damaged runs are not cached, so that each load reports them
            broken_paths = [path for path in read if any(text.startswith(f"{path}: ") for text in self._problems.texts)]
            read = {path: points for path, points in read.items() if path not in broken_paths}
        if len(read) >= MIN_COMPACTED:
            points = self._read_compacted(None) | read
            stamps = (dict(self._file[0].stamps) if self._file is not None else {}) | stamps
            self._file = None
            # without write permission or disk space, the next load reads the runs again
            with contextlib.suppress(OSError):
                compacted.write(self._home / compacted.FILE, {path: stamps[path] for path in points}, points)
        return read

    def _read_each(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Iterator[tuple[str, Points]]:
        with ThreadPoolExecutor(_THREADS) as pool:
            for run, points in zip(runs, pool.map(lambda run: self._read_one(run, metrics), runs), strict=True):
                if points is not None:
                    yield run.path, points

    def _read_one(self, run: LoadedRun, metrics: Collection[str] | None) -> Points | None:
        lost: list[Range] = []
        try:
            table = read_history(Path(run.path), metrics, lost=lost)
        except (JournalError, SerializationError, OSError) as error:
            self._problems.note(run.path, f"cannot read its points: {error}")
            return None
        if lost:
            count = sum(end - first for first, end in lost)
            self._problems.note(run.path, f"{count} lost or damaged items of its history are skipped")
        return points_in(table)


def _stamp(run_dir: str) -> str:
    """Return a fingerprint that changes whenever the record or the history of a run changes."""
    parts = []
    names = (RUN_RECORD, JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-journal", *_segments(run_dir))
    for name in names:
        try:
            stat = os.stat(f"{run_dir}/{name}")  # noqa: PTH116 - three times faster, for thousands of files
        except OSError:
            continue
        parts.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(parts)


def _segments(run_dir: str) -> list[str]:
    try:
        return sorted(f"{HISTORY}/{name}" for name in os.listdir(f"{run_dir}/{HISTORY}"))  # noqa: PTH208 - the same
    except OSError:
        return []


def _num_items(run_dirs: Iterable[str]) -> int:
    spans = [range_of(name.rpartition("/")[2]) for run_dir in run_dirs for name in _segments(run_dir)]
    return sum(span[1] - span[0] for span in spans if span is not None)


def _selected(points: Points, metrics: Collection[str] | None) -> Points:
    return points if metrics is None else {name: series for name, series in points.items() if name in metrics}
