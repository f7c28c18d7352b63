"""Look into the journal of a run that another process writes."""

import contextlib
import sqlite3
from pathlib import Path

from trieye.exceptions import JournalError
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.schema import Row, identity, is_whole, seed_of, select

_BUSY_TIMEOUT_S = 5.0


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that can change nothing; the writer is not disturbed.

    Raises:
        JournalError: The file is missing or cannot be opened.
    """
    # SQLite would make files beside one that nobody has open, or fail where it may not
    is_at_rest = not wal_path(path).exists() and not rollback_path(path).exists()
    mode = "immutable=1" if is_at_rest else "mode=ro"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_TIMEOUT_S)
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise JournalError(f"the journal {path} cannot be read: {error}") from error
    return connection


def read_meta(path: Path, key: str) -> bytes | None:
    """Return a value that the journal holds by name; None if there is none, or no journal yet.

    Raises:
        JournalError: The journal cannot be read.
    """
    return next((value for _, value in _rows(path, "meta", "WHERE name = ?", key)), None)


def read_cursors(path: Path) -> dict[str, int]:
    """Return the index of each sink; nothing if there is no journal yet.

    Raises:
        JournalError: The journal cannot be read.
    """
    return {sink: index for sink, index, _ in _rows(path, "cursors")}


def _rows(path: Path, table: str, condition: str = "", *values: object) -> list[Row]:
    """Return those rows that are whole, without their checksums."""
    if not path.exists():
        return []
    with contextlib.closing(connect_read_only(path)) as connection:
        try:
            seed = seed_of(identity(connection))
            rows = connection.execute(select(table, condition), values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"the journal {path} cannot be read: {error}") from error
    return [row[:-1] for row in rows if is_whole(table, row, seed)]
