"""Conversion of points and curves to tables and arrays of other packages, which are imported on use."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trieye.config.base import did_you_mean
from trieye.config.packages import load
from trieye.exceptions import ConfigurationError
from trieye.files.atomic import replacing
from trieye.results import selection
from trieye.results.aligned import AlignedCurves
from trieye.results.runs import LoadedRun, Series, typed

_FORMATS = (".parquet", ".csv", ".feather")
_POINT = ("step", "value", "wall_time")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that start a formula in a spreadsheet."""

Values = Mapping[str, Any]


def table(runs: Sequence[LoadedRun], points: Sequence[Mapping[str, Series]]) -> pa.Table:
    """Return points as a long table: run, metric, seed, varying parameters, step, value and wall_time.

    Runs of the same name are labeled `app/name`, and those of the same app by the end of their paths. A parameter with
    the name of another column becomes `param.<name>`.

    Args:
        runs: The runs.
        points: The points of each run.
    """
    varied_keys = selection.varying(runs)
    keys = list(dict.fromkeys([*selection.compared_by(runs), *varied_keys, *selection.identifying(runs, varied_keys)]))
    parts = [(number, name, series) for number, by_name in enumerate(points) for name, series in by_name.items()]
    lengths = [len(series.steps) for _, _, series in parts]
    names = list(dict.fromkeys(name for _, name, _ in parts))
    codes = np.repeat(np.array([number for number, _, _ in parts], np.int32), lengths)
    metrics = np.repeat(np.array([names.index(name) for _, name, _ in parts], np.int32), lengths)
    columns: dict[str, Any] = {
        "run": _labels(codes, _distinct_names(runs)),
        "metric": _labels(metrics, names),
        "seed": pa.array([run.seed for run in runs], pa.int64()).take(pa.array(codes)),
    }
    for key in keys:
        name = key
        while name in columns or name in _POINT:
            name = f"param.{name}"
        columns[name] = plain([selection.value_or_none(run, key) for run in runs]).take(pa.array(codes))
    for field, name in enumerate(_POINT):
        arrays = [series[field] for _, _, series in parts]
        columns[name] = np.concatenate(arrays) if arrays else np.zeros(0)
    return pa.table(columns)


def _distinct_names(runs: Sequence[LoadedRun]) -> list[str]:
    names = [run.name for run in runs]
    parts = [run.path.split("/") for run in runs]
    for depth in range(max(map(len, parts), default=0) + 1):
        counts = Counter(names)
        names = [
            name if counts[name] == 1 else "/".join(part[-depth:]) if depth else f"{run.app}/{run.name}"
            for name, part, run in zip(names, parts, runs, strict=True)
        ]
    return names


def _labels(codes: NDArray[np.int32], names: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))


def plain(values: Sequence[Any]) -> pa.Array:
    """Convert values to a column: of numbers if possible, else of text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` when the block ends, which has written it; create its directory.

    Raises:
        ConfigurationError: The file cannot be written; `path` is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as scratch:
            yield scratch
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the file's suffix.

    Raises:
        ConfigurationError: The suffix is unknown, or the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        hint = did_you_mean(suffix, _FORMATS)
        raise ConfigurationError(f"{path}: unknown table format {suffix!r}{hint} (choose from: {', '.join(_FORMATS)})")
    from pyarrow import csv, feather, parquet

    with written(path) as scratch:
        if suffix == ".parquet":
            parquet.write_table(table, scratch, compression="zstd")
        elif suffix == ".feather":
            feather.write_feather(table, str(scratch))
        else:
            columns = [_flat(column) for column in table.columns]
            csv.write_csv(pa.table(columns, names=[_escaped(name) for name in table.column_names]), scratch)


def _flat(column: Any) -> Any:
    """Convert a column for text files: lists and objects to JSON, formulas escaped."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else json.dumps(value) for value in column.to_pylist()], pa.string())
    if not pa.types.is_string(column.type):
        return column
    codes = column.combine_chunks().dictionary_encode()
    texts = pa.array([_escaped(text) for text in codes.dictionary.to_pylist()], pa.string())
    return texts.take(codes.indices)


def _escaped(text: str) -> str:
    """Prefix a formula with a quote, so that spreadsheets show it as text; numbers stay unchanged."""
    return f"'{text}" if text.startswith(_FORMULA) and not isinstance(typed(text), int | float) else text


def xarray_of(curve: AlignedCurves, name: str, x: str, configs: Sequence[Values], seeds: Sequence[int]) -> Any:
    """Convert curves to an `xarray.DataArray` with the dimensions config, seed and the axis."""
    xarray = load("xarray", "to_xarray()")
    keys = list(configs[0]) if configs else []
    config_coords = {key: ("config", [one[key] for one in configs]) for key in keys}
    coords = {"config": np.arange(len(configs)), "seed": list(seeds), x: curve.x, **config_coords}
    return xarray.DataArray(curve.y, dims=("config", "seed", x), coords=coords, name=name)


def rliable_scores(
    results: Any, metric: str | Sequence[str], algorithm: str, task: str | None, *, last: float, steps: int | None
) -> dict[str, NDArray[np.float64]]:
    """Implement `to_rliable` of `Results`, which imports this module."""
    tasks = [None] if task is None else list(results.split(task))
    scores = {}
    for name, runs in results.split(algorithm).items():
        parts = [runs] if task is None else [_of_task(runs, task, one) for one in tasks]
        columns = [_by_seed(part, metric, last, steps, f"{algorithm}={name}") for part in parts]
        seeds = sorted(set.intersection(*(set(column) for column in columns)))
        if not seeds:
            raise ConfigurationError(f"{algorithm}={name}: no seed has a score of {metric} in every task")
        scores[str(name)] = np.array([[column[seed] for column in columns] for seed in seeds])
        for seed in sorted(set().union(*columns) - set(seeds)):
            results.note(f"{algorithm}={name}", f"seed {seed} is skipped, because it lacks a score in a task")
    return scores


def _of_task(runs: Any, task: str, value: Any) -> Any:
    return runs.split(task).get(value, runs.where({f"{task}__in": []}, strict=True))


def _by_seed(runs: Any, metric: str | Sequence[str], last: float, steps: int | None, name: str) -> dict[int, float]:
    if len(runs.configs) > 1:
        keys = ", ".join(runs.configs[0])
        raise ConfigurationError(f"{name}: its {len(runs.configs)} configs differ in {keys}; select one with where()")
    if not len(runs):
        return {}
    scores = runs.values(metric, last=last, steps=steps)
    return {seed: float(value) for seed, value in zip(runs.seeds, scores[0], strict=True) if not np.isnan(value)}
