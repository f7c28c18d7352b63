import contextlib
import threading
from pathlib import Path

import pytest

from trieye.exceptions import JournalError, SequenceGapError
from trieye.journal.journal import Journal, JournalChunk, JournalEntry, Segment, Snapshot
from trieye.journal.scan import connect_read_only
from trieye.journal.schema import put

PAYLOAD = b"events"


@pytest.fixture(params=["file", "memory"])
def journal(request, tmp_path):
    opened = Journal(tmp_path / "run" / "journal.db" if request.param == "file" else None)
    yield opened
    opened.close()


class Reopened:
    """A journal that consecutive hubs open."""

    def __init__(self, path):
        self.path = path
        self.current = Journal(path)

    def reopen(self, durability="process"):
        self.current.close()
        self.current = Journal(self.path, durability=durability)
        assert self.current.damage == []
        assert self.current.num_lost == 0
        return self.current


@pytest.fixture
def reopened(tmp_path):
    opened = Reopened(tmp_path / "journal.db")
    yield opened
    opened.current.close()


def snapshot_at(journal, payload=b"state", index=0):
    return Snapshot(journal.last_pos, index, 1.5, payload)


def positions(journal, after=0):
    return [record.pos for record in journal.records(after)]


def test_entries_are_read_in_the_order_appended_with_their_exact_times(journal):
    assert (journal.last_pos, journal.last_at, journal.damage, journal.num_lost) == (0, 0.0, [], 0)
    assert (list(journal.records(0)), journal.snapshot(), journal.cursor("mlflow")) == ([], None, None)
    records = [
        JournalEntry(1, "events", -0.0, "one", 1, b""),
        JournalEntry(2, "events", 1 / 3, "two", 1, b"\0\xff" * 9000),
        JournalEntry(3, "pass", 1e300, "", 0, PAYLOAD),
        JournalEntry(4, "events", 5, "three", 1, b""),
        JournalEntry(5, "events", 5e-324, "key ü", 0, PAYLOAD),
    ]
    for record in records:
        pos = journal.append(record.kind, record.payload, at=record.at, client=record.client, seq=record.seq or None)
        assert pos == record.pos
    assert list(journal.records(0)) == records
    assert all(isinstance(record.at, float) for record in journal.records(0))
    assert list(journal.records(2)) == records[2:]
    assert list(journal.records(5)) == []
    assert (journal.last_pos, journal.last_at) == (5, 5e-324)


def test_entries_can_be_appended_during_iteration(journal):
    for _ in range(200):
        journal.append("events", PAYLOAD, at=0.0)
    read_positions = []
    for record in journal.records(0):
        read_positions.append(record.pos)
        if record.pos % 10 == 0 and record.pos < 300:
            journal.append("events", PAYLOAD, at=0.0)
    assert read_positions == list(range(1, journal.last_pos + 1))


def test_repeated_batches_and_calls_with_a_key_are_stored_once_and_calls_without_always(journal):
    assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=1) == 1
    assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=1) is None
    assert journal.append("events", PAYLOAD, at=0.0, client="b", seq=1) == 2
    assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=2) == 3
    assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=1) is None
    assert journal.append("rows", PAYLOAD, at=0.0, client="task") == 4
    assert journal.append("rows", PAYLOAD, at=0.0, client="task") is None
    assert [journal.append("rows", PAYLOAD, at=0.0) for _ in range(2)] == [5, 6]
    assert positions(journal) == [1, 2, 3, 4, 5, 6]


def test_a_gap_in_the_batch_numbers_of_a_client_is_an_error(journal):
    journal.append("events", PAYLOAD, at=0.0, client="a", seq=1)
    with pytest.raises(SequenceGapError, match="client 'a' sent batch 4, but batch 2 is next") as caught:
        journal.append("events", PAYLOAD, at=0.0, client="a", seq=4)
    assert caught.value.expected == 2
    with pytest.raises(SequenceGapError) as caught:
        journal.append("events", PAYLOAD, at=0.0, client="unknown", seq=7)
    assert caught.value.expected == 1
    assert journal.last_pos == 1


