"""Metrics in CSV files: a column of steps, and a column for each metric."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trieye.results.runs import Points, Problems, Series

_STEPS = ("step", "global_step", "total_timesteps", "timesteps", "iteration", "iter", "epoch")
"""Names of step columns; the first that exists counts. A prefix, as in `time/total_timesteps`, is allowed."""

_INDEX = ("", "Unnamed: 0")
"""Header of a first column that pandas wrote as the index."""

_NULLS = ["", "None", "null", "NA"]
"""Cells without a value; NaN is a value."""

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
    """Return the numbers in the columns of a CSV file as metrics; other cells and rows without a step are skipped."""
    from pyarrow import csv as arrow

    skipped_rows: list[int] = []

    def skip(row: Any) -> str:
        skipped_rows.append(row.number)
        return "skip"

    try:
        parsed = arrow.read_csv(
            path,
            parse_options=arrow.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
            convert_options=arrow.ConvertOptions(null_values=_NULLS, strings_can_be_null=True),
        )
    except (OSError, pa.ArrowException) as error:
        problems.note(path, f"cannot be read: {error}")
        return {}
    if skipped_rows:
        problems.note(path, f"{len(skipped_rows)} rows with another number of columns are skipped")
    step_index = _step_column(parsed.column_names)
    if not parsed.num_rows:
        problems.note(path, "has no rows")
        return {}
    columns = [_numbers(parsed.column(index), path, name, problems) for index, name in enumerate(parsed.column_names)]
    if step_index is None or columns[step_index] is None:
        name = _STEPS[0] if step_index is None else parsed.column_names[step_index] or "the index"
        problems.note(path, f"the steps in its column {name!r} are not numbers")
        return {}
    steps = columns[step_index].to_numpy()
    is_integer = np.isfinite(steps) & (steps == np.floor(steps))
    if num_fractions := int((np.isfinite(steps) & ~is_integer).sum()):
        name, rows = parsed.column_names[step_index], f"{num_fractions} of {parsed.num_rows} rows are skipped"
        problems.note(path, f"{rows}, because steps are integers and {name!r} has fractions there; add a column step")
    points = {}
    for index, (name, values) in enumerate(zip(parsed.column_names, columns, strict=True)):
        if index == step_index or values is None:
            continue
        is_valid = is_integer & values.is_valid().to_numpy()
        if is_valid.any():
            rows = steps[is_valid].astype(np.int64)
            points[name.strip()] = Series(rows, values.to_numpy()[is_valid], np.full(len(rows), np.nan))
    return points


def _step_column(names: Sequence[str]) -> int | None:
    last_parts = [name.strip().lower().rpartition("/")[2] for name in names]
    index = next((last_parts.index(name) for name in _STEPS if name in last_parts), None)
    return 0 if index is None and names and names[0] in _INDEX else index


def _numbers(column: Any, path: Path, name: str, problems: Problems) -> Any:
    """Return a column as float64, null in cells that are not numbers; None if it is a column of texts."""
    num_empty = column.null_count
    if pa.types.is_string(column.type):
        texts = column.combine_chunks().dictionary_encode()
        numbers = [_number(text) for text in texts.dictionary.to_pylist()]
        num_finite = sum(number is not None and math.isfinite(number) for number in numbers)
        if num_finite <= numbers.count(None):
            if num_finite:
                problems.note(path, f"its column {name!r} is left out: it has more distinct texts than numbers")
            return None
        column = pa.chunked_array([pa.array(numbers, pa.float64()).take(texts.indices)])
    is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if not is_number or column.null_count == len(column):
        return None
    if num_texts := column.null_count - num_empty:
        text = f"{num_texts} of {len(column)} cells of its column {name!r} are skipped, because they are not numbers"
        problems.note(path, text)
    return column.cast(pa.float64(), safe=False)


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)  # Python would parse 2026_1 as a number
    except ValueError:
        return None
