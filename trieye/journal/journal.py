"""Journal: the durable, ordered log of what a run accepted, in one SQLite file."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trieye.exceptions import JournalError
from trieye.journal.file import Durability
from trieye.journal.keys import TakenKeys
from trieye.journal.schema import STATE, Chunk, Connection, Record, Segment, Snapshot, State, put
from trieye.journal.store import JournalStore
from trieye.journal.witness import Expected, Witness, WitnessFile, read_witness

__all__ = ["Chunk", "Durability", "Journal", "Record", "Segment", "Snapshot"]

_READ_AHEAD = 64


class Journal:
    """Keeps records until a snapshot has made them superfluous, and what else must survive with them.

    Safe to use from several threads. One process writes it; others may read the file meanwhile. What is found damaged
    when it is opened is set aside as `<name>.damaged-<n>`, and all that is whole in it is kept. So is a journal that
    another run wrote, or that ends before what the witness beside it says; the newest transactions can be cut off
    unnoticed only if they came after the witness was written.

    Args:
        path: The file; it is made if it is missing. None: in memory.
        durability: What a record survives once `append` has returned.
        expected: What is known of it besides its witness.

    Attributes:
        damage: What was found damaged when it was opened, in words; normally empty.
        num_lost: Records that are lost by that; at least 1 if anything is.
        last_pos: Position of the newest record, also if it was deleted; 0 at first.
        last_at: Its journal time in seconds.

    Raises:
        JournalError: The file is no journal, or it cannot be used.
    """

    def __init__(
        self, path: Path | None, *, durability: Durability = "process", expected: Expected | None = None
    ) -> None:
        known = (expected or Expected())._replace(witness=None if path is None else read_witness(path))
        self._store = JournalStore(path, durability, known)
        self._witness = None if path is None else WitnessFile(path)
        self._lock = self._store.lock  # guards last_pos, last_at and _taken, too: they change with the file
        self._taken = TakenKeys()
        try:
            self._identity = self._store.identity
            self._state = State.from_bytes(self.meta(STATE))
            self.last_pos, self.last_at = self._state.last_pos, self._state.last_at
            self._load_taken()
            self._testify()
            self.damage, self.num_lost = self._store.take_report()  # last: a kill before it leaves the report
        except BaseException:
            self._store.close()
            raise

    def _load_taken(self) -> None:
        for client, seq, pos in self._store.rows("clients"):
            self._taken.add(client, seq, pos)
        for pos, task in self._store.rows("calls", "ORDER BY pos"):
            self._taken.add(task, 0, pos)
        self._saved_to = self._state.deleted_to  # of what a repair lost, the records may know
        self._note_records()

    def _note_records(self) -> None:
        query = "SELECT pos, at, client, seq FROM records WHERE pos > ? ORDER BY pos"
        for pos, at, client, seq in self._store.read(query, self._state.deleted_to):
            self._taken.add(client, seq, pos)
            # the newest ones may have been lost
            self.last_pos, self.last_at = max((self.last_pos, self.last_at), (pos, at))

    def _testify(self) -> None:
        """Write down beside the journal how far it reaches."""
        if self._witness is not None:
            with self._witness.lock:
                cursors = {sink: (index, position) for sink, index, position in self._store.rows("cursors")}
                superseded = tuple(self.superseded())
                held = Witness(self._identity, self.last_pos, self._state.deleted_to, cursors, superseded)
                self._witness.write(held)

    # writing

    def append(self, kind: str, payload: bytes, *, at: float, client: str = "", seq: int | None = None) -> int | None:
        """Store a record; when this returns it is durable.

        Args:
            kind: What the payload means.
            payload: What is accepted.
            at: Journal time in seconds.
            client: Who sends it; without `seq`, a key that is used for this call only, or empty.
            seq: Number of the batch, one more than that of the client's last one; the first is 1.

        Returns:
            Its position, or None if it was taken before.

        Raises:
            SequenceGapError: The batch before it is missing.
            JournalFullError: There is no room now; nothing was stored.
        """
        with self._lock:
            if self._taken.has(client, seq):
                return None
            # as SQLite returns them: it knows no negative zero
            row = (self.last_pos + 1, kind, float(at) + 0.0, client, seq or 0, payload)
            try:
                self._store.add("records", row)
            except JournalError as error:
                if not isinstance(error.__cause__, sqlite3.IntegrityError):
                    raise
                # a signal came between storing the record before and noting it
                self._note_records()
                return self.append(kind, payload, at=at, client=client, seq=seq)
            self.last_pos, self.last_at = row[0], row[2]
            self._taken.add(client, seq or 0, row[0])
            return self.last_pos

    def commit(
        self,
        snapshot: Snapshot,
        *,
        chunks: Sequence[Chunk] = (),
        keep_after: int,
        superseded: Sequence[tuple[int, int]] | None = None,
        meta: Mapping[str, bytes] | None = None,
        discontinuous: bool = False,
    ) -> None:
        """Store a snapshot with what belongs to it, and delete the records that nobody needs now, all or nothing.

        The newest two snapshots are kept, and the records after the older one.

        Args:
            snapshot: What the records add up to.
            chunks: Items of the history that are not stored yet.
            keep_after: Records after this position are kept.
            superseded: All ranges of indices that the history leaves out from now on, in place of those before.
            meta: Values to be stored.
            discontinuous: The state does not follow from the snapshots and records before it; so it is at a rewind.

        Raises:
            JournalFullError: There is no room now; nothing was changed.
        """
        with self._store.transaction() as connection:
            older = self._put_snapshot(connection, snapshot, alone=discontinuous or superseded is not None)
            for chunk in chunks:
                put(connection, "chunks", tuple(chunk))
            for key, value in (meta or {}).items():
                put(connection, "meta", (key, value))
            if superseded is not None:
                connection.execute("DELETE FROM superseded")
                for first, end in superseded:
                    put(connection, "superseded", (first, end))
            self._put_taken(connection)
            deleted_to = max(self._state.deleted_to, min(keep_after, older, self.last_pos))
            gaps = tuple(gap for gap in self._state.gaps if gap[1] > deleted_to)
            state = State(deleted_to, self.last_pos, self.last_at, gaps)
            put(connection, "meta", (STATE, state.to_bytes()))
            connection.execute("DELETE FROM records WHERE pos <= ?", (deleted_to,))
        self._state, self._saved_to = state, state.last_pos
        self._testify()

    def _put_snapshot(self, connection: Connection, snapshot: Snapshot, *, alone: bool) -> int:
        """Store a snapshot, twice if no older one can stand in for it; return the position of the older one kept."""
        held = connection.execute("SELECT number, pos FROM snapshots ORDER BY number").fetchall()
        number = held[-1][0] + 1 if held else 1
        row = (snapshot.pos, snapshot.index, float(snapshot.at) + 0.0, snapshot.payload)
        put(connection, "snapshots", (number, *row))
        if alone:
            put(connection, "snapshots", (number + 1, *row))
            held = [*held, (number, snapshot.pos)]
        if not held:
            return 0
        kept, pos = held[-1]
        connection.execute("DELETE FROM snapshots WHERE number < ?", (kept,))
        return int(pos)

    def _put_taken(self, connection: Connection) -> None:
        clients, calls = self._taken.since(self._saved_to)
        for client in clients:
            put(connection, "clients", client)
        for call in calls:
            put(connection, "calls", call)
        connection.execute("DELETE FROM calls WHERE pos < ?", (self._taken.oldest_call,))

    def _put_superseded(self, connection: Connection, first: int, end: int) -> None:
        for other_first, other_end in self.superseded():
            if other_first <= end and first <= other_end:
                first, end = min(first, other_first), max(end, other_end)
        connection.execute("DELETE FROM superseded WHERE first BETWEEN ? AND ?", (first, end))
        put(connection, "superseded", (first, end))

    def supersede(self, first: int, end: int) -> None:
        """Leave the indices from `first` up to and without `end` out of the history."""
        with self._store.transaction() as connection:
            self._put_superseded(connection, first, end)
        self._testify()

    def replace_chunks(self, segment: Segment) -> None:
        """Register a file of the history, complete and on the disk, in place of the chunks whose items it has."""
        with self._store.transaction() as connection:
            connection.execute("DELETE FROM chunks WHERE first >= ? AND last <= ?", (segment.first, segment.end))
            put(connection, "segments", tuple(segment))

    def set_cursor(self, sink: str, index: int, position: str | None) -> None:
        """Remember how far a sink is."""
        with self._store.transaction() as connection:
            put(connection, "cursors", (sink, index, position))
        self._testify()

    def set_meta(self, key: str, value: bytes) -> None:
        """Store a value by name; names that begin with `journal.` are the journal's own."""
        with self._store.transaction() as connection:
            put(connection, "meta", (key, value))

    # reading

    def records(self, after: int) -> Iterator[Record]:
        """Yield the records after a position, in order."""
        while rows := self._store.rows("records", "WHERE pos > ? ORDER BY pos LIMIT ?", after, _READ_AHEAD):
            yield from (Record(*row) for row in rows)
            after = rows[-1][0]

    def snapshot(self) -> Snapshot | None:
        """Return the newest snapshot."""
        rows = self._store.rows("snapshots", "ORDER BY number DESC LIMIT 1")
        return Snapshot(*rows[0][1:]) if rows else None

    def chunks(self) -> list[tuple[int, int]]:
        """Return first index and index after the last one of each chunk, in order."""
        return self._store.read("SELECT first, last FROM chunks ORDER BY first")

    def read_chunk(self, first: int) -> bytes:
        """Return the payload of a chunk.

        Raises:
            JournalError: There is none that begins there.
        """
        for _, _, payload in self._store.rows("chunks", "WHERE first = ?", first):
            return bytes(payload)
        raise JournalError(f"the journal has no chunk of the history at index {first}")

    def segments(self) -> list[Segment]:
        """Return the files that hold items of the history, in order."""
        return [Segment.of(row) for row in self._store.rows("segments", "ORDER BY first")]

    def cursor(self, sink: str) -> tuple[int, str | None] | None:
        """Return index and position of a sink; None if it was never there."""
        for _, index, position in self._store.rows("cursors", "WHERE sink = ?", sink):
            return index, position
        return None

    @property
    def shown_to(self) -> int:
        """The highest index that a sink was given, as far as known."""
        return max((index for _, index, _ in self._store.rows("cursors")), default=0)

    def superseded(self) -> list[tuple[int, int]]:
        """Return the ranges of indices that rewinds left out, ascending and apart from each other."""
        return [(first, end) for first, end in self._store.rows("superseded", "ORDER BY first")]

    def meta(self, key: str) -> bytes | None:
        """Return a value by name; None if there is none."""
        for _, value in self._store.rows("meta", "WHERE name = ?", key):
            return bytes(value)
        return None

    @property
    def size_bytes(self) -> int:
        """Bytes on the disk."""
        return self._store.size_bytes

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        self._store.close()
