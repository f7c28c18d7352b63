"""Creates, opens and syncs the SQLite file of a journal, and translates SQLite's errors into JournalError."""

import logging
import os
import sqlite3
import threading
from pathlib import Path
from typing import Literal

from trieye.exceptions import JournalError, JournalFullError
from trieye.files.atomic import fsync_directory
from trieye.files.filesystem import network_type
from trieye.journal.schema import Connection, create_tables, identity, seed_of

logger = logging.getLogger(__name__)

Durability = Literal["process", "interval", "always"]
"""An accepted entry survives the death of any process, also a power loss after 100 ms, or any power loss."""

BUSY_TIMEOUT_S = 10.0
"""Maximum wait of a writer for a reader in another process."""

INTERVAL_S = 0.1

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

FULL = frozenset(
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
"""Error codes of SQLite for a full disk; SQLite rolls the transaction back."""
# codes for a damaged file; errors raised by Python's sqlite3 module itself have no code
_DAMAGED = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def wal_path(path: Path) -> Path:
    """Return the path of SQLite's write-ahead log of a file."""
    return path.with_name(path.name + "-wal")


def rollback_path(path: Path) -> Path:
    """Return the path of SQLite's rollback journal, which it uses where a write-ahead log is impossible."""
    return path.with_name(path.name + "-journal")


def open_for_writing(path: Path | None, durability: Durability) -> Connection:
    """Open an intact journal; None creates one in memory.

    Raises:
        JournalError: The journal cannot be opened or written.
    """
    connection = _connect(":memory:" if path is None else str(path))
    try:
        if path is None:
            create_tables(connection)
        elif (kind := network_type(path)) is not None:
            _without_wal(connection)
            logger.warning(
                "the journal %s is on a network file system (%s), so each write waits for the server; "
                "set persistence.root_data_dir to a directory on a local disk",
                path,
                kind,
            )
        else:
            _with_wal(connection, durability)
        connection.seed = seed_of(identity(connection))
    except sqlite3.Error as error:
        connection.close()
        raise journal_error(error, path) from error
    return connection


def create(path: Path, journal: str) -> None:
    """Create an empty journal with an identity, durable when this returns; replace an existing file."""
    path.unlink(missing_ok=True)
    connection = _connect(str(path))
    try:
        create_tables(connection, journal)
    finally:
        connection.close()
    fsync_directory(path.parent)


def text_of(data: bytes) -> str:
    """Decode a text without errors: the checksum of the row detects damage."""
    return data.decode(errors="replace")


def _connect(name: str) -> Connection:
    connection = sqlite3.connect(
        name, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S, factory=Connection
    )
    connection.text_factory = text_of
    return connection


def _with_wal(connection: sqlite3.Connection, durability: Durability) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'always' else 'NORMAL'}")
    # The log is truncated at the start of each round, and no transaction writes frames before its commit, so all bytes
    # after the last complete transaction are a torn write or damage (`wal.py`).
    connection.execute("PRAGMA journal_size_limit = 0")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _economize(connection)


def _without_wal(connection: sqlite3.Connection) -> None:
    # a write-ahead log needs memory that all users of the file share, unless one connection locks it exclusively
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("SELECT 1 FROM meta").fetchone()  # the next access releases the lock
    connection.execute("PRAGMA synchronous = FULL")
    _economize(connection)


def _economize(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA cache_spill = OFF")
    connection.execute("PRAGMA secure_delete = OFF")  # Debian's SQLite would overwrite 50 MB of old entries with zeros


class IntervalSync:
    """A thread that syncs a file to disk every 100 ms while it is being written.

    Args:
        path: The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._error: OSError | None = None  # set by the thread, reset by the writer, each atomically, so without a lock
        self._path = path
        self._written = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trieye-journal-sync", daemon=True)
        self._thread.start()

    def note_written(self) -> None:
        """Request a sync of the file.

        Raises:
            JournalError: An earlier write could not be synced.
        """
        self._written.set()
        if self._error is not None:
            error, self._error = self._error, None
            raise JournalError(f"{self._path} cannot be synced to disk: {error.strerror}") from error

    def stop(self) -> None:
        """End the thread; SQLite syncs the rest when it closes the file."""
        self._stopped.set()
        self._written.set()
        self._thread.join()

    def _work(self) -> None:
        while self._written.wait() and not self._stopped.wait(INTERVAL_S):
            self._written.clear()
            try:
                # opened each time, because SQLite deletes and recreates the file
                descriptor = os.open(self._path, os.O_RDONLY)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._error = error


def journal_error(error: sqlite3.Error, path: Path | None) -> JournalError:
    """Return the error of trieye for an error of SQLite."""
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    if code in FULL:
        return JournalFullError(
            f"the journal {path} cannot grow ({error}): make room on its disk, or raise the file size limit; "
            "no accepted event is lost"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return JournalError(f"the journal {path} is closed")
    if code & 0xFF in _DAMAGED:
        return JournalError(f"the journal {path} was damaged while in use ({error}): start the run again to repair it")
    return JournalError(f"the journal {path} cannot be used at present: {error}")
