"""Columns: consecutive items of the history as an array per field; serialized as chunks of the journal."""

import zlib
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import attrgetter
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trieye.journal.event_payloads import from_bytes, to_bytes
from trieye.journal.ranges import Range
from trieye.stats.operations import Item
from trieye.stats.point import Point

T = TypeVar("T", bound=Hashable)
Targets = tuple[str, ...]

_ARRAYS = {"name_codes": "<i4", "values": "<f8", "steps": "<i8", "times": "<f8", "target_codes": "<i4", "counts": "<i8"}
# no compression: it would cost half as much time as everything else, and a chunk exists only for minutes
_encode = msgspec.msgpack.Encoder(enc_hook=np.ndarray.tobytes).encode
_decode = msgspec.msgpack.Decoder(
    tuple[int, list[str], bytes, bytes, bytes, bytes, list[Targets], bytes, bytes, dict[int, bytes]]
).decode

BLANK = Point(metric="", value=0.0, step=0, wall_time=0.0, log_to=(), count=0)
"""Placeholder in the arrays at the index of an operation."""

# construction of a frozen dataclass reaches 0.6 M/s; filling its slots by column, without Python frames, 3 M/s
_SETTERS = [getattr(Point, name).__set__ for name in ("metric", "value", "step", "wall_time", "log_to", "count")]


