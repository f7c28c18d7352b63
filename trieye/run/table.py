"""What may be logged as a table: columns, rows or a data frame, with cells of plain values."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from trieye.config.names import printable
from trieye.run.media import place_of
from trieye.stats.operations import Cell, LogTable

MAX_TABLE_BYTES = 4 * 2**20
"""Of the table as JSON."""

_MIN_CELL_BYTES = 2
_PLAIN_INT = range(-(2**63), 2**63)
_MISSING = frozenset({"NAType", "NaTType"})
"""What pandas writes for a value that is not there."""


def table(name: str, content: Any, *, step: int, time: float) -> LogTable:
    """Check a table.

    Args:
        name: Name of the series.
        content: {column: values}, a list of {column: value} (a row without a column has an empty cell there), or a
            frame of pandas or polars, whose index is left out. A cell is a text, a number, a boolean, None, or a date.
            Numbers that are not finite become empty.
        step: Global step.
        time: Unix time in seconds.

    Raises:
        TypeError: It is no table, or a cell is something else.
        ValueError: Its columns differ in length or share a name, there are none, or it has more than `MAX_TABLE_BYTES`
            as JSON.
    """
    title, where = f"table {name!r}", place_of(name, step, time)
    columns = _columns(title, content)
    if not columns:
        raise ValueError(f"{title}: it has no columns")
    lengths = {column: len(values) for column, values in columns.items()}
    num_rows = next(iter(lengths.values()))
    if odd := [column for column, length in lengths.items() if length != num_rows]:
        first = next(iter(lengths))
        raise ValueError(
            f"{title}: column {odd[0]!r} has {lengths[odd[0]]} values, and column {first!r} has {num_rows}"
        )
    _check_size(title, num_rows * len(columns) * _MIN_CELL_BYTES, num_rows)
    cells = [[_cell(title, column, value) for value in values] for column, values in columns.items()]
    encoded = msgspec.json.encode({"columns": list(columns), "data": list(zip(*cells, strict=True))})
    _check_size(title, len(encoded), num_rows)
    return LogTable(*where, num_rows, encoded)


def _check_size(title: str, size_bytes: int, num_rows: int) -> None:
    if size_bytes > MAX_TABLE_BYTES:
        raise ValueError(
            f"{title}: its {num_rows} rows take at least {size_bytes / 2**20:.1f} MiB; at most "
            f"{MAX_TABLE_BYTES // 2**20} MiB are possible, so log fewer rows or save it with log_artifact"
        )


def _columns(title: str, content: Any) -> dict[str, list[Any]]:
    if isinstance(content, Mapping):
        return _named(title, ((column, _values(title, column, values)) for column, values in content.items()))
    if isinstance(content, list | tuple):
        if strange := [row for row in content if not isinstance(row, Mapping)]:
            raise TypeError(f"{title}: a row is a dict, and one is a {type(strange[0]).__name__}")
        keys = dict.fromkeys(column for row in content for column in row)
        return _named(title, ((column, [row.get(column) for row in content]) for column in keys))
    if hasattr(content, "columns") and hasattr(content, "__getitem__"):  # a frame of pandas or polars
        names = list(content.columns)
        if len(set(names)) < len(names):
            raise ValueError(f"{title}: several of its columns share a name")
        return _named(title, ((column, list(content[column])) for column in names))
    raise TypeError(
        f"{title}: a {type(content).__name__}; possible are a dict of columns, a list of dicts and a data frame"
    )


def _named(title: str, columns: Iterable[tuple[Any, list[Any]]]) -> dict[str, list[Any]]:
    named: dict[str, list[Any]] = {}
    for column, values in columns:
        name = printable(str(column))
        if name in named:
            raise ValueError(f"{title}: several of its columns are called {name!r}")
        named[name] = values
    return named


def _values(title: str, column: Any, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{title}: column {column!r} is a {type(values).__name__}; a column is a list or an array")
    return list(values)


def _cell(title: str, column: str, value: Any) -> Cell:
    if value is None or isinstance(value, bool) or type(value).__name__ in _MISSING:
        return value if isinstance(value, bool) else None
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, int):
        return int(value) if value in _PLAIN_INT else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if callable(getattr(value, "isoformat", None)):
        return str(value.isoformat())
    if callable(getattr(value, "item", None)):  # NumPy scalars and tensors
        try:
            return _cell(title, column, value.item())
        except (ValueError, RuntimeError):  # an array of several values
            pass
    raise TypeError(
        f"{title}: column {column!r} holds a {type(value).__name__}; "
        "a cell is a text, a number, a boolean, a date or None"
    )
