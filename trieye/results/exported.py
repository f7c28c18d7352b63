"""Exported runs: a Parquet file of points with the parameters, states and provenance of the runs; written and read."""

import hashlib
import json
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from trieye.exceptions import ConfigurationError
from trieye.results.conversion import table
from trieye.results.origins import Origin
from trieye.results.runs import LoadedRun, PointReader, Points, Problems, points_in

RUNS = b"trieye.runs"
"""Key of the runs in the metadata of the file, as JSON."""

FORMAT = 1
FIELDS = (
    "name", "app", "seed", "status", "step", "axis", "created", "run_id", "sweep", "sweep_id", "job", "objective",
    "is_named", "varied", "defaults", "modes", "tags",
)  # fmt: skip
_WITH_PATHS = ("params", "varied", "defaults", "tags")
"""Fields with values in which names replace absolute paths."""

_PATH = re.compile(r"(?<![\w./-])(?:(?:file|sqlite):/+|(?:(?<!:)/+|/(?!/))[^\s,;'\"()\[\]{}/]+/)[^\s,;'\"()\[\]{}]+")
"""An address, or an absolute path below a directory, within a text."""

OF_RUN = ("attempt", "duration_s")
"""Keys of an origin that differ between runs with the same provenance."""


class ExportedRuns(PointReader):
    """Runs in a Parquet file.

    Args:
        path: The file.
        problems: Collects problems.
        sweep_ids: Ids of the sweeps in the files loaded so far, by name; extended.

    Attributes:
        sweeps: Seeds of each sweep.

    Raises:
        ConfigurationError: The file cannot be read, was written by another program, or its rows were changed.
    """

    def __init__(self, path: Path, problems: Problems, sweep_ids: dict[str, str]) -> None:
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
        ids = {row["sweep"]: row.get("sweep_id", "") for row in content["runs"]}
        self._sweeps = {
            name: name if sweep_ids.setdefault(name, sweep_id) == sweep_id else f"{sweep_id}/{name}"
            for name, sweep_id in ids.items()
        }
        self.sweeps = {self._sweeps[name]: frozenset(seeds) for name, seeds in content["sweeps"].items()}

    def runs(self) -> list[LoadedRun]:
        """Return the runs."""
        return [self._run(number, row) for number, row in enumerate(self._content["runs"])]

    def _run(self, index: int, row: Mapping[str, Any]) -> LoadedRun:
        fields = {name: row[name] for name in FIELDS if name in row}  # older files lack some
        fields["sweep"], seeds = self._sweeps[row["sweep"]], row.get("planned_seeds")
        return LoadedRun(
            path=f"{self._path}#{index}", params={**self._content["shared"], **row["params"]}, source=self,
            planned_seeds=None if seeds is None else frozenset(seeds), **fields,
        )  # fmt: skip

    def origin(self, run: LoadedRun) -> Mapping[str, Any] | None:
        """Return the provenance of a run; None: unknown."""
        origin = self._content["runs"][_number(run)].get("origin")
        return None if origin is None else origin | self._content["provenances"][origin["provenance"]]

    def read(self, runs: Sequence[LoadedRun], metrics: Collection[str] | None) -> Mapping[str, Points]:
        """Return the points of each run."""
        del metrics
        table = self._table("metric", "step", "value", "wall_time")
        end_rows = np.cumsum([row["num_points"] for row in self._content["runs"]])
        index_by_path = {run.path: _number(run) for run in runs}
        return {
            path: points_in(
                table.slice(end_rows[index - 1] if index else 0, self._content["runs"][index]["num_points"])
            )
            for path, index in index_by_path.items()
        }

    def metrics(self, runs: Sequence[LoadedRun]) -> Collection[str]:
        """Return the metric names of the file."""
        del runs
        return set(self._table("metric")["metric"].unique().to_pylist())

    def _table(self, *columns: str) -> pa.Table:
        with parquet.ParquetFile(self._path) as file:  # parquet.read_table imports pandas
            return file.read(columns=list(columns))


