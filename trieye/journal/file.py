"""Make and open the SQLite file of a journal, and word what SQLite says."""

import logging
import sqlite3
from pathlib import Path
from typing import Literal

from trieye.exceptions import JournalError, JournalFullError
from trieye.files.atomic import fsync_directory
from trieye.files.filesystem import network_type
from trieye.journal.schema import Connection, identity, make_tables, seed_of

logger = logging.getLogger(__name__)

Durability = Literal["process", "interval", "always"]
"""What an accepted record survives: the death of any process; power loss, but for the last 100 ms; power loss."""

BUSY_TIMEOUT_S = 10.0
"""How long a reader in another process is waited for."""

# what SQLite reports when there is no room: it ends a transaction as if it had never begun
_FULL = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_DIR_FSYNC,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
    }
)
# what says nothing about the bytes in the file
_CIRCUMSTANCES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    }
)


def wal_path(path: Path) -> Path:
    """Return where SQLite keeps the write-ahead log of a file."""
    return path.with_name(path.name + "-wal")


def rollback_path(path: Path) -> Path:
    """Return where SQLite keeps what it needs to undo a transaction, where there can be no write-ahead log."""
    return path.with_name(path.name + "-journal")


def open_for_writing(path: Path | None, durability: Durability) -> Connection:
    """Open a whole journal; None: an empty one in memory.

    Raises:
        JournalError: It cannot be opened or written.
    """
    connection = _connect(":memory:" if path is None else str(path))
    try:
        if path is None:
            make_tables(connection)
        elif (kind := network_type(path)) is not None:
            _without_wal(connection)
            logger.warning(
                "the journal %s is on a network file system (%s), where each write waits until the server has it: "
                "set persistence.root_data_dir to a directory on a local disk",
                path,
                kind,
            )
        else:
            _with_wal(connection, durability)
        connection.seed = seed_of(identity(connection))
    except sqlite3.Error as error:
        connection.close()
        raise worded(error, path) from error
    return connection


def open_for_reading(path: Path) -> Connection:
    """Open a journal and change neither the file nor its write-ahead log."""
    return _connect(f"{path.absolute().as_uri()}?mode=ro")


def create(path: Path, journal: str) -> None:
    """Write an empty journal with an identity, on the disk when this returns; what was there is replaced."""
    path.unlink(missing_ok=True)
    connection = _connect(str(path))
    try:
        make_tables(connection, journal)
    finally:
        connection.close()
    fsync_directory(path.parent)


def _connect(name: str) -> Connection:
    connection = sqlite3.connect(
        name,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_S,
        uri=name.startswith("file:"),
        factory=Connection,
    )
    # text that was damaged is found by the checksum of its row, not by an error of the decoder
    connection.text_factory = lambda data: data.decode(errors="replace")
    return connection


def _with_wal(connection: sqlite3.Connection, durability: Durability) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'always' else 'NORMAL'}")
    # Each round of the log ends where the file ends, and no transaction leaves frames behind before it is committed:
    # so whatever is there after the last whole transaction is a torn write or damage (`journal_wal`).
    connection.execute("PRAGMA journal_size_limit = 0")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _economize(connection)


def _without_wal(connection: sqlite3.Connection) -> None:
    # a write-ahead log needs memory shared by all who have the file open, unless one has it for himself
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("SELECT 1 FROM meta").fetchone()  # the lock is given back by the next access
    connection.execute("PRAGMA synchronous = FULL")
    _economize(connection)


def _economize(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA cache_spill = OFF")
    connection.execute("PRAGMA secure_delete = OFF")  # Debian's SQLite else writes zeros over 50 MB of old records


def worded(error: sqlite3.Error, path: Path | None) -> JournalError:
    """Return an error that says what SQLite's means."""
    code = _code(error)
    if code in _FULL:
        return JournalFullError(
            f"the journal {path} cannot grow ({error}): make room on its disk, or raise the limit of the file size; "
            "nothing that was accepted is lost"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return JournalError(f"the journal {path} is closed")
    if is_circumstance(error):
        return JournalError(f"the journal {path} cannot be used now: {error}")
    return JournalError(f"the journal {path} was damaged while in use ({error}): start the run again, to repair it")


def is_circumstance(error: sqlite3.Error) -> bool:
    """Return whether an error says nothing about the bytes of the file: it is in use, may not be read, and so on."""
    return not {_code(error), _code(error) & 0xFF}.isdisjoint(_CIRCUMSTANCES)


def _code(error: sqlite3.Error) -> int:
    # errors that Python's module raises by itself have none
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
