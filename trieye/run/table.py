"""Convert logged tables: columns, rows or a data frame, with cells of plain values."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from trieye.config.names import printable
from trieye.run.media import check_size, header_of
from trieye.stats.operations import Cell, LogTable

MAX_TABLE_BYTES = 4 * 2**20
"""Maximum size of a table as JSON."""

_MIN_CELL_BYTES = 2
_MAX_PLAIN_INT = 2**63 - 1
_MISSING = frozenset({"NAType", "NaTType"})
"""Class names of the missing values of pandas."""


def table(name: str, content: Any, *, step: int, time: float) -> LogTable:
    """Convert a table to JSON.

    Args:
        name: Name of the series.
        content: {column: values}, a list of {column: value} (a missing column is an empty cell), or a pandas or polars
            data frame, without its index. Cells are strings, numbers, booleans, dates or None. Numbers that are not
            finite become empty cells.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: `content` is not a table, or the type of a cell is not supported.
        ValueError: Columns differ in length or share a name, there are no columns, or the table exceeds
            `MAX_TABLE_BYTES` as JSON.
    """
    title, header = f"table {name!r}", header_of(name, step, time)
    columns = _columns(title, content)
    if not columns:
        raise ValueError(f"{title}: no columns; pass at least one")
    lengths = {column: len(values) for column, values in columns.items()}
    num_rows = next(iter(lengths.values()))
    if differing := [column for column, length in lengths.items() if length != num_rows]:
        first = next(iter(lengths))
        raise ValueError(
            f"{title}: column {differing[0]!r} has {lengths[differing[0]]} values, but column {first!r} has {num_rows}"
        )
    check_size(f"{title} as JSON", num_rows * len(columns) * _MIN_CELL_BYTES, MAX_TABLE_BYTES, "log fewer rows")
    cells = [[_cell(title, column, value) for value in values] for column, values in columns.items()]
    json_bytes = msgspec.json.encode({"columns": list(columns), "data": list(zip(*cells, strict=True))})
    check_size(f"{title} as JSON", len(json_bytes), MAX_TABLE_BYTES, "log fewer rows")
    return LogTable(*header, num_rows, json_bytes)


def _columns(title: str, content: Any) -> dict[str, list[Any]]:
    if isinstance(content, Mapping):
        return _named(title, ((column, _values(title, column, values)) for column, values in content.items()))
    if isinstance(content, list | tuple):
        if invalid := [row for row in content if not isinstance(row, Mapping)]:
            raise TypeError(f"{title}: each row must be a dict, got {type(invalid[0]).__name__}")
        keys = dict.fromkeys(column for row in content for column in row)
        return _named(title, ((column, [row.get(column) for row in content]) for column in keys))
    if hasattr(content, "columns") and hasattr(content, "__getitem__"):  # a pandas or polars data frame
        return _named(title, ((column, list(content[column])) for column in content.columns))
    raise TypeError(f"{title}: a {type(content).__name__}; must be a dict of columns, a list of dicts or a data frame")


def _named(title: str, columns: Iterable[tuple[Any, list[Any]]]) -> dict[str, list[Any]]:
    values_by_name: dict[str, list[Any]] = {}
    for column, values in columns:
        name = printable(str(column))
        if name in values_by_name:
            raise ValueError(f"{title}: several columns are named {name!r}")
        values_by_name[name] = values
    return values_by_name


def _values(title: str, column: Any, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{title}: column {column!r} is a {type(values).__name__}; must be a list or an array")
    return list(values)


def _cell(title: str, column: str, value: Any) -> Cell:
    if value is None or isinstance(value, bool) or type(value).__name__ in _MISSING:
        return value if isinstance(value, bool) else None
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int):
        number = int(value)  # an enum prints as its name
        return number if -_MAX_PLAIN_INT - 1 <= number <= _MAX_PLAIN_INT else str(number)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if callable(getattr(value, "isoformat", None)):
        return str(value.isoformat())
    if callable(getattr(value, "item", None)):  # NumPy scalars and tensors
        try:
            return _cell(title, column, _item(value))
        except (ValueError, RuntimeError):  # an array of several values, or a duration
            pass
    raise TypeError(
        f"{title}: column {column!r} contains a {type(value).__name__}; "
        "a cell must be a string, number, boolean, date or None"
    )


def _item(value: Any) -> Any:
    """Return the value of a NumPy scalar or a tensor; a time whose `item()` is an integer becomes ISO text."""
    item = value.item()
    kind = getattr(getattr(value, "dtype", None), "kind", None)  # dtypes of torch have none
    if kind == "m" and item is not None:
        raise ValueError("a cell cannot be a duration")
    if kind != "M" or not isinstance(item, int):
        return item
    seconds, _, decimals = str(np.datetime_as_string(value.reshape(()))).partition(".")
    decimals = decimals.rstrip("0")
    return f"{seconds}.{decimals:0<6}" if decimals else seconds  # the digits of `datetime.isoformat`