def _number(run: LoadedRun) -> int:
    return int(run.path.rpartition("#")[2])


def table_with_runs(
    runs: Sequence[LoadedRun], points: Sequence[Points], sweeps: Mapping[str, Collection[int]]
) -> pa.Table:
    """Return `conversion.table` with the metadata that `ExportedRuns` reads; names replace absolute paths.

    Args:
        runs: The runs.
        points: The points of each run.
        sweeps: Seeds of each sweep.
    """
    origins = [None if (one := Origin.of(run)) is None else one.exported() for run in runs]
    hide = _path_names(getattr(run, name) for run in runs for name in _WITH_PATHS)
    hide_sweep = _path_names(_relative(run.sweep) for run in runs)
    named_sweeps = {hide_sweep(_relative(run.sweep)): sorted(sweeps[run.sweep]) for run in runs if run.sweep in sweeps}
    hidden_runs = [
        replace(
            run,
            sweep=hide_sweep(_relative(run.sweep)),
            sweep_id=run.sweep_id or (run.sweep and _digest(run.sweep)),
            **{name: hide(getattr(run, name)) for name in _WITH_PATHS},
        )
        for run in runs
    ]
    content = {"format": FORMAT, "sweeps": named_sweeps, **_described(hidden_runs, points, origins)}
    return table(hidden_runs, points).replace_schema_metadata({RUNS: json.dumps(content, default=str).encode()})


def _path_names(values: Iterable[Any]) -> Callable[[Any], Any]:
    """Return a function that replaces absolute paths in these JSON values by names; different texts stay different."""
    texts: dict[str, None] = {}
    for value in values:
        _mapped(value, texts.setdefault)
    names = {text: text for text in texts if _without_paths(text) == text}
    used_names, numbers = set(names), Counter[str]()
    for text in [text for text in texts if text not in names]:
        unique_name = name = _without_paths(text)
        while unique_name in used_names:
            numbers[name] += 1
            unique_name = f"{name}-{numbers[name] + 1}"
        names[text] = unique_name
        used_names.add(unique_name)
    return lambda value: _mapped(value, names.__getitem__)


def _mapped(value: Any, replacement_of: Callable[[str], Any]) -> Any:
    """Return a JSON value with other texts; keys are unchanged."""
    if isinstance(value, str):
        return replacement_of(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, replacement_of) for key, item in value.items()}
    return [_mapped(item, replacement_of) for item in value] if isinstance(value, list | tuple) else value


def _without_paths(text: str) -> str:
    path = Path(text)
    return (path.name or text) if path.is_absolute() else _PATH.sub(lambda found: Path(found[0]).name, text)


def _described(
    runs: Sequence[LoadedRun], points: Sequence[Points], origins: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    params = [run.params for run in runs]
    shared_params = _shared(params)
    index_by_text: dict[str, int] = {}
    rows = []
    for run, run_params, by_name, origin in zip(runs, params, points, origins, strict=True):
        row = {name: getattr(run, name) for name in FIELDS}
        row["planned_seeds"] = None if run.planned_seeds is None else sorted(run.planned_seeds)
        row["params"] = {key: value for key, value in run_params.items() if key not in shared_params}
        row["num_points"] = sum(len(series.steps) for series in by_name.values())
        if origin is not None:
            of_run = {name: origin[name] for name in OF_RUN}
            text = json.dumps({name: value for name, value in origin.items() if name not in OF_RUN})
            row["origin"] = {**of_run, "provenance": index_by_text.setdefault(text, len(index_by_text))}
        rows.append(row)
    return {"shared": shared_params, "runs": rows, "provenances": [json.loads(text) for text in index_by_text]}


def _shared(params: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, *other_params = params or [{}]
    return {
        key: value
        for key, value in first.items()
        if all(key in one and repr(one[key]) == repr(value) for one in other_params)
    }


def _digest(path: str) -> str:
    return hashlib.sha256(f"{socket.gethostname()} {path}".encode()).hexdigest()[:8]


def _relative(path: str) -> str:
    """Return a path in the working directory relative to it; other paths are unchanged."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