def test_repeated_batches_and_keys_are_ignored_after_their_entries_are_deleted(reopened):
    journal = reopened.current
    journal.append("events", PAYLOAD, at=0.0, client="a", seq=1)
    journal.append("events", PAYLOAD, at=0.0, client="a", seq=2)
    journal.append("rows", PAYLOAD, at=2.5, client="task")
    for num_commits, retained in ((0, [1, 2, 3]), (2, []), (0, [])):
        for _ in range(num_commits):
            journal.commit(snapshot_at(journal), keep_after=journal.last_pos)
        assert positions(journal) == retained
        journal = reopened.reopen()
        assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=2) is None
        assert journal.append("rows", PAYLOAD, at=0.0, client="task") is None
        with pytest.raises(SequenceGapError):
            journal.append("events", PAYLOAD, at=0.0, client="a", seq=4)
    assert (journal.last_pos, journal.last_at) == (3, 2.5)
    assert journal.append("events", PAYLOAD, at=0.0, client="a", seq=3) == 4, "no position is used twice"


def test_only_the_newest_keys_are_remembered(reopened, monkeypatch):
    monkeypatch.setattr("trieye.journal.journal.MAX_CALLS", 100)
    journal = reopened.current
    for number in range(110):
        journal.append("rows", b"", at=0.0, client=f"task-{number}")
        if number % 30 == 0:
            journal.commit(snapshot_at(journal), keep_after=journal.last_pos)
    for _ in range(2):
        journal.commit(snapshot_at(journal), keep_after=journal.last_pos)
    journal = reopened.reopen()
    assert journal.append("rows", b"", at=0.0, client="task-10") is None
    assert journal.append("rows", b"", at=0.0, client="task-9") is not None


def test_entries_after_the_older_of_two_snapshots_are_kept(reopened):
    journal = reopened.current
    for _ in range(3):
        journal.append("events", PAYLOAD, at=0.0)
        journal.append("pass", PAYLOAD, at=0.0)
        journal.commit(snapshot_at(journal, b"%d" % journal.last_pos), keep_after=journal.last_pos)
        assert positions(journal, journal.last_pos - 2) == [journal.last_pos - 1, journal.last_pos]
    assert positions(journal) == [5, 6]
    assert reopened.reopen().snapshot() == Snapshot(6, 0, 1.5, b"6")


def test_a_commit_keeps_entries_after_keep_after(journal):
    for _ in range(9):
        journal.append("events", PAYLOAD, at=0.0)
        journal.commit(snapshot_at(journal), keep_after=4)
    assert positions(journal) == [5, 6, 7, 8, 9]
    journal.commit(snapshot_at(journal), keep_after=2)
    assert positions(journal) == [5, 6, 7, 8, 9]


def test_a_commit_stores_all_of_its_parts(reopened):
    journal = reopened.current
    journal.append("events", PAYLOAD, at=0.0)
    chunks = [JournalChunk(0, 10, b"first"), JournalChunk(10, 12, b"second")]
    parts = {"chunks": chunks, "superseded": [(3, 5)], "meta": {"attempt": b"1", "final": b""}}
    journal.commit(snapshot_at(journal, index=12), keep_after=0, **parts)
    journal = reopened.reopen()
    assert journal.snapshot() == Snapshot(1, 12, 1.5, b"state")
    assert journal.chunks() == [(0, 10), (10, 12)]
    assert [journal.read_chunk(0), journal.read_chunk(10)] == [b"first", b"second"]
    assert journal.superseded() == [(3, 5)]
    assert (journal.meta("attempt"), journal.meta("final")) == (b"1", b"")


def test_a_failed_commit_changes_nothing(journal):
    journal.append("events", PAYLOAD, at=0.0)
    journal.commit(snapshot_at(journal), keep_after=1)
    journal.append("events", PAYLOAD, at=0.0)
    with pytest.raises(TypeError):
        journal.commit(snapshot_at(journal, b"newer"), chunks=[None], keep_after=2, meta={"a": b"b"})
    assert journal.snapshot().payload == b"state"
    assert journal.meta("a") is None
    assert positions(journal) == [1, 2]
    assert journal.append("events", PAYLOAD, at=0.0) == 3


def test_a_rewind_replaces_both_snapshots(reopened):
    journal = reopened.current
    for _ in range(2):
        journal.append("events", PAYLOAD, at=0.0)
        journal.commit(snapshot_at(journal, b"before"), keep_after=0)
    journal.commit(snapshot_at(journal, b"rewound"), keep_after=2, superseded=[(0, 4)], discontinuous=True)
    with contextlib.closing(connect_read_only(reopened.path)) as connection:
        assert connection.execute("SELECT pos, payload FROM snapshots").fetchall() == [(2, b"rewound")] * 2
    assert positions(journal) == []
    journal.append("events", PAYLOAD, at=0.0)
    journal.commit(snapshot_at(journal, b"after"), keep_after=3)
    assert reopened.reopen().snapshot().payload == b"after"
    assert positions(reopened.current) == [3]


