"""Journal: the durable, ordered log of the entries that a run accepted, in one SQLite file."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from trieye.exceptions import JournalError, JournalFullError, SequenceGapError
from trieye.journal.file import Durability, IntervalSync, journal_error, open_for_writing, wal_path
from trieye.journal.ranges import Range, merged
from trieye.journal.rebuild import prepare
from trieye.journal.schema import (
    REPAIR,
    STATE,
    Connection,
    JournalChunk,
    JournalEntry,
    JournalState,
    Row,
    Segment,
    Snapshot,
    identity,
    insert,
    is_intact,
    put,
    row_crc,
    select,
)
from trieye.journal.watermark import MAX_RANGES, Expected, Watermark, WatermarkFile, read_watermark

__all__ = ["Durability", "Journal", "JournalChunk", "JournalEntry", "Segment", "Snapshot"]

_READ_AHEAD = 64

MAX_CALLS = 100_000
"""Number of retained keys; a call is repeated within seconds, long before as many others arrive."""


class Journal:
    """Stores entries until a snapshot covers them, and cursors, chunks of the history and named values.

    Safe to use from several threads, but calls of `commit` must not overlap. One process writes the file while others
    may read it. Every change is one atomic transaction, and the checksum of every row is verified when it is read.

    A journal that is damaged when this process opens it is quarantined as `<name>.damaged-<n>`; a new file restarts
    from the newest intact snapshot, with the entries that follow it up to the first damaged one. The same happens to
    the journal of another run, and to a journal that ends before the position of its watermark; only a loss
    of transactions after the last line of the watermark goes undetected.

    Args:
        path: The file; created if it is missing. None: in memory.
        durability: Failures that an entry survives once `append` has returned.
        expected: Expectations besides the watermark.

    Attributes:
        damage: Descriptions of the damage that this process, or a killed predecessor, found on opening; normally empty.
        num_lost: Number of entries lost to the damage; at least 1 if anything was lost.
        last_pos: Position of the newest entry, even if `commit` has deleted it; 0 at first.
        last_at: Journal time of the newest entry in seconds.

    Raises:
        JournalError: The file is not a journal, or SQLite cannot use it.
    """

    def __init__(
        self, path: Path | None, *, durability: Durability = "process", expected: Expected | None = None
    ) -> None:
        expected = (expected or Expected())._replace(watermark=None if path is None else read_watermark(path))
        # guards connection, `_is_clean`, `last_pos`, `last_at`, `_accepted_keys`; acquired after `WatermarkFile.lock`
        self._lock = threading.RLock()
        self._path, self._is_clean = path, True
        if path is not None:
            prepare(path, expected)
        self._connection = open_for_writing(path, durability)
        self._sync = None if path is None or durability != "interval" else IntervalSync(wal_path(path))
        self._watermark = None if path is None else WatermarkFile(path)
        self._accepted_keys = AcceptedKeys()
        try:
            self._identity = identity(self._connection)
            self._state = JournalState.from_bytes(self.meta(STATE))
            self.last_pos, self.last_at = self._state.last_pos, self._state.last_at
            self._load_accepted()
            self._write_watermark()
            report = self.meta(REPAIR)
            text, num_lost = ("", 0) if report is None else msgspec.msgpack.decode(report, type=tuple[str, int])
            self.damage, self.num_lost = [text] if text else [], num_lost
        except BaseException:
            self.close()
            raise

    def _load_accepted(self) -> None:
        for client, seq, pos in self._rows("clients"):
            self._accepted_keys.add(client, seq, pos)
        for pos, task in self._rows("calls", "ORDER BY pos"):
            self._accepted_keys.add(task, 0, pos)
        self._saved_to = self._state.deleted_to  # the entries may name senders whose rows are lost
        self._note_entries()

    def _note_entries(self) -> None:
        query = "SELECT pos, at, client, seq FROM records WHERE pos > ? ORDER BY pos"
        for pos, time_s, client, seq in self._read(query, self._state.deleted_to):
            self._accepted_keys.add(client, seq, pos)
            # after a rebuild that lost the newest entries, the state has a later position
            self.last_pos, self.last_at = max((self.last_pos, self.last_at), (pos, time_s))

    def forget_repair(self) -> None:
        """Delete the report of a rebuild, once its losses are counted; until then each start reports them."""
        if self.damage:
            with self._transaction() as connection:
                connection.execute("DELETE FROM meta WHERE name = ?", (REPAIR,))

    def _write_watermark(self) -> None:
        """Write the current positions to the watermark."""
        if self._watermark is not None:
            with self._watermark.lock:
                cursors = {sink: (index, position) for sink, index, position in self._rows("cursors")}
                ranges = self.superseded()
                superseded_ranges = tuple(ranges) if len(ranges) <= MAX_RANGES else None
                watermark = Watermark(self._identity, self.last_pos, self._state.deleted_to, cursors, superseded_ranges)
                self._watermark.write(watermark)

    # writing

    def append(self, kind: str, payload: bytes, *, at: float, client: str = "", seq: int | None = None) -> int | None:
        """Store an entry, which is durable when this returns.

        Args:
            kind: Type of the payload.
            payload: The accepted data.
            at: Journal time in seconds.
            client: Sender of the batch; without `seq`, the unique key of a call, or empty.
            seq: Consecutive number of the sender's batch, starting at 1.

        Returns:
            Position of the entry, or None if the journal already has the batch or the key.

        Raises:
            SequenceGapError: The journal does not have the sender's previous batch.
            JournalFullError: The disk is full; the entry was not stored.
        """
        with self._lock:
            if self._accepted_keys.has(client, seq):
                return None
            # the checksum covers the values that SQLite returns, and SQLite has no negative zero
            row = (self.last_pos + 1, kind, float(at) + 0.0, client, seq or 0, payload)
            try:
                with self._writing() as connection:
                    connection.execute(insert("records", "INSERT"), (*row, row_crc("records", row, connection.seed)))
            except JournalError as error:
                if not isinstance(error.__cause__, sqlite3.IntegrityError):
                    raise
                # a signal interrupted an earlier call after its entry was stored
                self._note_entries()
                return self.append(kind, payload, at=at, client=client, seq=seq)
            self.last_pos, self.last_at = row[0], row[2]
            self._accepted_keys.add(client, seq or 0, row[0])
            return self.last_pos

    def commit(
        self,
        snapshot: Snapshot,
        *,
        chunks: Sequence[JournalChunk] = (),
        keep_after: int,
        superseded: Iterable[Range] | None = None,
        meta: Mapping[str, bytes] | None = None,
        discontinuous: bool = False,
    ) -> None:
        """Store a snapshot with its chunks and values, and delete entries that no replay needs, in one transaction.

        The journal retains the newest two snapshots, and the entries after the older one.

        Args:
            snapshot: State after the entries up to its position.
            chunks: Items of the history that the journal does not have yet.
            keep_after: Retain the entries after this position.
            superseded: All superseded ranges of indices, which replace the previous ones; None: unchanged.
            meta: Values to store by name.
            discontinuous: Replaying entries from the older snapshot would not yield this one, for example at a rewind.

        Raises:
            JournalFullError: The disk is full; the journal is unchanged.
        """
        with self._transaction() as connection:
            older_pos = self._put_snapshot(connection, snapshot, alone=discontinuous)
            for chunk in chunks:
                put(connection, "chunks", tuple(chunk))
            for key, value in (meta or {}).items():
                put(connection, "meta", (key, value))
            if superseded is not None:
                _put_superseded(connection, superseded)
            self._put_accepted(connection)
            deleted_to = max(self._state.deleted_to, min(keep_after, older_pos, self.last_pos))
            gaps = tuple(gap for gap in self._state.gaps if gap[1] > deleted_to)
            state = JournalState(deleted_to, self.last_pos, self.last_at, gaps)
            put(connection, "meta", (STATE, state.to_bytes()))
            connection.execute("DELETE FROM records WHERE pos <= ?", (deleted_to,))
        self._state, self._saved_to = state, state.last_pos
        self._write_watermark()

    def _put_snapshot(self, connection: Connection, snapshot: Snapshot, *, alone: bool) -> int:
        """Store a snapshot, twice if no older one can replace it; return the position of the older retained one."""
        stored_rows = connection.execute("SELECT number, pos FROM snapshots ORDER BY number").fetchall()
        snapshot_number = stored_rows[-1][0] + 1 if stored_rows else 1
        row = (snapshot.pos, snapshot.index, float(snapshot.at) + 0.0, snapshot.payload)
        put(connection, "snapshots", (snapshot_number, *row))
        if alone:
            put(connection, "snapshots", (snapshot_number + 1, *row))
            stored_rows = [*stored_rows, (snapshot_number, snapshot.pos)]
        if not stored_rows:
            return 0
        oldest, pos = stored_rows[-1]
        connection.execute("DELETE FROM snapshots WHERE number < ?", (oldest,))
        return int(pos)

    def _put_accepted(self, connection: Connection) -> None:
        clients, calls = self._accepted_keys.since(self._saved_to)
        for client in clients:
            put(connection, "clients", client)
        for call in calls:
            put(connection, "calls", call)
        connection.execute("DELETE FROM calls WHERE pos < ?", (self._accepted_keys.oldest_call,))

    def set_superseded(self, ranges: Iterable[Range]) -> None:
        """Replace the superseded ranges of indices, which readers of the history skip; the ranges may overlap."""
        with self._transaction() as connection:
            _put_superseded(connection, ranges)
        self._write_watermark()

    def replace_chunks(self, segment: Segment) -> None:
        """Register a complete history file that is safe on disk, and delete the chunks with its items."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM chunks WHERE first >= ? AND last <= ?", (segment.first, segment.end))
            put(connection, "segments", tuple(segment))

    def set_cursor(self, sink: str, index: int, position: str | None) -> None:
        """Store the cursor of a sink: the next index, and the sink's position."""
        with self._transaction() as connection:
            put(connection, "cursors", (sink, index, position))
        self._write_watermark()

    def set_meta(self, key: str, value: bytes) -> None:
        """Store a value by name; names that begin with `journal.` are reserved."""
        with self._transaction() as connection:
            put(connection, "meta", (key, value))

    # reading

    def records(self, after: int) -> Iterator[JournalEntry]:
        """Yield the entries after a position, in order."""
        while rows := self._rows("records", "WHERE pos > ? ORDER BY pos LIMIT ?", after, _READ_AHEAD):
            yield from (JournalEntry(*row) for row in rows)
            after = rows[-1][0]

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot."""
        rows = self._rows("snapshots", "ORDER BY number DESC LIMIT 1")
        return Snapshot(*rows[0][1:]) if rows else None

    def chunks(self) -> list[tuple[int, int]]:
        """Return (first, end) of each chunk, in order."""
        return self._read("SELECT first, last FROM chunks ORDER BY first")

    def read_chunk(self, first: int) -> bytes:
        """Return the payload of a chunk.

        Raises:
            JournalError: No chunk begins at this index.
        """
        for _, _, payload in self._rows("chunks", "WHERE first = ?", first):
            return bytes(payload)
        raise JournalError(f"the journal has no chunk of the history at index {first}")

    def segments(self) -> list[Segment]:
        """Return the files that hold items of the history, in order."""
        return [Segment.of(row) for row in self._rows("segments", "ORDER BY first")]

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return index and position of a sink; None if it has no cursor."""
        for _, index, position in self._rows("cursors", "WHERE sink = ?", sink):
            return index, position
        return None

    @property
    def shown_to(self) -> int:
        """The highest index in any sink's cursor."""
        return max((index for _, index, _ in self._rows("cursors")), default=0)

    def superseded(self) -> list[tuple[int, int]]:
        """Return the superseded ranges of indices, ascending and disjoint."""
        return [(first, end) for first, end in self._rows("superseded", "ORDER BY first")]

    def meta(self, key: str) -> bytes | None:
        """Return a value by name; None if it does not exist."""
        for _, value in self._rows("meta", "WHERE name = ?", key):
            return bytes(value)
        return None

    @property
    def size_bytes(self) -> int:
        """Size of the file and its write-ahead log in bytes."""
        files = [] if self._path is None else [self._path, wal_path(self._path)]
        return sum(path.stat().st_size for path in files if path.exists())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._sync is not None:
            self._sync.stop()
        with self._lock:
            self._connection.close()

    # the file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Execute the block in a transaction.

        Raises:
            JournalFullError: The disk is full; nothing has changed.
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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._lock:
            try:
                if not self._is_clean:
                    # starts a new round of the log: the failed write may have left uncommitted frames
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    self._is_clean = True
                yield self._connection
            except sqlite3.Error as error:
                raise self._failed(error) from error
            if self._sync is not None:
                self._sync.note_written()

    def _failed(self, error: sqlite3.Error) -> JournalError:
        failure = journal_error(error, self._path)
        if isinstance(failure, JournalFullError):
            self._is_clean = False
        return failure

    def _rows(self, table: str, condition: str = "", *values: object) -> list[Row]:
        """Return rows of a table without their checksums; `condition` ends the query.

        Raises:
            JournalError: The file cannot be used, or a row was damaged since the journal was opened.
        """
        rows = self._read(select(table, condition), *values)
        if not all(is_intact(table, row, self._connection.seed) for row in rows):
            raise self._failed(sqlite3.DatabaseError(f"a row of {table} has a wrong checksum"))
        return [row[:-1] for row in rows]

    def _read(self, query: str, *values: object) -> list[Row]:
        """Return the rows of a query without verifying checksums; raises JournalError if the file cannot be used."""
        with self._lock:
            try:
                return self._connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._failed(error) from error


