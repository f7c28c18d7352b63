"""Segments: Parquet files of the history, whose row groups are verified on every read.

The file of the items 0 to 49999 is `points-0-50000.parquet`. A row has an index, a kind, and the fields of a point or
the bytes of an operation. The metadata contain JSON, protected by a checksum, with the item range and the checksum of
each row group and the superseded ranges. Damage of any kind can remove values, but never change them.
"""

import contextlib
import errno
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import SerializationError
from trieye.files.atomic import write_atomic
from trieye.history.arrow import as_numpy, binaries, numbers, strings
from trieye.history.columns import Columns, grouped
from trieye.journal.journal import Segment
from trieye.journal.ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ITEMS = 65_536
"""Items per row group, the unit of reading: 2.6 MB in memory."""

GROUP_BYTES = 4 << 20
"""Maximum size of the operations in a row group, unless a single operation is larger."""

POINT = "point"
"""Kind of the rows with a point; the kind of an operation is its tag."""

_ABOUT, _CRC = b"trieye", b"trieye.crc32"
_NAME = re.compile(r"points-(\d+)-(\d+)\.parquet")
_COLUMNS = ["index", "kind", "metric", "value", "step", "wall_time", "count", "log_to", "payload"]
_READ = _COLUMNS[2:]  # the first two serve other programs
_DICTIONARIES = ["kind", "metric", "log_to"]
# random walks take 7.7 bytes per point with these encodings, 10.2 with dictionaries of times, at the same speed
_ENCODINGS = dict.fromkeys(["index", "step", "count"], "DELTA_BINARY_PACKED")
_ENCODINGS |= {"value": "BYTE_STREAM_SPLIT", "wall_time": "BYTE_STREAM_SPLIT", "payload": "PLAIN"}
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": _DICTIONARIES,
    "column_encoding": _ENCODINGS,
    "write_page_checksum": True,
    "store_schema": False,
}


class _Tagged(msgspec.Struct):
    """Any operation, including operations of later versions."""

    type: str


_tag_of = msgspec.msgpack.Decoder(_Tagged).decode
_targets_of = msgspec.json.Decoder(tuple[str, ...]).decode


class Group(NamedTuple):
    """A row group: its index range, and the checksum of its columns."""

    first: int
    end: int
    crc: int


class About(msgspec.Struct, frozen=True):
    """Metadata of a segment.

    Attributes:
        groups: The row groups.
        superseded: All superseded ranges of the history at the time of the write.
    """

    groups: list[Group]
    superseded: list[Range]


def range_of(name: str) -> Range | None:
    """Parse the item range in the name of a segment; None for other files."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def write_segment(directory: Path, parts: Iterable[Columns], superseded_ranges: Sequence[Range]) -> Segment:
    """Write a segment atomically and durably.

    Args:
        directory: An existing directory.
        parts: Consecutive items, consumed lazily.
        superseded_ranges: The superseded ranges, for the metadata.

    Raises:
        OSError: The file cannot be written; no partial file remains.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups = []
    buffer = pa.BufferOutputStream()  # a file is due at 4 MB
    with pq.ParquetWriter(buffer, _schema(), **_OPTIONS) as writer:
        for columns in grouped(parts, max_items=GROUP_ITEMS, max_bytes=GROUP_BYTES):
            writer.write_table(_to_table(columns))
            groups.append(Group(columns.first, columns.end, columns.checksum()))
        text = msgspec.json.encode(About(groups, list(superseded_ranges)))
        writer.add_key_value_metadata({_ABOUT: text, _CRC: str(zlib.crc32(text)).encode()})
    data = buffer.getvalue().to_pybytes()
    first, end = groups[0].first, groups[-1].end
    name = f"points-{first}-{end}.parquet"
    write_atomic(directory / name, data)
    return Segment(first, end, name, len(data), zlib.crc32(data))


