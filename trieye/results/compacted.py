"""Compacted: a Parquet cache of the points of many runs, laid out for reading one metric of all runs.

Each metric has one or more row groups, with the points of the first run, the second run, and so on. The metadata list,
as JSON with a checksum, the stamp of each run and its number of points of each metric. The file is only a cache: an
unreadable file is ignored and rewritten from the runs.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trieye.files.atomic import write_atomic
from trieye.history.arrow import as_numpy, numbers
from trieye.results.runs import NOTHING, Points, Series

FILE = ".trieye-results.parquet"
"""File name, in the directory of the app or the sweep."""

_ABOUT, _CRC, _VERSION = b"trieye.results", b"trieye.results.crc32", 1
_GROUP_ROWS = 16 << 20
_COLUMNS = {"step": pa.int64(), "value": pa.float64(), "wall_time": pa.float64()}
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "column_encoding": {"step": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT", "wall_time": "BYTE_STREAM_SPLIT"},
    "write_page_checksum": True,
    "store_schema": False,
}

DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError, IndexError)
"""Exceptions raised by reading a damaged file."""


class _Metric(msgspec.Struct, array_like=True):
    """The row groups of a metric, and the number of points of each run."""

    first_group: int
    end_group: int
    counts: list[int]


class _About(msgspec.Struct):
    """Metadata of the file."""

    version: int
    runs: dict[str, str]
    metrics: dict[str, _Metric]


class Compacted:
    """An open file.

    Args:
        path: The file.

    Attributes:
        stamps: Fingerprint of each run at the time of writing, by run name.

    Raises:
        OSError, ValueError, KeyError, pa.ArrowException: The file is missing or damaged (`DAMAGE`).
    """

    def __init__(self, path: Path) -> None:
        self._parquet = pq.ParquetFile(path, page_checksum_verification=True)
        metadata = self._parquet.schema_arrow.metadata or {}
        text = metadata[_ABOUT]
        if metadata[_CRC] != str(zlib.crc32(text)).encode():
            raise ValueError(f"{path} is damaged: the checksum of the metadata does not match")
        self._about = msgspec.json.decode(text, type=_About)
        if self._about.version != _VERSION:
            raise ValueError(f"{path} has version {self._about.version}, but this trieye reads version {_VERSION}")
        self.stamps: Mapping[str, str] = self._about.runs

    def read(self, metrics: Collection[str] | None) -> dict[str, dict[str, Series]]:
        """Return the points of all runs, by run name and metric.

        Args:
            metrics: Only these; None: all.

        Raises:
            OSError, ValueError, KeyError, pa.ArrowException: The file is damaged.
        """
        points: dict[str, dict[str, Series]] = {name: {} for name in self.stamps}
        for metric, entry in self._about.metrics.items():
            if metrics is not None and metric not in metrics:
                continue
            table = self._parquet.read_row_groups(range(entry.first_group, entry.end_group), columns=list(_COLUMNS))
            columns = [as_numpy(table[name]) for name in _COLUMNS]
            if sum(entry.counts) != table.num_rows:
                raise ValueError(f"{metric}: {table.num_rows} points instead of {sum(entry.counts)}")
            end = 0
            for name, count in zip(points, entry.counts, strict=True):
                first, end = end, end + count
                if count:
                    points[name][metric] = Series(*(column[first:end] for column in columns))
        return points


def write(path: Path, stamps: Mapping[str, str], points: Mapping[str, Points]) -> None:
    """Write a file atomically.

    Args:
        path: The file; an existing file is replaced.
        stamps: Fingerprint of each run, by run name.
        points: Points of each run, by the same names.

    Raises:
        OSError: The file cannot be written.
    """
    runs = [points[name] for name in stamps]
    footer = _About(_VERSION, dict(stamps), {})
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, pa.schema(list(_COLUMNS.items())), **_OPTIONS) as writer:
        num_groups = 0
        for metric in sorted({name for metrics in runs for name in metrics}):
            series = [metrics.get(metric, NOTHING) for metrics in runs]
            table = _table(series)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            first, num_groups = num_groups, num_groups + -(-table.num_rows // _GROUP_ROWS)
            footer.metrics[metric] = _Metric(first, num_groups, [len(one.steps) for one in series])
        text = msgspec.json.encode(footer)
        writer.add_key_value_metadata({_ABOUT: text, _CRC: str(zlib.crc32(text)).encode()})
    write_atomic(path, buffer.getvalue().to_pybytes())


def _table(series: Sequence[Series]) -> pa.Table:
    columns: Iterable[Any] = zip(*series, strict=True)
    return pa.table({name: numbers(np.concatenate(arrays)) for name, arrays in zip(_COLUMNS, columns, strict=True)})
