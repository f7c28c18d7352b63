"""Metrics in CSV files: a column of steps, and a column for each metric."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trieye.results.runs import Points, Problems, Series

_STEPS = ("step", "global_step", "total_timesteps", "timesteps", "iteration", "iter", "epoch")
"""Names of step columns; the first that exists counts. A prefix, as in `time/total_timesteps`, is allowed."""

_INDEX = ("", "Unnamed: 0")
"""Header of a first column that pandas wrote as the index."""

_ENCODING = "utf-8-sig"


def is_metric_file(path: Path) -> bool:
    """Return whether a CSV file has a column of steps and another column."""
    try:
        with path.open(encoding=_ENCODING, newline="") as file:
            names = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return len(names) > 1 and _step_column(names) is not None


def points_in_csv(path: Path, problems: Problems) -> Points:
    """Return the numeric columns of a CSV file as metrics; empty cells and rows without a step are skipped."""
    from pyarrow import csv as arrow

    skipped_rows: list[int] = []

    def skip(row: Any) -> str:
        skipped_rows.append(row.number)
        return "skip"

    try:
        parsed = arrow.read_csv(
            path,
            parse_options=arrow.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
            convert_options=arrow.ConvertOptions(null_values=["", "None", "null", "NA"]),  # not NaN, which is a value
        )
    except (OSError, pa.ArrowException) as error:
        problems.note(path, f"cannot be read: {error}")
        return {}
    if skipped_rows:
        problems.note(path, f"{len(skipped_rows)} rows with another number of columns are skipped")
    step_index = _step_column(parsed.column_names)
    steps = None if step_index is None else _numbers(parsed.column(step_index))
    if not parsed.num_rows:
        problems.note(path, "has no rows")
        return {}
    if steps is None:
        name = _STEPS[0] if step_index is None else parsed.column_names[step_index] or "the index"
        problems.note(path, f"the steps in its column {name!r} are not numbers")
        return {}
    is_integer = np.isfinite(steps) & (steps == np.floor(steps))
    if num_fractions := int((np.isfinite(steps) & ~is_integer).sum()):
        name, rows = parsed.column_names[step_index], f"{num_fractions} of {parsed.num_rows} rows are skipped"
        problems.note(path, f"{rows}, because steps are integers and {name!r} has fractions there; add a column step")
    points = {}
    for index, name in enumerate(parsed.column_names):
        values = None if index == step_index else _numbers(parsed.column(index))
        if values is None:
            continue
        is_valid = is_integer & ~parsed.column(index).is_null().to_numpy()
        if is_valid.any():
            rows = steps[is_valid].astype(np.int64)
            points[name.strip()] = Series(rows, values[is_valid], np.full(len(rows), np.nan))
    return points


def _step_column(names: Sequence[str]) -> int | None:
    last_parts = [name.strip().lower().rpartition("/")[2] for name in names]
    index = next((last_parts.index(name) for name in _STEPS if name in last_parts), None)
    return 0 if index is None and names and names[0] in _INDEX else index


def _numbers(column: Any) -> NDArray[np.float64] | None:
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return np.asarray(column.cast(pa.float64()).to_numpy(), np.float64) if is_number else None
