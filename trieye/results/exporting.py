"""table_with_runs: the points of runs as a table with metadata that `ExportedRuns` reads."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from trieye.results.conversion import table
from trieye.results.exported import FIELDS, FORMAT, MAPPINGS, RUNS
from trieye.results.origins import Origin
from trieye.results.runs import LoadedRun, Points

_PATH = re.compile(r"(?<![\w.:/-])(?:(?:file|sqlite):/+|/)[^\s,;'\"()\[\]{}]+")
"""An absolute path, also within a list, as text."""

OF_RUN = ("attempt", "duration_s")
"""Keys of an origin that differ between runs with the same provenance."""


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
    hide = _PathNames()
    named_sweeps = {hide(_relative(run.sweep)): sorted(sweeps[run.sweep]) for run in runs if run.sweep in sweeps}
    hidden_runs = [
        replace(
            run,
            params=hide(run.params),
            varied=hide(run.varied),
            defaults=hide(run.defaults),
            tags=hide(run.tags),
            sweep=hide(_relative(run.sweep)),
        )
        for run in runs
    ]
    content = {"format": FORMAT, "sweeps": named_sweeps, **_described(hidden_runs, points, origins)}
    return table(hidden_runs, points).replace_schema_metadata({RUNS: json.dumps(content, default=str).encode()})


class _PathNames:
    """Replaces absolute paths in JSON values by names."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._numbers = Counter[str]()

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            is_path = Path(value).is_absolute()
            return self._name_of(value) if is_path else _PATH.sub(lambda found: self._name_of(found[0]), value)
        if isinstance(value, Mapping):
            return {key: self(item) for key, item in value.items()}
        return [self(item) for item in value] if isinstance(value, list | tuple) else value

    def _name_of(self, path: str) -> str:
        if path not in self._names:
            name = Path(path).name
            self._numbers[name] += 1
            count = self._numbers[name]
            self._names[path] = name if count == 1 else f"{name}-{count}"
        return self._names[path]


def _described(
    runs: Sequence[LoadedRun], points: Sequence[Points], origins: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    params = [run.params for run in runs]
    shared_params = _shared(params)
    index_by_text: dict[str, int] = {}
    rows = []
    for run, run_params, by_name, origin in zip(runs, params, points, origins, strict=True):
        row = {name: getattr(run, name) for name in FIELDS} | {name: dict(getattr(run, name)) for name in MAPPINGS}
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
    first, *others = params or [{}]
    return {key: value for key, value in first.items() if all(key in one and one[key] == value for one in others)}


def _relative(path: str) -> str:
    """Return a path in the working directory relative to it; other paths are unchanged."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path