def test_superseded_ranges_are_merged_and_replace_the_previous_ones(journal):
    for _ in range(2):
        journal.set_superseded([(5, 8), (1, 3), (3, 4), (7, 9), (20, 20)])
        assert journal.superseded() == [(1, 4), (5, 9)]


def test_a_history_segment_replaces_its_chunks(reopened):
    journal = reopened.current
    for first in range(0, 60, 10):
        journal.commit(snapshot_at(journal), chunks=[JournalChunk(first, first + 10, b"%d" % first)], keep_after=0)
    small = [Segment(0, 10, "a", 1, 2), Segment(10, 20, "b", 3, 2**32 - 1)]
    for segment in small:
        journal.replace_chunks(segment)
    assert journal.segments() == small
    journal.replace_chunks(Segment(20, 40, "c", 5, 6))
    journal = reopened.reopen()
    assert journal.segments() == [*small, Segment(20, 40, "c", 5, 6)]
    assert journal.chunks() == [(40, 50), (50, 60)]
    assert journal.read_chunk(50) == b"50"
    with pytest.raises(JournalError, match="no chunk of the history at index 30"):
        journal.read_chunk(30)


def test_cursors_and_metadata_are_overwritten(reopened):
    journal = reopened.current
    for index in range(3):
        journal.set_cursor("mlflow", index, None)
        journal.set_cursor("tensorboard", index, f"file:{index}")
        journal.set_meta("status", b"%d" % index)
    journal = reopened.reopen()
    assert journal.cursor("mlflow") == (2, None)
    assert journal.cursor("tensorboard") == (2, "file:2")
    assert journal.cursor("console") is None
    assert journal.meta("status") == b"2"


def test_threads_append_and_read_concurrently(reopened):
    journal = reopened.current
    failures = []

    def append(name):
        try:
            for seq in range(1, 101):
                assert journal.append("events", PAYLOAD, at=0.0, client=name, seq=seq) is not None
                journal.set_cursor(name, seq, None)
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    def read():
        for _ in range(50):
            read_positions = positions(journal)
            if read_positions != list(range(1, len(read_positions) + 1)):
                failures.append(read_positions)

    threads = [threading.Thread(target=append, args=(f"client-{n}",)) for n in range(4)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert positions(reopened.reopen()) == list(range(1, 401))


def test_an_entry_stored_by_an_interrupted_append_is_kept_once(journal):
    journal.append("events", b"noted", at=0.0, client="a", seq=1)
    # as if a signal had interrupted the call after the row was stored
    with journal._transaction() as connection:
        put(connection, "records", (2, "events", 4.0, "a", 2, b"stored"))
    assert journal.append("events", b"stored", at=5.0, client="a", seq=2) is None
    assert journal.append("events", b"next", at=6.0, client="a", seq=3) == 3
    assert [record.payload for record in journal.records(0)] == [b"noted", b"stored", b"next"]


def test_the_file_reuses_the_space_of_deleted_entries(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    sizes = []
    for _ in range(20):
        for _ in range(200):
            journal.append("events", bytes(2800), at=0.0)
        journal.commit(snapshot_at(journal, bytes(100_000)), keep_after=journal.last_pos)
        sizes.append(journal.size_bytes)
    journal.close()
    assert journal.size_bytes == (tmp_path / "journal.db").stat().st_size
    assert max(sizes) < 8 << 20
    assert max(sizes[10:]) < 1.5 * max(sizes[:10])


def test_using_a_closed_journal_is_an_error(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    journal.close()
    journal.close()
    for use in (lambda: journal.append("events", b"", at=0.0), lambda: journal.meta("a"), journal.chunks):
        with pytest.raises(JournalError, match=r"journal\.db is closed"):
            use()


def test_a_path_may_contain_any_character(tmp_path):
    path: Path = tmp_path / "100 % & ?#' ü" / "journal.db"
    for pos in (1, 2):
        journal = Journal(path)
        assert journal.append("events", b"", at=0.0) == pos
        journal.close()