class SegmentFile:
    """A segment that is open for reading.

    Args:
        file: The open file; the caller closes it.
        span: The item range in its name.

    Attributes:
        about: Its metadata.

    Raises:
        SerializationError: The metadata are damaged or contradict the name.
        OSError: The file is temporarily unreadable.
    """

    def __init__(self, file: BinaryIO, span: Range) -> None:
        import pyarrow.parquet as pq

        with _damage_as_serialization_error():
            self._parquet = pq.ParquetFile(
                file,
                read_dictionary=_DICTIONARIES,
                pre_buffer=False,  # its thread would call `file`, and abort a process that exits in the meantime
                page_checksum_verification=True,
            )
            metadata = self._parquet.schema_arrow.metadata or {}
            text = metadata[_ABOUT]
            if metadata[_CRC] != str(zlib.crc32(text)).encode():
                raise ValueError("the metadata are damaged")
            self.about = msgspec.json.decode(text, type=About)
            if self._parquet.schema_arrow.remove_metadata() != _schema():
                raise ValueError("its columns do not belong to a history file")
            if (self.about.groups[0].first, self.about.groups[-1].end) != span:
                raise ValueError("the content does not match the file name")

    def group_of(self, index: int) -> int:
        """Return the number of the row group that contains an item."""
        return bisect_right(self.about.groups, index, key=attrgetter("first")) - 1

    def read(self, number: int) -> Columns:
        """Return a row group.

        Raises:
            SerializationError: The row group is damaged.
            OSError: The file is temporarily unreadable.
        """
        group = self.about.groups[number]
        with _damage_as_serialization_error():
            columns = _from_table(group.first, self._parquet.read_row_group(number, columns=_READ, use_threads=False))
            if columns.checksum() != group.crc:
                raise ValueError("the checksum does not match")
        return columns


@contextlib.contextmanager
def _damage_as_serialization_error() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        # Arrow's OSErrors have no errno; a system error does not imply damage, except EIO
        if error.errno not in {None, errno.EIO}:
            raise
        raise SerializationError(str(error)) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, msgspec.DecodeError, MemoryError) as error:
        raise SerializationError(str(error)) from error


def _schema() -> "pa.Schema":
    import pyarrow as pa

    text, integer, real = pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.float64()
    types = [integer, text, text, real, integer, real, integer, text, pa.binary()]
    return pa.schema(list(zip(_COLUMNS, types, strict=True)))


def _to_table(columns: Columns) -> "pa.Table":
    import pyarrow as pa

    blank = np.zeros(len(columns), bool)
    blank[list(columns.operations)] = True
    kinds, kind_codes = {POINT: 0}, np.zeros(len(columns), np.int32)
    for row, data in columns.operations.items():
        kind_codes[row] = kinds.setdefault(_tag_of(data).type, len(kinds))
    # lists of strings would take 40 times as long to read as all other columns together
    targets = [msgspec.json.encode(target).decode() for target in columns.targets]
    arrays = [
        numbers(np.arange(columns.first, columns.end)),
        pa.DictionaryArray.from_arrays(numbers(kind_codes), strings(list(kinds))),
        pa.DictionaryArray.from_arrays(numbers(columns.name_codes, blank=blank), strings(columns.names)),
        *(numbers(column, blank=blank) for column in (columns.values, columns.steps, columns.times, columns.counts)),
        pa.DictionaryArray.from_arrays(numbers(columns.target_codes, blank=blank), strings(targets)),
        binaries(columns.operations, len(columns)),
    ]
    return pa.table(arrays, schema=_schema())


def _from_table(first: int, table: "pa.Table") -> Columns:
    import pyarrow.compute as pc

    names, name_codes = _texts(table["metric"], "")
    targets, target_codes = _texts(table["log_to"], "[]")
    values, steps, times, counts = (as_numpy(table[name]) for name in ("value", "step", "wall_time", "count"))
    payload = table["payload"]
    rows = pc.indices_nonzero(payload.is_valid()).to_pylist()
    operations = dict(zip(rows, payload.drop_null().to_pylist(), strict=True))
    decoded = [_targets_of(target) for target in targets]
    return Columns(first, names, name_codes, values, steps, times, decoded, target_codes, counts, operations)


def _texts(column: "pa.ChunkedArray", blank: str) -> tuple[list[str], NDArray[np.int32]]:
    array = column.combine_chunks()
    entries: list[str] = array.dictionary.to_pylist()
    codes = as_numpy(array.indices, null=len(entries))
    if array.null_count:  # rows of operations
        entries.append(blank)
    return entries, codes
