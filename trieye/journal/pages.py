"""Rows of a journal read from the bytes of single pages, wherever the tree that led to them is broken.

The format is SQLite's (https://www.sqlite.org/fileformat2.html): a leaf of a table holds cells of a size, a key and a
record; what does not fit there goes on in a chain of other pages. Nothing read here is believed without its checksum.
"""

import struct
from collections.abc import Callable, Iterator

from trieye.journal.schema import PAGE_SIZE, TABLES, Row, empty_first_page, is_keyed_by_text, is_whole

_LEAF = 0x0D
_FLOAT = struct.Struct(">d")
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)


def rows_in_pages(page_of: Callable[[int], bytes], num_pages: int, seed: int) -> Iterator[tuple[str, Row]]:
    """Yield table and values, the checksum last, of each whole row in a table whose key is a number.

    Rows that were deleted, and whose page was not used again, are among them.

    Args:
        page_of: Returns the bytes of a page; pages are counted from 1.
        num_pages: Pages of the file.
        seed: That of the journal.
    """
    tables = [table for table in TABLES if not is_keyed_by_text(table)]
    for number in range(2, num_pages + 1):
        page = page_of(number)
        if page[:1] != bytes([_LEAF]):
            continue
        for offset in struct.unpack_from(f">{min(int.from_bytes(page[3:5], 'big'), PAGE_SIZE // 4)}H", page, 8):
            row = _row(page_of, page, offset, num_pages)
            for table in tables if row is not None else []:
                typed = _typed(table, row or ())
                if typed is not None and is_whole(table, typed, seed):
                    yield table, typed


def _typed(table: str, row: Row) -> Row | None:
    """Return a row of a table with its numbers as SQLite returns them; None if it cannot be one of that table."""
    kinds = [column.split()[1] for column in TABLES[table].split(", ")] + ["INTEGER"]
    if len(row) != len(kinds):
        return None
    # in the file a REAL without fraction is an integer
    return tuple(
        float(value) if kind == "REAL" and isinstance(value, int) else value
        for kind, value in zip(kinds, row, strict=True)
    )


def _row(page_of: Callable[[int], bytes], page: bytes, offset: int, num_pages: int) -> Row | None:
    """Return the row of the cell at an offset; None if there is none that could be read."""
    try:
        size, offset = _varint(page, offset)
        key, offset = _varint(page, offset)
        if size > num_pages * PAGE_SIZE:
            return None
        return (key, *_values(_content(page_of, page, offset, size))[1:])
    except (IndexError, struct.error, ValueError):
        return None


def _content(page_of: Callable[[int], bytes], page: bytes, offset: int, size: int) -> bytes:
    usable = PAGE_SIZE - empty_first_page()[20]
    most, least = usable - 35, (usable - 12) * 32 // 255 - 23
    if size <= most:
        return page[offset : offset + size]
    local = least + (size - least) % (usable - 4)
    local = local if local <= most else least
    parts = [page[offset : offset + local]]
    missing = size - local
    (following,) = struct.unpack_from(">I", page, offset + local)
    while missing > 0 and following:
        overflow = page_of(following)
        parts.append(overflow[4 : min(usable, 4 + missing)])
        missing -= usable - 4
        (following,) = struct.unpack_from(">I", overflow)
    return b"".join(parts)


def _values(record: bytes) -> list[object]:
    """Return the values of a record: types first, then the values themselves."""
    header_end, offset = _varint(record, 0)
    types = []
    while offset < header_end:
        kind, offset = _varint(record, offset)
        types.append(kind)
    values: list[object] = []
    for kind in types:
        value, offset = _value(record, offset, kind)
        values.append(value)
    return values


def _value(record: bytes, offset: int, kind: int) -> tuple[object, int]:
    if kind == 0:
        return None, offset
    if kind < len(_INTEGER_BYTES):
        end = offset + _INTEGER_BYTES[kind]
        return int.from_bytes(record[offset:end], "big", signed=True), end
    if kind == 7:  # noqa: PLR2004 - numbers of the format
        return _FLOAT.unpack_from(record, offset)[0], offset + 8
    if kind in {8, 9}:
        return kind - 8, offset
    if kind < 12:  # noqa: PLR2004
        raise ValueError("no such type")
    end = offset + (kind - 12) // 2
    data = record[offset:end]
    return (data.decode(errors="replace") if kind % 2 else data), end


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a number of 1 to 9 bytes and the offset after it."""
    value = 0
    for count in range(8):
        byte = data[offset + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that another byte follows
            return value, offset + count + 1
    value = value << 8 | data[offset + 8]
    return value - (1 << 64 if value >> 63 else 0), offset + 9
