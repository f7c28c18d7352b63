"""Take every whole row out of a damaged journal."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trieye.journal.file import wal_path
from trieye.journal.keys import MAX_CALLS
from trieye.journal.pages import rows_in_pages
from trieye.journal.schema import (
    IDENTITY,
    PAGE_SIZE,
    STATE,
    TABLES,
    Row,
    State,
    columns,
    empty_first_page,
    is_whole,
    seed_of,
    select,
    with_size,
)
from trieye.journal.wal import read_wal

_IN_PAGES = frozenset({"records", "calls", "snapshots", "chunks"})
"""Tables of which an old row, found on a page that is in no tree, is never wrong: rows are added, and not changed.

Not `segments`: an old row names a file that was merged into another one, and the history finds its files by itself. Not
`superseded`: an old row may hide points that belong to the run again.
"""


@dataclass
class Salvaged:
    """What could be taken out.

    Attributes:
        rows: Whole rows of each table by key, the checksum last.
        broken: Tables that could not be read completely.
        is_end_broken: Whether records may be missing after the last one.
        is_log_broken: Whether parts of the write-ahead log could not be read.
    """

    rows: dict[str, dict[Any, Row]] = field(default_factory=lambda: {table: {} for table in TABLES})
    broken: set[str] = field(default_factory=set)
    is_end_broken: bool = False
    is_log_broken: bool = False

    def meta(self, name: str) -> bytes | None:
        """Return a value by name; None if it is lost, or was never stored."""
        row = self.rows["meta"].get(name)
        return None if row is None else row[1]

    @property
    def identity(self) -> str:
        """What tells the journal from every other one; empty if nothing does."""
        return (self.meta(IDENTITY) or b"").decode()

    @property
    def last_pos(self) -> int:
        """Position of the newest record, as far as records and snapshots say."""
        return max([*self.rows["records"], *(row[1] for row in self.rows["snapshots"].values())], default=0)

    def ordered(self, table: str) -> list[Row]:
        """Return the rows of a table in the order of their keys."""
        return [self.rows[table][key] for key in sorted(self.rows[table])]


def salvage(path: Path, journal: str | None = None) -> Salvaged:
    """Read what is whole in the file of a journal and in its write-ahead log, and change nothing.

    Args:
        path: The file.
        journal: Identity of the journal; rows of another one are not whole. None: what the file says.

    Raises:
        OSError: The files cannot be read.
    """
    log = wal_path(path).read_bytes() if wal_path(path).exists() else b""
    found = _salvage(path, log, journal)
    if log and journal and found.identity != journal:  # perhaps the log is another journal's, and covers these pages
        alone = _salvage(path, b"", journal)
        if alone.identity == journal and alone.last_pos >= found.last_pos:
            alone.is_log_broken = True
            return alone
    return found


def _salvage(path: Path, log: bytes, journal: str | None) -> Salvaged:
    page_of, num_pages, is_log_broken = _open_pages(path, log)
    found = Salvaged(is_log_broken=is_log_broken)
    image = b"".join(page_of(number) for number in range(1, num_pages + 1))
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.text_factory = lambda data: data.decode(errors="replace")
        connection.deserialize(image)
        said = Salvaged()
        _walk(connection, "meta", said, 0)
        seed = seed_of(said.identity if journal is None else journal)
        for table in TABLES:
            _walk(connection, table, found, seed)
    if journal not in {None, found.identity}:
        found.rows["meta"].pop(IDENTITY, None)
    if found.broken & _IN_PAGES:
        _add_from_pages(page_of, num_pages, found, seed)
    _drop_superfluous(found)
    return found


def _open_pages(path: Path, data: bytes) -> tuple[Callable[[int], bytes], int, bool]:
    """Return a function that reads pages, their number, and whether the log is incomplete."""
    file = path.read_bytes() if path.exists() else b""
    log = read_wal(data)
    num_pages = max(-(-len(file) // PAGE_SIZE), log.num_pages, *log.pages, 1)
    # the first page of a journal never says anything of its own but the size
    first = with_size(empty_first_page(), num_pages)

    def page_of(number: int) -> bytes:
        if number == 1:
            return first
        if number in log.pages:
            return data[log.pages[number] : log.pages[number] + PAGE_SIZE]
        if not 1 < number <= num_pages:
            return b""
        return file[(number - 1) * PAGE_SIZE : number * PAGE_SIZE].ljust(PAGE_SIZE, b"\0")

    return page_of, num_pages, log.num_bad > 0


def _walk(connection: sqlite3.Connection, table: str, found: Salvaged, seed: int) -> None:
    """Read a table from the back, so that its end is known, and if that stops at a damaged page, from the front."""
    for order in ("DESC", "ASC"):
        is_end = table == "records" and order == "DESC"
        try:
            for row in connection.execute(select(table, f"ORDER BY {columns(table)[0]} {order}")):
                if is_whole(table, row, seed):
                    found.rows[table][row[0]] = row
                else:
                    found.broken.add(table)
                    found.is_end_broken |= is_end
                is_end = False
        except sqlite3.Error:
            found.broken.add(table)
            found.is_end_broken |= is_end
        else:
            return


def _add_from_pages(page_of: Callable[[int], bytes], num_pages: int, found: Salvaged, seed: int) -> None:
    """Add rows whose way through the tree is broken."""
    taken = [(row[0], row[1]) for table in ("chunks", "segments") for row in found.rows[table].values()]
    for table, row in rows_in_pages(page_of, num_pages, seed):
        if table not in _IN_PAGES & found.broken:
            continue
        # a chunk that is in a file, or in another chunk, is an old one
        if table == "chunks" and any(row[0] < end and first < row[1] for first, end in taken):
            continue
        found.rows[table].setdefault(row[0], row)


def _drop_superfluous(found: Salvaged) -> None:
    """Drop rows that were deleted already."""
    state = State.from_bytes(found.meta(STATE))
    records, snapshots, calls = (found.rows[table] for table in ("records", "snapshots", "calls"))
    for pos in [pos for pos in records if pos <= state.deleted_to]:
        del records[pos]
    for number in [number for number, row in snapshots.items() if row[1] < state.deleted_to]:
        del snapshots[number]
    for table, kept in ((snapshots, 2), (calls, MAX_CALLS)):
        for key in sorted(table)[:-kept]:
            del table[key]
