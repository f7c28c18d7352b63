"""The connection to a journal's file: one at a time uses it, and a transaction is done as a whole or not at all."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trieye.exceptions import JournalError, JournalFullError
from trieye.journal.file import Durability, IntervalSync, open_for_writing, wal_path, worded
from trieye.journal.repair import prepare
from trieye.journal.schema import REPAIR, Connection, Row, identity, insert, is_whole, row_crc, select
from trieye.journal.witness import Expected


class JournalStore:
    """Rows in tables, each with its checksum; safe to use from several threads.

    Args:
        path: The file; None: in memory.
        durability: What a transaction survives.
        expected: What is known of the journal; one that contradicts it is damaged.

    Attributes:
        lock: Guards the connection and whether the log is clean; its holder may take it again.

    Raises:
        JournalError: The file is no journal, or it cannot be used.
    """

    def __init__(self, path: Path | None, durability: Durability, expected: Expected | None = None) -> None:
        self.lock = threading.RLock()  # guards _connection and _is_clean; taken after WitnessFile.lock
        self._path = path
        self._is_clean = True
        self._sync: IntervalSync | None = None
        if path is not None:
            prepare(path, expected or Expected())
        self._connection = open_for_writing(path, durability)
        if path is not None and durability == "interval":
            self._sync = IntervalSync(wal_path(path))

    def take_report(self) -> tuple[list[str], int]:
        """Return what a repair found, in words, and the number of records it lost; only the first call does."""
        rows = self.rows("meta", "WHERE name = ?", REPAIR)
        if not rows:
            return [], 0
        with self.transaction() as connection:
            connection.execute("DELETE FROM meta WHERE name = ?", (REPAIR,))
        text, num_lost = msgspec.msgpack.decode(rows[0][1])
        return [text], num_lost

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Do all that is in the block, or nothing.

        Raises:
            JournalFullError: There is no room; nothing was done.
            JournalError: The file cannot be used.
        """
        with self._writing() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.rollback()

    def add(self, table: str, row: Row) -> None:
        """Store a row whose key is not there yet, as a transaction of its own; raises as `transaction` does."""
        with self._writing() as connection:
            connection.execute(insert(table, "INSERT"), (*row, row_crc(table, row, connection.seed)))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.lock:
            try:
                self._clean_up()
                yield self._connection
            except sqlite3.Error as error:
                raise self._failed(error) from error
            if self._sync is not None:
                self._sync.note_written()

    def _clean_up(self) -> None:
        """Begin the log anew after a write that failed: it may have left frames there that were never committed."""
        if not self._is_clean:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._is_clean = True

    def _failed(self, error: sqlite3.Error) -> JournalError:
        found = worded(error, self._path)
        if isinstance(found, JournalFullError):
            self._is_clean = False
        return found

    def rows(self, table: str, condition: str = "", *values: object) -> list[Row]:
        """Return rows without their checksums.

        Args:
            table: Which table.
            condition: The rest of the query.
            values: For the question marks in it.

        Raises:
            JournalError: The file cannot be used, or a row was damaged since it was opened.
        """
        rows = self.read(select(table, condition), *values)
        for row in rows:
            if not is_whole(table, row, self._connection.seed):
                error = sqlite3.DatabaseError(f"a row of {table} has a wrong checksum")
                raise self._failed(error)
        return [row[:-1] for row in rows]

    def read(self, query: str, *values: object) -> list[Row]:
        """Return what a query gives; nothing checks it.

        Raises:
            JournalError: The file cannot be used.
        """
        with self.lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._failed(error) from error

    @property
    def identity(self) -> str:
        """What tells the journal from every other one; empty if nothing does."""
        with self.lock:
            return identity(self._connection)

    @property
    def size_bytes(self) -> int:
        """Bytes on the disk."""
        files = [] if self._path is None else [self._path, wal_path(self._path)]
        return sum(file.stat().st_size for file in files if file.exists())

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        if self._sync is not None:
            self._sync.stop()
        with self.lock:
            self._connection.close()
