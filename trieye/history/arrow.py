"""Columns of Arrow without `pyarrow.array`, `pyarrow.scalar` and `to_numpy`, which import pandas: 0.5 s of CPU."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


def numbers(values: NDArray[Any], *, blank: NDArray[np.bool_] | None = None) -> "pa.Array":
    """Return a column of numbers.

    Args:
        values: One-dimensional array.
        blank: `[len(values)]`, the rows that are null; None for none.
    """
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [_validity(blank), data])


def as_numpy(column: "pa.Array | pa.ChunkedArray", *, null: int = 0) -> NDArray[Any]:
    """Return a column of numbers as a read-only array, with `null` for null."""
    import pyarrow as pa

    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        array = array.fill_null(numbers(np.array([null])).cast(array.type)[0])
    return np.from_dlpack(array)


def strings(texts: Sequence[str]) -> "pa.Array":
    """Return a column of texts."""
    import pyarrow as pa

    encoded = [text.encode() for text in texts]
    return pa.Array.from_buffers(pa.string(), len(texts), [None, _offsets(list(map(len, encoded))), _joined(encoded)])


def binaries(contents: Mapping[int, bytes], num: int) -> "pa.Array":
    """Return a column of bytes.

    Args:
        contents: The contents by row, in order of the rows; the other rows are null.
        num: Number of rows.
    """
    import pyarrow as pa

    lengths, blank = np.zeros(num, np.int32), np.ones(num, bool)
    rows = list(contents)
    lengths[rows], blank[rows] = list(map(len, contents.values())), False
    return pa.Array.from_buffers(pa.binary(), num, [_validity(blank), _offsets(lengths), _joined(contents.values())])


def _validity(blank: NDArray[np.bool_] | None) -> "pa.Buffer | None":
    import pyarrow as pa

    return None if blank is None else pa.py_buffer(np.packbits(~blank, bitorder="little"))


def _offsets(lengths: Sequence[int] | NDArray[np.int32]) -> "pa.Buffer":
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


def _joined(contents: Iterable[bytes]) -> "pa.Buffer":
    import pyarrow as pa

    return pa.py_buffer(b"".join(contents))