def _put_superseded(connection: Connection, ranges: Iterable[Range]) -> None:
    connection.execute("DELETE FROM superseded")
    for span in merged(ranges):
        put(connection, "superseded", span)


class AcceptedKeys:
    """Batches and keys of calls that the journal has accepted, to detect repeated ones.

    Attributes:
        clients: Number and position of the last batch of each sender.
        calls: Position of each key of a call, in ascending order of positions.
    """

    def __init__(self) -> None:
        self.clients: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, int] = {}

    def has(self, client: str, seq: int | None) -> bool:
        """Return whether the journal has accepted a batch already, or, without `seq`, a key.

        Raises:
            SequenceGapError: The journal does not have the sender's previous batch.
        """
        if seq is None:
            return bool(client) and client in self.calls
        next_seq = self.clients.get(client, (0, 0))[0] + 1
        if seq > next_seq:
            raise SequenceGapError(f"client {client!r} sent batch {seq}, but batch {next_seq} is next", next_seq)
        return seq < next_seq

    def add(self, client: str, seq: int, pos: int) -> None:
        """Add an accepted batch, or the key of a call if `seq` is 0."""
        if seq:
            self.clients[client] = (seq, pos)
        elif client:
            self.calls[client] = pos
            if len(self.calls) > MAX_CALLS:
                del self.calls[next(iter(self.calls))]

    def since(self, pos: int) -> tuple[list[tuple[str, int, int]], list[tuple[int, str]]]:
        """Return the rows of `clients` and of `calls` for the entries after a position."""
        clients = [(client, *last_batch) for client, last_batch in sorted(self.clients.items()) if last_batch[1] > pos]
        return clients, [(call_pos, call) for call, call_pos in self.calls.items() if call_pos > pos]

    @property
    def oldest_call(self) -> int:
        """Position of the oldest retained key; 0 without any."""
        return next(iter(self.calls.values()), 0)
