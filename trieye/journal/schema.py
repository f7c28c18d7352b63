"""Schema of the journal's SQLite file: its tables, the structs of their rows, and the checksum of each row."""

import functools
import sqlite3
import zlib
from typing import Any, NamedTuple

import msgspec

from trieye.config.names import check_inside
from trieye.exceptions import JournalError

APPLICATION_ID = 0x7452_4A4C
"""Number in the file header that identifies a journal of trieye."""

VERSION = 1
"""Version of the tables, stored in the file header; different versions have different tables."""

PAGE_SIZE = 4096
"""Bytes; an append writes one page, and a batch of events fills about one."""


Row = tuple[Any, ...]
"""Values as SQLite returns them, with or without the checksum at the end; a correct checksum implies correct types."""


class JournalEntry(NamedTuple):
    """An accepted batch of events, call or flush marker; one row of the table `records`.

    Attributes:
        pos: Position: 1, 2, 3, ... in the order of acceptance.
        kind: Type of the payload.
        at: Journal time in seconds.
        client: Sender of the batch, or the unique key of a call, or empty.
        seq: Consecutive number of the client's batch; 0 if the entry has none.
        payload: The accepted data.
    """

    pos: int
    kind: str
    at: float
    client: str
    seq: int
    payload: bytes


class Snapshot(NamedTuple):
    """State after applying the entries up to a position.

    Attributes:
        pos: Position of the last applied entry.
        index: Index of the next item of the history.
        at: Journal time in seconds.
        payload: The state.
    """

    pos: int
    index: int  # type: ignore[assignment]  # hides a method of tuple that is not used
    at: float
    payload: bytes


class JournalChunk(NamedTuple):
    """Items of the history with indices in [first, end)."""

    first: int
    end: int
    payload: bytes


def checked_name(name: Any) -> str:
    """Return the name of a history file that a journal contains, after checking it.

    Raises:
        JournalError: The name is not a plain file name, so it might lead out of the directory.
    """
    try:
        return check_inside(str(name), max_parts=1)
    except ValueError as error:
        raise JournalError(
            f"the journal was damaged or not written by trieye: it lists a history file, {error}; restore the run "
            "directory from a backup or mirror"
        ) from error


class Segment(NamedTuple):
    """A file with items of the history.

    Attributes:
        first: Index of its first item.
        end: Index after its last item.
        name: Name of the file.
        size_bytes: Size of the file.
        crc: CRC-32 of its bytes.
    """

    first: int
    end: int
    name: str
    size_bytes: int
    crc: int

    @classmethod
    def of(cls, row: Row) -> "Segment":
        """Create a segment from a row of the journal; raises the errors of `checked_name`."""
        first, end, name, size_bytes, crc = row
        return cls(first, end, checked_name(name), size_bytes, crc)


# Not STRICT, which SQLite before 3.37 cannot read: the checksums also detect values of a wrong type.
# The tables are created in this order, so each has the same root page in every journal; the first column is the key.
# `clients` and `calls` describe senders whose entries are deleted; the remaining entries are newer than these rows.
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
"""Name in `meta` of the `JournalState`; names that begin with `journal.` are reserved."""

REPAIR = "journal.repair"
"""Name in `meta` of the report of a rebuild, until its losses are counted."""

IDENTITY = "journal.identity"
"""Name in `meta` of the unique identity of the journal; the checksums of all other rows depend on it."""

ATTEMPT = "attempt"
"""Name in `meta` of the ledger's mark of the attempt, which contains the id of the run."""

_encode = msgspec.msgpack.Encoder().encode


def columns(table: str) -> list[str]:
    """Return the column names of a table without the checksum column; the first is the key."""
    return [column.split()[0] for column in TABLES[table].split(", ")]


class Connection(sqlite3.Connection):
    """A connection to the file of a journal.

    Attributes:
        seed: Start value of the row checksums, so that a row of another journal never has a correct checksum.
    """

    seed = 0


def seed_of(journal: str) -> int:
    """Return the start value of the checksums in a journal; 0 for a journal of an earlier version, without identity."""
    return zlib.crc32(journal.encode())


def identity(connection: sqlite3.Connection) -> str:
    """Return the identity of a journal; empty if it has none; raises sqlite3.Error."""
    rows = connection.execute(select("meta", "WHERE name = ?"), (IDENTITY,)).fetchall()
    return str(rows[0][1], "utf-8") if rows and is_intact("meta", rows[0], 0) else ""


def owner_of(mark: bytes) -> str:
    """Return the id of the run in the mark of an attempt; empty if it has none."""
    return str(msgspec.msgpack.decode(mark).get("run_id", ""))


def row_crc(table: str, row: Row, seed: int) -> int:
    """Return the checksum of a row, over its values, the name of its table and the journal's seed."""
    return zlib.crc32(_encode((table, row)), 0 if row[0] == IDENTITY else seed)


def select(table: str, condition: str = "") -> str:
    """Return a query for complete rows, with the checksum last."""
    return f"SELECT {', '.join(columns(table))}, crc FROM {table} {condition}"  # noqa: S608 - constant names


@functools.cache
def insert(table: str, verb: str = "INSERT OR REPLACE") -> str:
    """Return a statement that stores a row with its checksum."""
    placeholders = ", ".join("?" * (len(columns(table)) + 1))
    return f"{verb} INTO {table} VALUES ({placeholders})"


def put(connection: Connection, table: str, row: Row) -> None:
    """Store a row with its checksum; replace the row with the same key."""
    connection.execute(insert(table), (*row, row_crc(table, row, connection.seed)))


def is_intact(table: str, row: Row, seed: int) -> bool:
    """Return whether a row is intact: its last value is the correct checksum in a journal with this seed."""
    return bool(row[-1] == row_crc(table, row[:-1], seed))


def statements() -> list[str]:
    """Return the SQL that creates the tables of a journal, exactly as SQLite stores it."""
    return [
        # without a row id, a text key needs no second tree
        f"CREATE TABLE {table} ({definition}, crc INTEGER)"
        + (" WITHOUT ROWID" if "TEXT PRIMARY KEY" in definition else "")
        for table, definition in TABLES.items()
    ]


class JournalState(NamedTuple):
    """State of the journal that its rows do not contain.

    Attributes:
        deleted_to: Position of the last deleted entry; all earlier entries are deleted, too.
        last_pos: Position of the newest entry at the time of writing.
        last_at: Journal time of that entry in seconds.
        gaps: First and last positions of entries that were lost to damage, from earlier rebuilds.
    """

    deleted_to: int = 0
    last_pos: int = 0
    last_at: float = 0.0
    gaps: tuple[tuple[int, int], ...] = ()

    def to_bytes(self) -> bytes:
        """Encode the state for `from_bytes`."""
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes | None) -> "JournalState":
        """Decode a state; return the state of an empty journal for None."""
        return cls() if data is None else _decode_state(data)


_decode_state = msgspec.msgpack.Decoder(JournalState).decode


@functools.cache
def empty_first_page() -> bytes:
    """Return the first page of an empty journal: the header and the table definitions, with constant root pages."""
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    create_tables(connection)
    page = connection.serialize()[:PAGE_SIZE]
    connection.close()
    return page


def create_tables(connection: Connection, journal: str = "") -> None:
    """Create the tables of a journal in an empty file; store an identity unless it is empty."""
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("BEGIN")
    for statement in statements():
        connection.execute(statement)
    if journal:
        put(connection, "meta", (IDENTITY, journal.encode()))
    connection.execute("COMMIT")
