"""Columns of the history as Arrow tables: how they lie in Parquet, and how people get them."""

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from trieye.history.columns import Columns

if TYPE_CHECKING:
    import pyarrow as pa

POINT = "point"
"""Kind of a row that is a point; that of an operation is its name."""

DICTIONARIES = ["kind", "metric", "log_to"]
"""Columns of few different texts."""


class _Tagged(msgspec.Struct):
    """Any operation, also one of a later version."""

    type: str


_tag_of = msgspec.msgpack.Decoder(_Tagged).decode
_targets_of = msgspec.json.Decoder(tuple[str, ...]).decode


def file_schema() -> "pa.Schema":
    """Return the columns of a segment."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    columns = {
        "index": pa.int64(),
        "kind": text,
        "metric": text,
        "value": pa.float64(),
        "step": pa.int64(),
        "wall_time": pa.float64(),
        "count": pa.int64(),
        "log_to": text,
        "payload": pa.binary(),
    }
    return pa.schema(list(columns.items()))


def to_file_table(columns: Columns) -> "pa.Table":
    """Return columns as the rows of a segment; an operation has an index, a kind and its bytes, and nothing else."""
    import pyarrow as pa

    blank = np.zeros(len(columns), bool)
    blank[list(columns.operations)] = True
    # as lists of texts they would take 40 times as long to read as all other columns together
    targets = [msgspec.json.encode(target).decode() for target in columns.targets]
    arrays = [
        pa.array(np.arange(columns.first, columns.end)),
        _kinds(columns),
        pa.DictionaryArray.from_arrays(pa.array(columns.name_codes, mask=blank), pa.array(columns.names, pa.string())),
        pa.array(columns.values, mask=blank),
        pa.array(columns.steps, mask=blank),
        pa.array(columns.times, mask=blank),
        pa.array(columns.counts, mask=blank),
        pa.DictionaryArray.from_arrays(pa.array(columns.target_codes, mask=blank), pa.array(targets, pa.string())),
        _payloads(columns),
    ]
    return pa.Table.from_arrays(arrays, schema=file_schema())


def _kinds(columns: Columns) -> "pa.Array":
    import pyarrow as pa

    kinds, codes = [POINT], np.zeros(len(columns), np.int32)
    for row, data in columns.operations.items():
        codes[row] = len(kinds)
        kinds.append(_tag_of(data).type)
    return pa.DictionaryArray.from_arrays(codes, kinds).cast(pa.string()).dictionary_encode()


def _payloads(columns: Columns) -> "pa.Array":
    import pyarrow as pa

    if not columns.operations:
        return pa.nulls(len(columns), pa.binary())
    payloads: list[bytes | None] = [None] * len(columns)
    for row, data in columns.operations.items():
        payloads[row] = data
    return pa.array(payloads, pa.binary())


def from_file_table(table: "pa.Table") -> Columns:
    """Return the rows of a segment as columns, the opposite of `to_file_table`.

    Raises:
        ValueError: The rows are not those of a segment.
    """
    index = _numbers(table["index"], np.int64)
    if not len(index) or not np.array_equal(index, np.arange(index[0], index[0] + len(index))):
        raise ValueError("the indices do not follow each other")
    names, name_codes = _texts(table["metric"], "")
    targets, target_codes = _texts(table["log_to"], "[]")
    return Columns(
        int(index[0]),
        names,
        name_codes,
        _numbers(table["value"], np.float64),
        _numbers(table["step"], np.int64),
        _numbers(table["wall_time"], np.float64),
        [_targets_of(target) for target in targets],
        target_codes,
        _numbers(table["count"], np.int64),
        _operations(table["payload"]),
    )


def _numbers(column: "pa.ChunkedArray", dtype: type[np.generic]) -> NDArray[Any]:
    numbers: NDArray[Any] = column.fill_null(0).to_numpy()
    if numbers.dtype != dtype:
        raise ValueError(f"a column is {numbers.dtype}")
    return numbers


def _texts(column: "pa.ChunkedArray", blank: str) -> tuple[list[str], NDArray[np.int32]]:
    array = column.combine_chunks()
    entries: list[str] = array.dictionary.to_pylist()
    codes = array.indices
    if codes.null_count:  # where an operation stands
        codes = codes.fill_null(len(entries))
        entries.append(blank)
    return entries, codes.to_numpy()


def _operations(column: "pa.ChunkedArray") -> dict[int, bytes]:
    if column.null_count == len(column):
        return {}
    rows = np.flatnonzero(column.is_valid().to_numpy())
    return dict(zip(rows.tolist(), column.drop_null().to_pylist(), strict=True))


def to_points_table(columns: Columns, keep: NDArray[np.bool_]) -> "pa.Table":
    """Return points as people read them: index, metric, value, step, wall_time, count.

    Args:
        columns: Points and operations.
        keep: `[items]` which of them to return; no operations.
    """
    import pyarrow as pa

    # plain text: Arrow cannot group by dictionaries that differ from part to part
    names = pa.array(columns.names, pa.string())
    arrays = {
        "index": np.arange(columns.first, columns.end)[keep],
        "metric": names.take(pa.array(columns.name_codes[keep])),
        "value": columns.values[keep],
        "step": columns.steps[keep],
        "wall_time": columns.times[keep],
        "count": columns.counts[keep],
    }
    return pa.table(arrays, schema=points_schema())


def points_schema() -> "pa.Schema":
    """Return the columns of what people read."""
    import pyarrow as pa

    kinds = [pa.int64(), pa.string(), pa.float64(), pa.int64(), pa.float64(), pa.int64()]
    return pa.schema(list(zip(("index", "metric", "value", "step", "wall_time", "count"), kinds, strict=True)))
