"""Compacted: the points of many runs in one Parquet file beside them, from which a metric of all is read at once.

Each metric is a row group, or several: the points of the first run, those of the second, and so on. The metadata say as
JSON, with a checksum of its own, which runs there are, as they were then, and how many points each has of each metric.
The file is a copy: whatever is wrong with it, it is left aside, and written again from the runs.
"""

import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trieye.files.atomic import write_atomic
from trieye.results.runs import NOTHING, Points, Series

FILE = ".trieye-results.parquet"
"""Its name, in the directory of the app or of the sweep."""

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
"""What reading raises if the file is not whole."""


class _Metric(msgspec.Struct, array_like=True):
    """Where the points of a metric are: the row groups, and how many each run has."""

    first_group: int
    end_group: int
    counts: list[int]


class _About(msgspec.Struct):
    """What the file says of itself."""

    version: int
    runs: dict[str, str]
    metrics: dict[str, _Metric]


class Compacted:
    """A file that is being read.

    Args:
        path: The file.

    Attributes:
        stamps: What each run was like when it was read, by the name under which it was written.

    Raises:
        OSError, ValueError, KeyError, pa.ArrowException: It is not there, or not whole (`DAMAGE`).
    """

    def __init__(self, path: Path) -> None:
        self._parquet = pq.ParquetFile(path, page_checksum_verification=True)
        metadata = self._parquet.schema_arrow.metadata or {}
        text = metadata[_ABOUT]
        if metadata[_CRC] != str(zlib.crc32(text)).encode():
            raise ValueError("its metadata are damaged")
        self._about = msgspec.json.decode(text, type=_About)
        if self._about.version != _VERSION:
            raise ValueError("another version of trieye wrote it")
        self.stamps: Mapping[str, str] = self._about.runs

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """Return the file, or None if there is none that is whole."""
        try:
            return cls(path)
        except DAMAGE:
            return None

    @property
    def metrics(self) -> Collection[str]:
        """The names of the metrics in it."""
        return self._about.metrics

    def read(self, metrics: Collection[str] | None) -> dict[str, dict[str, Series]]:
        """Return the points of all runs in it, by the names of the runs.

        Args:
            metrics: Only these; None: all.

        Raises:
            OSError, ValueError, KeyError, pa.ArrowException: It is damaged.
        """
        found: dict[str, dict[str, Series]] = {name: {} for name in self.stamps}
        for metric, place in self._about.metrics.items():
            if metrics is not None and metric not in metrics:
                continue
            table = self._parquet.read_row_groups(range(place.first_group, place.end_group), columns=list(_COLUMNS))
            columns = [table[name].to_numpy() for name in _COLUMNS]
            if sum(place.counts) != table.num_rows:
                raise ValueError(f"{metric}: it has not as many points as it says")
            end = 0
            for name, count in zip(found, place.counts, strict=True):
                first, end = end, end + count
                if count:
                    found[name][metric] = Series(*(column[first:end] for column in columns))
        return found


def write(path: Path, stamps: Mapping[str, str], points: Mapping[str, Points]) -> None:
    """Write a file that is whole when it gets its name.

    Args:
        path: The file; an old one is replaced.
        stamps: What each run is like, by a name of it.
        points: Their points, by the same names.

    Raises:
        OSError: It cannot be written.
    """
    held = [points[name] for name in stamps]
    about = _About(_VERSION, dict(stamps), {})
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, pa.schema(list(_COLUMNS.items())), **_OPTIONS) as writer:
        num_groups = 0
        for metric in sorted({name for one in held for name in one}):
            series = [one.get(metric, NOTHING) for one in held]
            table = _table(series)
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            first, num_groups = num_groups, num_groups + -(-table.num_rows // _GROUP_ROWS)
            about.metrics[metric] = _Metric(first, num_groups, [len(one.steps) for one in series])
        text = msgspec.json.encode(about)
        writer.add_key_value_metadata({_ABOUT: text, _CRC: str(zlib.crc32(text)).encode()})
    write_atomic(path, buffer.getvalue().to_pybytes())


def _table(series: Sequence[Series]) -> pa.Table:
    columns: Iterable[Any] = zip(*series, strict=True)
    return pa.table(dict(zip(_COLUMNS, map(np.concatenate, columns), strict=True)))
