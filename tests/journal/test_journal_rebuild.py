import contextlib
import os
import shutil
import sqlite3

import pytest

from tests.damage import flip
from tests.forked import killed_at_each
from trieye.exceptions import JournalError, SequenceGapError
from trieye.journal.file import wal_path
from trieye.journal.journal import Journal, JournalChunk, Segment, Snapshot
from trieye.journal.watermark import watermark_path

PAGE = 4096


def write(path, count=30, *, size=2800):
    """Write a journal and close it, so that all data are in the file."""
    journal = Journal(path)
    for number in range(count):
        journal.append("events", bytes([number]) * size, at=float(number), client="a", seq=journal.last_pos + 1)
    return journal


def change(path, statement, *values):
    """Change a row without its checksum, as a flipped bit does."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement, values)
    connection.close()


@pytest.fixture
def opened():
    """Return a function that opens a damaged journal, whose losses are reported until they are counted."""
    with contextlib.ExitStack() as closed_later:

        def open_damaged(path):
            journal = Journal(path)
            report, last_pos = (journal.damage, journal.num_lost), journal.last_pos
            journal.close()
            journal = Journal(path)
            assert (journal.damage, journal.num_lost, journal.last_pos) == (*report, last_pos)
            journal.forget_repair()
            journal.close()
            journal = closed_later.enter_context(contextlib.closing(Journal(path)))
            assert (journal.damage, journal.num_lost, journal.last_pos) == ([], 0, last_pos)
            journal.damage, journal.num_lost = report
            assert len(journal.damage) == 1
            return journal

        yield open_damaged


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


def test_opening_an_intact_journal_changes_nothing(path):
    write(path).close()
    before = path.read_bytes()
    for _ in range(2):
        journal = Journal(path)
        assert (journal.damage, journal.num_lost) == ([], 0)
        journal.close()
    assert path.read_bytes() == before
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, "journal-watermark.jsonl"}


def test_entries_after_a_damaged_entry_are_counted_as_lost(path, opened):
    write(path).close()
    change(path, "UPDATE records SET payload = x'00' WHERE pos IN (7, 8, 12)")
    journal = opened(path)
    assert journal.num_lost == 24
    assert "3 rows of records are damaged" in journal.damage[0]
    assert "lost: 24 entries (positions 7-30)" in journal.damage[0]
    assert [record.pos for record in journal.records(0)] == [1, 2, 3, 4, 5, 6]
    assert journal.append("events", b"", at=0.0, client="a", seq=7) == 31, "no position is used twice"


@pytest.mark.parametrize(
    ("statement", "positions", "lost"),
    [
        ("UPDATE records SET payload = x'00' WHERE pos IN (7, 28)", range(21, 28), "3 entries (positions 28-30)"),
        ("DELETE FROM records WHERE pos = 7 OR pos > 25", range(21, 26), "5 entries (positions 26-30)"),
    ],
)
def test_a_snapshot_replaces_damaged_and_missing_entries_before_it(path, opened, statement, positions, lost):
    with contextlib.closing(write(path)) as journal:
        journal.commit(Snapshot(20, 0, 0.0, b"state"), keep_after=0)
    change(path, statement)
    journal = opened(path)
    assert journal.snapshot() == Snapshot(20, 0, 0.0, b"state")
    assert [record.pos for record in journal.records(0)] == list(positions)
    assert f"lost: {lost}" in journal.damage[0]
    assert (journal.num_lost, journal.last_pos) == (int(lost[0]), 30)


@pytest.mark.parametrize("column", ["kind = 'pass'", "at = 99.0", "client = 'b'", "seq = 5", "pos = 99", "crc = 1"])
def test_a_checksum_covers_every_value_of_a_row(path, column, opened):
    write(path).close()
    change(path, f"UPDATE records SET {column} WHERE pos = 20")  # noqa: S608 - from above
    journal = opened(path)
    assert journal.num_lost == journal.last_pos - 19 >= 11
    assert [record.pos for record in journal.records(0)] == list(range(1, 20))


def test_missing_entries_are_counted_once(path, opened):
    write(path).close()
    change(path, "DELETE FROM records WHERE pos BETWEEN 15 AND 24")
    journal = opened(path)
    assert journal.num_lost == 16
    assert "10 entries are missing" in journal.damage[0]
    for pos in range(31, 41):
        assert journal.append("events", b"", at=0.0) == pos
    journal.close()
    change(path, "DELETE FROM records WHERE pos IN (33, 38)")
    journal = opened(path)
    assert "2 entries are missing" in journal.damage[0]
    assert [record.pos for record in journal.records(0)] == [*range(1, 15), 31, 32]
    assert "lost: 8 entries (positions 33-40)" in journal.damage[0]


def test_the_older_snapshot_replaces_a_damaged_newer_one(path, opened):
    with contextlib.closing(write(path)) as journal:
        for number in (1, 2, 3):
            journal.append("pass", b"", at=0.0)
            journal.commit(Snapshot(30 + number, 0, 0.0, b"%d" % number), keep_after=30 + number)
    change(path, "UPDATE snapshots SET payload = x'00' WHERE pos = 33")
    journal = opened(path)
    assert journal.snapshot() == Snapshot(32, 0, 0.0, b"2")
    assert [record.pos for record in journal.records(32)] == [33]
    assert journal.num_lost == 0


def test_the_loss_of_all_snapshots_is_reported(path, opened):
    with contextlib.closing(write(path)) as journal:
        for number in (1, 2, 3):
            journal.commit(Snapshot(30, 0, 0.0, b"%d" % number), keep_after=30)
        journal.append("events", b"", at=0.0)
    change(path, "UPDATE snapshots SET payload = x'00'")
    journal = opened(path)
    assert journal.snapshot() is None
    assert "the state of the metrics" in journal.damage[0]
    assert journal.num_lost == 1
    assert [record.pos for record in journal.records(0)] == [31]


@pytest.mark.parametrize("has_watermark", [True, False])
def test_other_damaged_rows_are_dropped_and_reported(path, has_watermark, opened):
    with contextlib.closing(write(path)) as journal:
        chunks = [JournalChunk(first, first + 10, b"%d" % first) for first in range(0, 40, 10)]
        journal.commit(
            Snapshot(30, 40, 0.0, b"state"), chunks=chunks, keep_after=0, superseded=[(3, 4)], meta={"key": b"v"}
        )
        journal.replace_chunks(Segment(0, 10, "a.parquet", 1, 2))
        for sink in ("mlflow", "tensorboard"):
            journal.set_cursor(sink, 5, None)
    for statement in (
        "UPDATE chunks SET last = 99 WHERE first = 20",
        "UPDATE cursors SET next_index = 7 WHERE sink = 'mlflow'",
        "UPDATE meta SET value = x'' WHERE name = 'key'",
        "UPDATE superseded SET last = 9",
        "UPDATE segments SET name = 'b.parquet'",
    ):
        change(path, statement)
    if not has_watermark:
        watermark_path(path).unlink()
    journal = opened(path)
    assert journal.chunks() == [(10, 20), (30, 40)]
    assert journal.cursor("mlflow") == ((5, None) if has_watermark else None)
    assert journal.cursor("tensorboard") == (5, None)
    assert (journal.meta("key"), journal.superseded(), journal.segments()) == (None, [(3, 4)] * has_watermark, [])
    assert journal.num_lost == 1
    assert "points of the history that no file contains yet" in journal.damage[0]
    for text in ("the ranges of superseded points", "the cursors of sinks"):
        assert (text in journal.damage[0]) is not has_watermark
    assert len(list(journal.records(0))) == 30


def test_a_damaged_batch_number_is_rebuilt_from_the_entries(path, opened):
    with contextlib.closing(write(path)) as journal:
        journal.commit(Snapshot(30, 0, 0.0, b"state"), keep_after=0)
    change(path, "UPDATE clients SET last_seq = 3")
    journal = opened(path)
    assert journal.append("events", b"", at=0.0, client="a", seq=30) is None
    assert journal.append("events", b"", at=0.0, client="a", seq=31) == 31


def test_a_damaged_batch_number_without_entries_is_dropped_and_reported(path, opened):
    with contextlib.closing(write(path)) as journal:
        for _ in range(2):
            journal.commit(Snapshot(30, 0, 0.0, b"state"), keep_after=30)
    change(path, "UPDATE clients SET last_seq = 3")
    journal = opened(path)
    assert journal.num_lost == 1
    assert "the batch numbers of some senders" in journal.damage[0]
    with pytest.raises(SequenceGapError) as caught:
        journal.append("events", b"", at=0.0, client="a", seq=31)
    assert caught.value.expected == 1


def test_the_damaged_files_are_quarantined_and_never_overwritten(path):
    journal = write(path)
    copies = []
    for number in (1, 2, 3):
        journal.close()
        flip(path, 3 * PAGE + 2000)
        flip(path, 20)
        copies.append(path.read_bytes())
        journal = Journal(path)
        assert f"quarantined as journal.db.damaged-{number};" in journal.damage[0]
    journal.close()
    assert [path.with_name(f"journal.db.damaged-{number}").read_bytes() for number in (1, 2, 3)] == copies


@pytest.fixture
def killed(tmp_path, path):
    """The files of a journal as a killed process leaves them, with a damaged frame in the log."""
    with contextlib.closing(write(path)) as journal:
        journal.set_cursor("sink", 3, None)
        shutil.copytree(tmp_path, tmp_path / "killed")
    flip(wal_path(tmp_path / "killed" / path.name), 12 * (PAGE + 24))
    return tmp_path / "killed" / path.name


def test_entries_after_a_damaged_wal_frame_are_counted_as_lost(killed, opened):
    before = killed.read_bytes(), wal_path(killed).read_bytes()
    journal = opened(killed)
    positions = [record.pos for record in journal.records(0)]
    assert 1 <= len(positions) < 30
    assert positions == list(range(1, len(positions) + 1)), "SQLite applies the frames before it"
    assert (journal.num_lost, journal.last_pos) == (30 - len(positions), 30), "as the watermark says"
    assert f"(positions {len(positions) + 1}-30); perhaps entries after these" in journal.damage[0]
    assert journal.cursor("sink") == (3, None), "as the watermark says"
    journal.close()
    quarantined = killed.with_name("journal.db.damaged-1")
    assert (quarantined.read_bytes(), wal_path(quarantined).read_bytes()) == before


def test_entries_checkpointed_from_a_wal_before_its_damage_are_intact(killed, opened):
    frames = wal_path(killed).read_bytes()
    flip(wal_path(killed), 12 * (PAGE + 24))  # flip the bit back
    change(killed, "PRAGMA wal_checkpoint")  # closing deletes the log
    wal_path(killed).write_bytes(frames)
    journal = opened(killed)
    assert [record.pos for record in journal.records(0)] == list(range(1, 31))
    assert "perhaps the newest entries" in journal.damage[0]


def test_a_missing_or_empty_file_is_reported_and_restored_from_its_wal(tmp_path, path, opened):
    with contextlib.closing(write(path)) as journal:
        shutil.copyfile(wal_path(path), tmp_path / "log")
    path.unlink()
    (tmp_path / "log").rename(wal_path(path))
    journal = opened(path)
    assert "the file is empty or missing" in journal.damage[0]
    assert len(list(journal.records(0))) == 30  # the log contains everything except the tables
    empty = tmp_path / "empty" / path.name
    empty.parent.mkdir()
    empty.touch()
    journal = opened(empty)
    assert "the file is empty or missing" in journal.damage[0]
    assert list(journal.records(0)) == []


@pytest.mark.parametrize(
    ("content", "statement", "message"),
    [
        (b"some text", None, "not the journal of a run; move it away"),
        (b"{}" * PAGE, None, "not the journal of a run; move it away"),
        (bytes(3 * PAGE), None, "not the journal of a run; move it away"),
        (None, "CREATE TABLE theirs (a)", "not the journal of a run"),
        (None, "PRAGMA user_version = 2; ALTER TABLE records ADD COLUMN more", "newer trieye: update trieye"),
    ],
)
def test_a_foreign_file_or_a_newer_journal_is_rejected_unchanged(path, content, statement, message):
    if content is not None:
        path.write_bytes(content)
    else:
        if "records" in statement:
            write(path).close()
        for part in statement.split(";"):
            change(path, part)
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(JournalError, match=rf"journal\.db .*{message}"):
        Journal(path)
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == before


@pytest.mark.parametrize("offset", [0, 16, 18, 19, 21, 47, 55, 59, 60, 62, 63, 68, 71])
def test_a_damaged_header_loses_no_entries(path, offset, opened):
    write(path).close()
    flip(path, offset)
    journal = opened(path)
    assert journal.num_lost == 0
    assert "lost: nothing" in journal.damage[0]
    assert len(list(journal.records(0))) == 30


@pytest.mark.parametrize("page", range(12))
def test_an_overwritten_page_is_reported_and_the_last_position_is_kept(path, page, opened):
    with contextlib.closing(write(path)) as journal:
        journal.commit(
            Snapshot(30, 40, 0.0, b"state"), chunks=[JournalChunk(0, 40, b"c")], keep_after=0, meta={"key": b"v"}
        )
    data = path.read_bytes()
    path.write_bytes(data[: page * PAGE] + os.urandom(PAGE) + data[(page + 1) * PAGE :])
    journal = opened(path)
    positions = [record.pos for record in journal.records(0)]
    assert positions == ([] if page in {1, 10, 11} else list(range(1, 31)))
    if not positions:  # the pages of `records`: the snapshot includes them
        assert journal.num_lost == 1
        assert "perhaps the newest entries" in journal.damage[0]
    assert journal.last_pos == 30


def test_a_rebuild_killed_at_any_step_is_repeated_or_completed(tmp_path, killed, opened):
    files = [file.read_bytes() for file in (killed, wal_path(killed))]

    def prepare(number):
        return shutil.copytree(killed.parent, tmp_path / f"{number}")

    steps = {"open", "os.rename", "os.remove", "os.link", "sqlite3.connect"}
    opened(prepare(0) / killed.name).close()  # imports modules
    for number, directory, _ in killed_at_each(steps, prepare, lambda copy: Journal(copy / killed.name)):
        lost = 0
        for is_first in (True, False):
            journal = Journal(directory / killed.name)
            assert bool(journal.damage) is (journal.num_lost > 0) is is_first, number
            assert len(list(journal.records(0))) + max(journal.num_lost, lost) == 30, number
            lost = journal.num_lost
            journal.forget_repair()
            journal.close()
        quarantined = sorted(directory.glob(f"{killed.name}.damaged-*"))
        assert [file.read_bytes() for file in quarantined] == files, number
    assert number > 10