@dataclass(frozen=True, slots=True)
class Columns:
    """Items with consecutive indices.

    Attributes:
        first: Index of the first item.
        names: The distinct metrics.
        name_codes: `[items]` int32, indices into `names`.
        values: `[items]` float64.
        steps: `[items]` int64.
        times: `[items]` float64, Unix time in seconds.
        targets: The distinct values of `log_to`.
        target_codes: `[items]` int32, indices into `targets`.
        counts: `[items]` int64.
        operations: Serialized operations by their offset from `first`, ascending; the arrays have placeholders there.
    """

    first: int
    names: list[str]
    name_codes: NDArray[np.int32]
    values: NDArray[np.float64]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    targets: list[Targets]
    target_codes: NDArray[np.int32]
    counts: NDArray[np.int64]
    operations: Mapping[int, bytes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def end(self) -> int:
        """Index after the last item."""
        return self.first + len(self)

    @property
    def operation_bytes(self) -> int:
        """Total size of all operations in bytes."""
        return sum(map(len, self.operations.values()))

    @classmethod
    def from_items(cls, first: int, items: Sequence[Item]) -> Self:
        """Convert items to columns."""
        operations = {offset: to_bytes(item) for offset, item in enumerate(items) if not isinstance(item, Point)}
        points = [item if isinstance(item, Point) else BLANK for item in items] if operations else items
        names, name_codes = _dictionary(map(attrgetter("metric"), points))
        targets, target_codes = _dictionary(map(attrgetter("log_to"), points))
        return cls(
            first,
            names,
            name_codes,
            np.array(list(map(attrgetter("value"), points)), "<f8"),
            np.array(list(map(attrgetter("step"), points)), "<i8"),
            np.array(list(map(attrgetter("wall_time"), points)), "<f8"),
            [tuple(target) for target in targets],
            target_codes,
            np.array(list(map(attrgetter("count"), points)), "<i8"),
            operations,
        )

    def items(self) -> list[Item]:
        """Convert the columns to items.

        Raises:
            SerializationError: An operation is damaged.
        """
        items: list[Any] = list(map(object.__new__, repeat(Point, len(self))))
        columns: list[Iterable[Any]] = [
            map(self.names.__getitem__, self.name_codes.tolist()),
            self.values.tolist(),
            self.steps.tolist(),
            self.times.tolist(),
            map(self.targets.__getitem__, self.target_codes.tolist()),
            self.counts.tolist(),
        ]
        for fill, column in zip(_SETTERS, columns, strict=True):
            deque(map(fill, items, column), maxlen=0)
        for offset, data in self.operations.items():
            items[offset] = from_bytes(data)
        return items

    @classmethod
    def from_chunk(cls, payload: bytes) -> Self:
        """Deserialize the result of `to_chunk`, whose integrity the journal has verified."""
        fields: dict[str, Any] = dict(zip(cls.__slots__, _decode(payload), strict=True))
        return cls(**fields | {name: np.frombuffer(fields[name], dtype) for name, dtype in _ARRAYS.items()})

    def to_chunk(self) -> bytes:
        """Serialize the columns for the journal."""
        return _encode([getattr(self, name) for name in self.__slots__])

    def part(self, first: int, end: int) -> Self:
        """Return the items with indices in [first, end), sharing memory."""
        low, high = first - self.first, end - self.first
        operations = {offset - low: data for offset, data in self.operations.items() if low <= offset < high}
        arrays: dict[str, Any] = {name: getattr(self, name)[low:high] for name in _ARRAYS}
        return replace(self, first=first, operations=operations, **arrays)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Concatenate consecutive parts."""
        names, name_codes = _joined_codes([(part.names, part.name_codes) for part in parts])
        targets, target_codes = _joined_codes([(part.targets, part.target_codes) for part in parts])
        first = parts[0].first
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
        arrays |= {"name_codes": name_codes, "target_codes": target_codes}
        operations = {part.first - first + offset: data for part in parts for offset, data in part.operations.items()}
        return cls(first=first, names=names, targets=targets, operations=operations, **arrays)

    def checksum(self) -> int:
        """Return a CRC-32 of all indices and values, independent of the order of names and targets."""
        names = [name.encode() for name in self.names]
        targets = [repr(target).encode() for target in self.targets]
        arrays: list[NDArray[Any]] = [np.array([self.first, len(self)], "<i8")]
        for entries, codes in ((names, self.name_codes), (targets, self.target_codes)):
            arrays.append(np.array([zlib.crc32(entry) for entry in entries], "<u4")[codes])
        arrays += [self.values, self.steps, self.times, self.counts]
        crc = 0
        for array in arrays:
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
        for offset, operation_bytes in self.operations.items():
            crc = zlib.crc32(operation_bytes, zlib.crc32(f"{offset} {len(operation_bytes)}".encode(), crc))
        return crc


def cut(span: Range, sizes: Iterable[tuple[int, int]], *, max_bytes: int) -> int:
    """Return the end of a prefix of a span whose operations take at most `max_bytes`, or consist of one operation.

    Args:
        span: First index and end of the span.
        sizes: Index and size of operations, ascending; operations outside of the span are ignored.
        max_bytes: Maximum total size of the operations.
    """
    first, end = span
    total = 0
    for index, size in sizes:
        if first <= index < end:
            total += size
            if total > max_bytes and index > first:
                return index
    return end


def grouped(parts: Iterable[Columns], *, max_items: int, max_bytes: int) -> Iterator[Columns]:
    """Merge consecutive parts, without splitting any, into groups as large as the limits allow.

    Args:
        parts: Consecutive columns.
        max_items: Maximum items per group; a larger part forms a separate group.
        max_bytes: Maximum size of the operations per group; a larger part forms a separate group.
    """
    group: list[Columns] = []
    num_items = num_bytes = 0
    for part in parts:
        num_items, num_bytes = num_items + len(part), num_bytes + part.operation_bytes
        if group and (num_items > max_items or num_bytes > max_bytes):
            yield Columns.joined(group)
            group, num_items, num_bytes = [], len(part), part.operation_bytes
        group.append(part)
    if group:
        yield Columns.joined(group)


def _dictionary(entries: Iterable[T]) -> tuple[list[T], NDArray[np.int32]]:
    code_by_entry: dict[T, int] = {}
    codes = [code_by_entry.setdefault(entry, len(code_by_entry)) for entry in entries]
    return list(code_by_entry), np.array(codes, "<i4")


def _joined_codes(parts: Sequence[tuple[list[T], NDArray[np.int32]]]) -> tuple[list[T], NDArray[np.int32]]:
    numbers: dict[T, int] = {}
    codes = []
    for entries, part in parts:
        # only the names that occur; otherwise the names of a long run accumulate
        used_codes = np.flatnonzero(np.bincount(part, minlength=len(entries)))
        mapping = np.zeros(len(entries), "<i4")
        mapping[used_codes] = [numbers.setdefault(entries[code], len(numbers)) for code in used_codes.tolist()]
        codes.append(mapping[part])
    return list(numbers), np.concatenate(codes)
