"""Make and open the SQLite file of a journal, bring it to the disk, and word what SQLite says of it."""

import logging
import os
import sqlite3
import threading
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
"""How long a writer waits for a reader in another process."""

INTERVAL_S = 0.1

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync

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
# what SQLite reports when the bytes in the file are not what it wrote; errors of Python's module have no code
_DAMAGED = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


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


def create(path: Path, journal: str) -> None:
    """Write an empty journal with an identity, on the disk when this returns; what was there is replaced."""
    path.unlink(missing_ok=True)
    connection = _connect(str(path))
    try:
        make_tables(connection, journal)
    finally:
        connection.close()
    fsync_directory(path.parent)


def text_of(data: bytes) -> str:
    """Decode a text: damage is found by the checksum of its row, not by an error of the decoder."""
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
    # Each round of the log ends where the file ends, and no transaction leaves frames behind before it is committed:
    # so whatever is there after the last whole transaction is a torn write or damage (`wal.py`).
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


class IntervalSync:
    """A thread that brings what was written to a file to the disk, every 100 ms if there is something.

    Args:
        path: The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._error: OSError | None = None  # set by the thread, taken by the writer: each in one step, without a lock
        self._path = path
        self._written = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trieye-journal-sync", daemon=True)
        self._thread.start()

    def note_written(self) -> None:
        """Let the thread know that there is something to be synced.

        Raises:
            JournalError: What was written before could not be synced.
        """
        self._written.set()
        if self._error is not None:
            error, self._error = self._error, None
            raise JournalError(f"{self._path} cannot be brought to the disk: {error.strerror}") from error

    def stop(self) -> None:
        """End the thread; SQLite syncs the rest when it closes the file."""
        self._stopped.set()
        self._written.set()
        self._thread.join()

    def _work(self) -> None:
        while self._written.wait() and not self._stopped.wait(INTERVAL_S):
            self._written.clear()
            try:
                # opened each time: SQLite deletes the file and makes another one
                descriptor = os.open(self._path, os.O_RDONLY)
                try:
                    _sync(descriptor)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._error = error


def worded(error: sqlite3.Error, path: Path | None) -> JournalError:
    """Return an error that says what SQLite's means."""
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR))
    if code in _FULL:
        return JournalFullError(
            f"the journal {path} cannot grow ({error}): make room on its disk, or raise the limit of the file size; "
            "nothing that was accepted is lost"
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return JournalError(f"the journal {path} is closed")
    if code & 0xFF in _DAMAGED:
        return JournalError(f"the journal {path} was damaged while in use ({error}): start the run again, to repair it")
    return JournalError(f"the journal {path} cannot be used now: {error}")
