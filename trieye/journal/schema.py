"""What the journal's file holds: its tables, their rows, and the checksum of each row."""

import functools
import sqlite3
import zlib
from typing import Any, NamedTuple

import msgspec

from trieye.config.names import check_inside
from trieye.exceptions import JournalError

APPLICATION_ID = 0x7452_4A4C
"""Number in the header of the file that says whose it is."""

VERSION = 1
"""Version of the tables, in the header of the file; another one has other tables, too."""

PAGE_SIZE = 4096
"""Bytes; an append writes one page, and batches of events fill one each."""


Row = tuple[Any, ...]
"""Values as SQLite returns them, perhaps with the checksum at the end, which vouches for their types."""


class Record(NamedTuple):
    """Something that was accepted.

    Attributes:
        pos: Position: 1, 2, 3, ... in the order of acceptance.
        kind: What the payload means.
        at: Journal time in seconds.
        client: Who sent it, or a key that is used once, or empty.
        seq: Number of the batch among those of the client; 0 if it has none.
        payload: What was accepted.
    """

    pos: int
    kind: str
    at: float
    client: str
    seq: int
    payload: bytes


class Snapshot(NamedTuple):
    """What the records up to a position add up to.

    Attributes:
        pos: The last record in it.
        index: Index of the next item of the history.
        at: Journal time in seconds.
        payload: The state.
    """

    pos: int
    index: int  # type: ignore[assignment]  # no tuple's method is needed here
    at: float
    payload: bytes


class Chunk(NamedTuple):
    """Items of the history, from the index `first` up to and without `end`."""

    first: int
    end: int
    payload: bytes


def checked_name(name: Any) -> str:
    """Return the name of a file of the history as the journal has it.

    Raises:
        JournalError: It is none of a file in one directory.
    """
    try:
        return check_inside(str(name), max_parts=1)
    except ValueError as error:
        raise JournalError(f"the journal is not what trieye wrote: of the files of the history, {error}") from error


class Segment(NamedTuple):
    """A file with items of the history.

    Attributes:
        first: Index of its first item.
        end: Index after its last one.
        name: Name of the file.
        size_bytes: Its size.
        crc: CRC-32 of its bytes.
    """

    first: int
    end: int
    name: str
    size_bytes: int
    crc: int

    @classmethod
    def of(cls, row: Row) -> "Segment":
        """Return what a row of the journal says; raises what `checked_name` does."""
        first, end, name, size_bytes, crc = row
        return cls(first, end, checked_name(name), size_bytes, crc)


# Not STRICT, which SQLite before 3.37 cannot read: the checksums find values of another type, too.
# The tables are made in this order, so each has the same root page in every journal; the first column is the key.
# `clients` and `calls` hold what is known of senders whose records are deleted; what the records say is newer.
TABLES: dict[str, str] = {
    "records": "pos INTEGER PRIMARY KEY, kind TEXT, at REAL, client TEXT, seq INTEGER, payload BLOB",
    "clients": "client TEXT PRIMARY KEY, last_seq INTEGER, last_pos INTEGER",
    "calls": "pos INTEGER PRIMARY KEY, task TEXT",
    "snapshots": "number INTEGER PRIMARY KEY, pos INTEGER, next_index INTEGER, at REAL, payload BLOB",
    "chunks": "first INTEGER PRIMARY KEY, last INTEGER, payload BLOB",
    "segments": "first INTEGER PRIMARY KEY, last INTEGER, name TEXT, size_bytes INTEGER, file_crc INTEGER",
    "cursors": "sink TEXT PRIMARY KEY, next_index INTEGER, position TEXT",
    "superseded": "first INTEGER PRIMARY KEY, last INTEGER",
    "meta": "name TEXT PRIMARY KEY, value BLOB",
}

STATE = "journal.state"
"""Where `meta` holds what the journal knows of itself; names that begin so are its own."""

REPAIR = "journal.repair"
"""Where `meta` holds what a repair found, until somebody has read it."""

IDENTITY = "journal.identity"
"""Where `meta` holds what tells the journal from every other one; the checksums of all other rows depend on it."""

ATTEMPT = "attempt"
"""Where `meta` holds what the ledger knows of the attempt, with the id of the run."""

