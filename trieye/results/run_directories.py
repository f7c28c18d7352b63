"""RunDirectories: the runs of trieye, read from their own files; many of them from one file that is made once."""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from trieye.config.fingerprint import parameters, unused_defaults
from trieye.exceptions import ConfigurationError, JournalError, SerializationError
from trieye.files.run_files import HISTORY, JOURNAL, RUN_RECORD
from trieye.history.history import read_history
from trieye.history.segments import range_of
from trieye.journal.ranges import Range
from trieye.renames import current_override
from trieye.results import compacted
from trieye.results.compacted import Compacted
from trieye.results.runs import LoadedRun, Points, Problems, Series, seed_in, typed
from trieye.runs.stored_run import StoredRun

MIN_COMPACTED = 16
"""Runs of one app or sweep that are worth a file: each takes 10 to 20 ms to read, all of them in the file 1 ms."""

MAX_COMPACTED_ITEMS = 50_000_000
"""Points that may be in memory at once to write the file, 1.2 GB; if there are more, each run is read by itself."""

_THREADS = 4
_UNSETTLED = "RUNNING"


class RunDirectories:
    """Directories of runs, each below a home: the directory of an app or a sweep.

    Args:
        problems: Takes what cannot be read.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._homes: dict[str, Path] = {}
        self._files: dict[Path, tuple[Compacted | None, list[str]]] = {}  # and the runs that are still as in the file

    def run(
        self, directory: Path, home: Path, *, job: int | None = None, varied: Mapping[str, str] | None = None
    ) -> LoadedRun | None:
        """Return the run in a directory; None, and a problem, if it does not tell who it is.

        Args:
            directory: Of the run, absolute and without links.
            home: Of the app or the sweep.
            job: Its number in the sweep.
            varied: What varies there.
        """
        try:
            run = StoredRun.read(directory)
            record, config = run.record, run.config
        except (ConfigurationError, SerializationError) as error:
            if (directory / RUN_RECORD).exists():  # else it was deleted meanwhile
                self._problems.note(directory, f"left out: {str(error).removeprefix(f'{directory}: ')}")
            return None
        self._homes[str(directory)] = home
        params, defaults = parameters(config), unused_defaults(config)
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
            sweep=str(home) if job is not None else record.group or "",
            job=job,
            defaults=defaults,
            varied={current_override(key, params): typed(value) for key, value in (varied or {}).items()},
            is_closed=record.status != _UNSETTLED,
        )

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the names of the metrics that runs have: run.json of one that has ended says them."""
        found: set[str] = set()
        unsaid = []
        for run in runs:
            try:
                stored = StoredRun.read(Path(run.path))
            except ConfigurationError:
                unsaid.append(run)
                continue
            found |= set(stored.metrics)
            if not stored.metrics or stored.status in {"RUNNING", "LOST"}:
                unsaid.append(run)
        return found.union(*(points for points in self.read(unsaid, None).values()))

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of runs, by the `path` of each, without those that a rewind has superseded."""
        found: dict[str, Points] = {}
        by_home: dict[Path, list[LoadedRun]] = {}
        for run in runs:
            by_home.setdefault(self._homes[run.path], []).append(run)
        for home, held in by_home.items():
            found |= self._read_home(home, held, metrics)
        return found

    def _read_home(
        self, home: Path, runs: Sequence[LoadedRun], metrics: Collection[str] | None
    ) -> Mapping[str, Points]:
        settled = [run for run in runs if run.status != _UNSETTLED]
        if len(settled) < MIN_COMPACTED:
            return dict(self._read_each(runs, metrics))
        found = self._read_compacted(home, metrics)
        stale = [run for run in settled if run.path not in found]
        if len(stale) >= MIN_COMPACTED and _num_items(run.path for run in stale) <= MAX_COMPACTED_ITEMS:
            whole = self._compact(home, stale)
            found |= {path: _chosen(points, metrics) for path, points in whole.items()}
        rest = [run for run in runs if run.path not in found]
        return found | dict(self._read_each(rest, metrics))

    def _read_compacted(self, home: Path, metrics: Collection[str] | None) -> dict[str, Points]:
        """Return the points of the runs that are as they were when the file was written, which is asked once."""
        if home not in self._files:
            held = Compacted.at(home / compacted.FILE)
            stamps = held.stamps if held is not None else {}
            self._files[home] = held, [path for path, stamp in stamps.items() if _stamp(path) == stamp]
        held, fresh = self._files[home]
        try:
            points = held.read(metrics) if held is not None and fresh else {}
        except compacted.DAMAGE:
            self._files[home] = None, []
            return {}
        return {path: points[path] for path in fresh}

    def _compact(self, home: Path, stale: Sequence[LoadedRun]) -> Mapping[str, Points]:
        """Return all points of runs, and write a file that has them, and what it had that still holds."""
        stamps = {run.path: _stamp(run.path) for run in stale}
        noted = len(self._problems.texts)
        read = dict(self._read_each(stale, None))
        if len(self._problems.texts) > noted:  # a run that is not whole says so each time, and so is read each time
            damaged = [path for path in read if any(text.startswith(f"{path}: ") for text in self._problems.texts)]
            read = {path: points for path, points in read.items() if path not in damaged}
        if len(read) >= MIN_COMPACTED:
            points = self._read_compacted(home, None) | read
            held, _ = self._files.pop(home)
            stamps |= {
                path: stamp
                for path, stamp in (held.stamps if held is not None else {}).items()
                if path in points and path not in read
            }
            # a directory that may not be written, a full disk: then the next one reads the runs, too
            with contextlib.suppress(OSError):
                compacted.write(home / compacted.FILE, {path: stamps[path] for path in points}, points)
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
            self._problems.note(run.path, f"it has no points that can be read: {error}")
            return None
        if lost:
            count = sum(end - first for first, end in lost)
            self._problems.note(run.path, f"{count} items of its history are lost or damaged, and are left out")
        names = table["metric"].combine_chunks().dictionary_encode()
        codes = names.indices.to_numpy()
        order = np.argsort(codes, kind="stable")
        columns = [table[name].to_numpy()[order] for name in ("step", "value", "wall_time")]
        bounds = np.searchsorted(codes[order], np.arange(len(names.dictionary) + 1)).tolist()
        parts = zip(names.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True)
        return {name: Series(*(column[first:end] for column in columns)) for name, first, end in parts}


def _stamp(run_dir: str) -> str:
    """Return what changes when anything of a run's record or history does."""
    parts = []
    names = (RUN_RECORD, JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-journal", *_segments(run_dir))
    for name in names:
        try:
            found = os.stat(f"{run_dir}/{name}")  # noqa: PTH116 - of thousands of files, in a third of the time
        except OSError:
            continue
        parts.append(f"{name} {found.st_size} {found.st_mtime_ns}")
    return "\n".join(parts)


def _segments(run_dir: str) -> list[str]:
    try:
        return sorted(f"{HISTORY}/{name}" for name in os.listdir(f"{run_dir}/{HISTORY}"))  # noqa: PTH208 - the same
    except OSError:
        return []


def _num_items(run_dirs: Iterable[str]) -> int:
    spans = [range_of(name.rpartition("/")[2]) for run_dir in run_dirs for name in _segments(run_dir)]
    return sum(span[1] - span[0] for span in spans if span is not None)


def _chosen(points: Points, metrics: Collection[str] | None) -> Points:
    return points if metrics is None else {name: held for name, held in points.items() if name in metrics}
