"""FileStore: the runs in a directory `mlruns` of MLflow, as it kept them before it had a database."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trieye.results.runs import Points, Problems, Series, StoredRun, seed_in, typed

_META = "meta.yaml"
_STATUS = {1: "RUNNING", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_MS = 1000.0


class FileStore:
    """A directory with one of each experiment, and in that one of each run.

    Args:
        path: The directory.
        problems: Takes what cannot be read.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path, self._problems = path, problems

    def runs(self) -> list[StoredRun]:
        """Return the runs that nobody has deleted, the first that was begun first."""
        found = []
        for experiment in sorted(self._path.glob(f"*/{_META}")):
            app = str(self._meta(experiment).get("name", experiment.parent.name))
            for meta in sorted(experiment.parent.glob(f"*/{_META}")):
                run = self._run(meta, app)
                found += [] if run is None else [run]
        return sorted(found, key=lambda run: run.created)

    def _meta(self, path: Path) -> dict[str, Any]:
        try:
            held = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            self._problems.note(path, f"left out: {error}")
            return {}
        return held if isinstance(held, dict) else {}

    def _run(self, meta: Path, app: str) -> StoredRun | None:
        held, directory = self._meta(meta), meta.parent
        if "run_id" not in held or held.get("lifecycle_stage") == "deleted":
            return None
        params = {name: typed(text) for name, text in _texts(directory / "params")}
        return StoredRun(
            path=str(directory),
            name=str(held.get("run_name") or dict(_texts(directory / "tags")).get("mlflow.runName") or held["run_id"]),
            app=app,
            params=params,
            seed=seed_in(params),
            status=_STATUS.get(held.get("status", 0), "UNKNOWN"),
            step=None,
            source=self,
            created=float(held["start_time"]) / _MS if held.get("start_time") else math.nan,
        )

    def metrics(self, runs: Sequence[StoredRun]) -> Collection[str]:
        """Return the names of the metrics that runs have."""
        return {name for run in runs for name, _ in _texts(Path(run.path) / "metrics")}

    def read(self, runs: Sequence[StoredRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of runs, by the `path` of each."""
        return {run.path: self._points(Path(run.path) / "metrics", metrics) for run in runs}

    def _points(self, directory: Path, metrics: Collection[str] | None) -> Points:
        found: dict[str, Series] = {}
        for name, text in _texts(directory):
            if metrics is not None and name not in metrics:
                continue
            try:
                times, values, steps = zip(
                    *([*line.split(), "0"][:3] for line in text.splitlines() if line), strict=True
                )
                found[name] = Series(
                    np.array(steps, np.int64), np.array(values, np.float64), np.array(times, np.float64) / _MS
                )
            except ValueError as error:
                self._problems.note(directory / name, f"left out: {error}")
        return found


def _texts(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield what is in the files below a directory, by their names, which may have a `/`."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield path.relative_to(directory).as_posix(), path.read_text(errors="replace")