_encode = msgspec.msgpack.Encoder().encode


def columns(table: str) -> list[str]:
    """Return the names of a table's columns, without that of the checksum; the first is the key."""
    return [column.split()[0] for column in TABLES[table].split(", ")]


class Connection(sqlite3.Connection):
    """A connection to the file of a journal.

    Attributes:
        seed: What the checksums of its rows begin with, so that a row of another journal is never taken for one of it.
    """

    seed = 0


def seed_of(journal: str) -> int:
    """Return what the checksums in a journal begin with; 0 if it has no identity, as one of an earlier version."""
    return zlib.crc32(journal.encode())


def identity(connection: sqlite3.Connection) -> str:
    """Return what tells a journal from every other one; empty if nothing does; raises sqlite3.Error."""
    rows = connection.execute(select("meta", "WHERE name = ?"), (IDENTITY,)).fetchall()
    return str(rows[0][1], "utf-8") if rows and is_whole("meta", rows[0], 0) else ""


def owner_of(mark: bytes) -> str:
    """Return the id of the run in the mark of an attempt; empty if there is none."""
    return str(msgspec.msgpack.decode(mark).get("run_id", ""))


def row_crc(table: str, row: Row, seed: int) -> int:
    """Return the checksum of a row: over every value of it, which table it is in, and in which journal."""
    return zlib.crc32(_encode((table, row)), 0 if row[0] == IDENTITY else seed)


def select(table: str, condition: str = "") -> str:
    """Return a query for whole rows, of which the last value is the checksum."""
    return f"SELECT {', '.join(columns(table))}, crc FROM {table} {condition}"  # noqa: S608 - names of our own


@functools.cache
def insert(table: str, verb: str = "INSERT OR REPLACE") -> str:
    """Return a statement that stores a row with its checksum."""
    marks = ", ".join("?" * (len(columns(table)) + 1))
    return f"{verb} INTO {table} VALUES ({marks})"


def put(connection: Connection, table: str, row: Row) -> None:
    """Store a row with its checksum, in place of the one with the same key."""
    connection.execute(insert(table), (*row, row_crc(table, row, connection.seed)))


def is_whole(table: str, row: Row, seed: int) -> bool:
    """Return whether a row, with its checksum at the end, is as it was written in the journal of that seed."""
    return bool(row[-1] == row_crc(table, row[:-1], seed))


def statements() -> list[str]:
    """Return what makes the tables of an empty journal, word for word as SQLite keeps it."""
    return [
        # without a row id, a text key needs no second tree
        f"CREATE TABLE {table} ({definition}, crc INTEGER)" + (" WITHOUT ROWID" if is_keyed_by_text(table) else "")
        for table, definition in TABLES.items()
    ]


def is_keyed_by_text(table: str) -> bool:
    """Return whether the key of a table is a text; else it is a number."""
    return "TEXT PRIMARY KEY" in TABLES[table]


class State(NamedTuple):
    """What the journal knows of itself besides its rows.

    Attributes:
        deleted_to: Position of the last record that was deleted, as all before it were.
        last_pos: Position of the newest record when this was written.
        last_at: Its journal time in seconds.
        gaps: First and last positions of records that damage destroyed, as an earlier repair found.
    """

    deleted_to: int = 0
    last_pos: int = 0
    last_at: float = 0.0
    gaps: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads."""
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | None) -> "State":
        """Read a state; None: that of an empty journal."""
        return cls() if data is None else _decode_state(data)


_decode_state = msgspec.msgpack.Decoder(State).decode


@functools.cache
def empty_first_page() -> bytes:
    """Return the first page of an empty journal: the header, and the tables, whose root pages are always the same."""
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    make_tables(connection)
    page = connection.serialize()[:PAGE_SIZE]
    connection.close()
    return page


def make_tables(connection: Connection, journal: str = "") -> None:
    """Make the tables of an empty journal with an identity, or without one, in an empty file."""
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("BEGIN")
    for statement in statements():
        connection.execute(statement)
    if journal:
        put(connection, "meta", (IDENTITY, journal.encode()))
    connection.execute("COMMIT")
