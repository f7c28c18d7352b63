"""ExportedRuns: the runs in a Parquet file of `trieye results export`, with their parameters and provenance."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from trieye.exceptions import ConfigurationError
from trieye.results.runs import LoadedRun, Points, Problems, points_in

RUNS = b"trieye.runs"
"""Key of the runs in the metadata of the file, as JSON."""

FORMAT = 1
FIELDS = (
    "name", "app", "seed", "status", "step", "axis", "created", "run_id", "sweep", "job", "objective", "is_named"
)  # fmt: skip
MAPPINGS = ("varied", "defaults", "modes", "tags")


def is_exported(path: Path) -> bool:
    """Return whether a file is a Parquet file."""
    return path.suffix.lower() == ".parquet"


class ExportedRuns:
    """Runs in a Parquet file.

    Args:
        path: The file.
        problems: Collects problems.

    Attributes:
        sweeps: Seeds of each sweep.

    Raises:
        ConfigurationError: The file cannot be read, was written by another program, or its rows were changed.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path, self._problems = path, problems
        try:
            metadata = parquet.read_metadata(path)
            content = json.loads((metadata.metadata or {}).get(RUNS, b"{}"))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise ConfigurationError(f"{path}: cannot be read: {error}") from error
        if content.get("format") != FORMAT:
            problem = f"format {content['format']} of a newer trieye" if content else "no runs in its metadata"
            raise ConfigurationError(f"{path}: {problem}; expected a file of `trieye results export -o FILE.parquet`")
        self._content = content
        if sum(row["num_points"] for row in content["runs"]) != metadata.num_rows:
            raise ConfigurationError(f"{path}: its rows were changed after the export; export the runs again")
        self.sweeps = {name: frozenset(seeds) for name, seeds in content["sweeps"].items()}

    def runs(self) -> list[LoadedRun]:
        """Return the runs."""
        return [self._run(number, row) for number, row in enumerate(self._content["runs"])]

    def _run(self, index: int, row: Mapping[str, Any]) -> LoadedRun:
        fields = {name: row[name] for name in (*FIELDS, *MAPPINGS) if name in row}  # older files lack some
        seeds = row.get("planned_seeds")
        return LoadedRun(
            path=f"{self._path}#{index}", params={**self._content["shared"], **row["params"]}, source=self,
            planned_seeds=None if seeds is None else frozenset(seeds), **fields,
        )  # fmt: skip

    def origin(self, run: LoadedRun) -> Mapping[str, Any] | None:
        """Return the provenance of a run as passed to `described`; None: unknown."""
        origin = self._content["runs"][_number(run)].get("origin")
        return None if origin is None else origin | self._content["provenances"][origin["provenance"]]

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run."""
        del metrics
        table = parquet.read_table(self._path, columns=["metric", "step", "value", "wall_time"])
        ends = np.cumsum([row["num_points"] for row in self._content["runs"]])
        index_by_path = {run.path: _number(run) for run in runs}
        return {
            path: points_in(table.slice(ends[index - 1] if index else 0, self._content["runs"][index]["num_points"]))
            for path, index in index_by_path.items()
        }

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the metric names of the file."""
        del runs
        return set(parquet.read_table(self._path, columns=["metric"])["metric"].unique().to_pylist())


def _number(run: LoadedRun) -> int:
    return int(run.path.rpartition("#")[2])
