"""Segments: Parquet files of the history, of which each row group is checked when it is read.

The file of the items 0 to 49999 is `points-0-50000.parquet`. Its rows have an index, a kind, and what a point has; an
operation has only a kind and its bytes. What the file says of itself (where each row group begins, its checksum, which
items are superseded) is JSON in the metadata, with a checksum of its own: whatever is damaged, a value is right or it
is missing.
"""

import contextlib
import errno
import re
import secrets
import zlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from trieye.exceptions import SerializationError
from trieye.files.atomic import fsync_directory
from trieye.files.checksum import ChecksumFile
from trieye.history.arrow import DICTIONARIES, file_schema, from_file_table, to_file_table
from trieye.history.columns import Columns, regrouped
from trieye.history.ranges import Range
from trieye.journal.journal import Segment

GROUP_ITEMS = 65_536
"""Items of a row group: the least that is read at once, 2.6 MB in memory."""

GROUP_BYTES = 4 << 20
"""Bytes that the operations of a row group take, unless a single one takes more."""

SCRATCH = ".points-*.tmp"
"""What a process that died while it wrote leaves behind."""

ABOUT = b"trieye"
CRC = b"trieye.crc32"
_NAME = re.compile(r"points-(\d+)-(\d+)\.parquet")
# random walks take 7.7 bytes a point in this way, 10.2 with dictionaries of times, at the same speed
_ENCODINGS = {
    "index": "DELTA_BINARY_PACKED",
    "value": "BYTE_STREAM_SPLIT",
    "step": "DELTA_BINARY_PACKED",
    "wall_time": "BYTE_STREAM_SPLIT",
    "count": "DELTA_BINARY_PACKED",
    "payload": "PLAIN",
}
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": DICTIONARIES,
    "column_encoding": _ENCODINGS,
    "write_page_checksum": True,
    "store_schema": False,
}


class Group(NamedTuple):
    """A row group: its indices, and the checksum of its columns."""

    first: int
    end: int
    crc: int


class About(msgspec.Struct, frozen=True):
    """What a segment says of itself.

    Attributes:
        groups: The row groups.
        superseded: What was superseded when it was written, anywhere in the history.
    """

    groups: list[Group]
    superseded: list[Range]

    def group_of(self, index: int) -> int:
        """Return the number of the row group that has an item."""
        return bisect_right(self.groups, index, key=attrgetter("first")) - 1


def segment_name(first: int, end: int) -> str:
    """Return the file name of the segment with the items [first, end)."""
    return f"points-{first}-{end}.parquet"


def range_of(name: str) -> Range | None:
    """Return which items a file has by its name; None if it is no segment."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def write_segment(
    directory: Path, parts: Iterable[Columns], superseded: Callable[[], Sequence[Range]]
) -> Generator[None, None, Segment]:
    """Write a file that is whole and on the disk when it gets its name; yields after each row group.

    Args:
        directory: Where; it exists.
        parts: What to write, without gaps.
        superseded: Returns what the file is to say of superseded items; called at the end.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    import pyarrow.parquet as pq

    scratch = directory / SCRATCH.replace("*", secrets.token_hex(4))
    try:
        # closing the writer comes first, on errors too: Arrow keeps the file until then
        with ChecksumFile(scratch) as file, pq.ParquetWriter(_Sink(file), file_schema(), **_OPTIONS) as writer:
            groups = []
            for columns in regrouped(parts, max_items=GROUP_ITEMS, max_bytes=GROUP_BYTES):
                writer.write_table(to_file_table(columns))
                groups.append(Group(columns.first, columns.end, columns.checksum()))
                yield
            writer.add_key_value_metadata(_metadata(About(groups, list(superseded()))))
        first, end = groups[0].first, groups[-1].end
        scratch.replace(directory / segment_name(first, end))
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    fsync_directory(directory)
    return Segment(first, end, segment_name(first, end), file.size_bytes, file.crc32)


class _Sink:
    """What Arrow takes for a file."""

    closed = False

    def __init__(self, file: ChecksumFile) -> None:
        self.write = file.write


def _metadata(about: About) -> dict[bytes, bytes]:
    text = msgspec.json.encode(about)
    return {ABOUT: text, CRC: str(zlib.crc32(text)).encode()}


def _about(metadata: Mapping[bytes, bytes]) -> About:
    text = metadata.get(ABOUT, b"")
    if metadata.get(CRC) != str(zlib.crc32(text)).encode():
        raise ValueError("its metadata is damaged")
    return msgspec.json.decode(text, type=About)


@contextlib.contextmanager
def _damage_is_ours() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        # Arrow's own have no number; one of the system says nothing about the file, unless the medium is broken
        if error.errno not in {None, errno.EIO}:
            raise
        raise SerializationError(str(error)) from error
    except (pa.ArrowException, ValueError, KeyError, IndexError, msgspec.DecodeError, MemoryError) as error:
        raise SerializationError(str(error)) from error


class SegmentFile:
    """One segment that is being read.

    Args:
        file: The open file; it stays the caller's.
        span: The items that it should have.

    Attributes:
        about: What it says of itself.

    Raises:
        SerializationError: It does not say what it holds, or holds something else.
        OSError: It cannot be read now.
    """

    def __init__(self, file: BinaryIO, span: Range) -> None:
        import pyarrow.parquet as pq

        with _damage_is_ours():
            self._parquet = pq.ParquetFile(file, read_dictionary=DICTIONARIES, page_checksum_verification=True)
            self.about = _about(self._parquet.schema_arrow.metadata or {})
            if self._parquet.schema_arrow.remove_metadata() != file_schema():
                raise ValueError("its columns are not those of a segment")
            groups = self.about.groups
            if len(groups) != self._parquet.num_row_groups or (groups[0].first, groups[-1].end) != span:
                raise ValueError("it holds something else than its name says")

    def read(self, number: int) -> Columns:
        """Return a row group.

        Raises:
            SerializationError: It is damaged.
            OSError: It cannot be read now.
        """
        group = self.about.groups[number]
        with _damage_is_ours():
            columns = from_file_table(self._parquet.read_row_group(number, use_threads=False))
            if columns.end != group.end or columns.checksum() != group.crc:
                raise ValueError("the checksum is wrong")
        return columns

    def is_whole(self) -> bool:
        """Tell whether every row group can be read."""
        try:
            for number in range(len(self.about.groups)):
                self.read(number)
        except SerializationError:
            return False
        return True
