"""FileStore: reads the runs in an MLflow `mlruns` directory (its file store, used before the database)."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trieye.results.runs import FOREIGN_AXIS, LoadedRun, PointReader, Points, Problems, Series, own_tags, seed_in, typed

_META = "meta.yaml"
_STATUS = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_MS = 1000.0
_MAX_STEP = np.iinfo(np.int64).max


def _parsed(line: str) -> tuple[int, float, int] | None:
    """Return the time in milliseconds, the value and the step of a line; None if it is damaged or was cut by a kill."""
    try:
        time, value, step = ([*line.split(), "0"] if line.endswith("\n") else [])[:3]
        return (int(time), float(value), int(step)) if abs(int(step)) <= _MAX_STEP else None
    except ValueError:
        return None


def is_file_store(directory: Path) -> bool:
    """Return whether a directory contains experiments of a file store."""
    return not (directory / _META).exists() and any(directory.glob(f"*/{_META}"))


class FileStore(PointReader):
    """A directory with a directory per experiment, which contains a directory per run.

    Links that leave the store are not followed: a foreign store could point them at any file of this machine.

    Args:
        path: The directory `mlruns`.
        problems: Collects a message for each unreadable file.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path, self._problems = path, problems

    def runs(self) -> list[LoadedRun]:
        """Return the runs that are not deleted, oldest first."""
        runs: list[LoadedRun] = []
        for experiment in sorted(self._path.glob(f"*/{_META}")):
            if self._is_inside(experiment):
                app = str(self._meta(experiment).get("name", experiment.parent.name))
                for meta in sorted(experiment.parent.glob(f"*/{_META}")):
                    run = self._run(meta, app) if self._is_inside(meta) else None
                    runs += [] if run is None else [run]
        return sorted(runs, key=lambda run: run.created)

    def _is_inside(self, path: Path) -> bool:
        is_inside = path.resolve().is_relative_to(self._path.resolve())
        if not is_inside:
            self._problems.leave_out(path, "it is a link out of the store, which is not followed")
        return is_inside

    def _meta(self, path: Path) -> dict[str, Any]:
        try:
            entries = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self._problems.leave_out(path, " ".join(str(error).split()))
            return {}
        return entries if isinstance(entries, dict) else {}

    def _run(self, meta: Path, app: str) -> LoadedRun | None:
        entries, directory = self._meta(meta), meta.parent
        if "run_id" not in entries or entries.get("lifecycle_stage") == "deleted":
            return None
        began, status = entries.get("start_time"), str(entries.get("status"))
        if not isinstance(began, int | float | None):
            expected = "milliseconds since 1970, such as 1700000000000; correct it and import the store again"
            self._problems.leave_out(meta, f"start_time={began!r} is not a number of {expected}")
            return None
        if status not in _STATUS:
            allowed = ", ".join(f"{code}={name}" for code, name in _STATUS.items())
            self._problems.note(meta, f"status={status} is unknown (choose from: {allowed})")
        params = {name: typed(text) for name, text in self._texts(directory / "params")}
        tags = dict(self._texts(directory / "tags"))
        return LoadedRun(
            path=str(directory),
            name=str(entries.get("run_name") or tags.get("mlflow.runName") or entries["run_id"]),
            app=app,
            params=params,
            seed=seed_in(params),
            status=_STATUS.get(status, "UNKNOWN"),
            step=None,
            source=self,
            axis=str(params.get("loop.axis", FOREIGN_AXIS)),
            created=float(began) / _MS if began else math.nan,
            tags=own_tags(tags),
        )

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the metric names of the runs."""
        return {name for run in runs for name, _ in self._texts(Path(run.path) / "metrics")}

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run, keyed by `LoadedRun.path`."""
        return {run.path: self._points(Path(run.path) / "metrics", metrics) for run in runs}

    def _points(self, directory: Path, metrics: Collection[str] | None) -> Points:
        points: dict[str, Series] = {}
        for name, text in self._texts(directory):
            if metrics is not None and name not in metrics:
                continue
            lines = text.splitlines(keepends=True)
            rows = [row for line in lines if (row := _parsed(line)) is not None]
            if num_damaged := len(lines) - len(rows):
                reason = f"{num_damaged} of {len(lines)} lines are skipped; a line is `milliseconds value step`"
                self._problems.note(directory / name, reason)
            if rows:
                times, values, steps = zip(*rows, strict=True)
                points[name] = Series(np.array(steps), np.array(values), np.array(times) / _MS)
        return points

    def _texts(self, directory: Path) -> Iterator[tuple[str, str]]:
        """Yield the relative path (the name, which may contain `/`) and the text of each file below a directory."""
        paths = sorted(directory.rglob("*")) if self._is_inside(directory) else []
        for path in paths:
            if self._is_inside(path) and path.is_file():
                yield path.relative_to(directory).as_posix(), path.read_text(errors="replace")
