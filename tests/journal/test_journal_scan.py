import contextlib
import shutil
import sqlite3

import pytest

from tests.damage import contents
from tests.full_disk import full_disk
from trieye.exceptions import JournalError
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal, JournalChunk, Segment, Snapshot
from trieye.journal.scan import connect_read_only, inspect, read_cursors, read_meta


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.db"


@pytest.fixture
def killed(tmp_path):
    """The files of a journal as a killed process leaves them."""
    journal = Journal(tmp_path / "written" / "journal.db")
    for number in range(1, 11):
        journal.append("events", bytes(3000), at=0.0, client="a", seq=number)
        journal.append("rows", b"", at=0.0, client=f"key-{number}")
    journal.append("events", bytes(3000), at=0.0, client="b", seq=1)
    for pos in (4, 6, 8):
        journal.commit(
            Snapshot(pos, 2 * pos, 0.0, b"state"), chunks=[JournalChunk(pos, pos + 2, b"chunk")], keep_after=pos
        )
    journal.replace_chunks(Segment(4, 6, "points-4-6.parquet", 100, 7))
    journal.set_cursor("mlflow", 9, None)
    files = tmp_path / "killed"
    shutil.copytree(tmp_path / "written", files)
    journal.close()
    return files / "journal.db"


def test_inspect_reports_the_contents_and_changes_nothing(killed):
    before = contents(killed.parent)
    for _ in range(2):
        scanned = inspect(killed)
        assert (scanned.damage, scanned.num_records, scanned.last_pos) == ([], 15, 21)
        assert scanned.snapshots == [(6, 12), (8, 16)]
        assert scanned.chunks == [(6, 8), (8, 10)]
        assert scanned.segments == [Segment(4, 6, "points-4-6.parquet", 100, 7)]
        assert scanned.cursors == {"mlflow": 9}
    assert contents(killed.parent) == before


def test_inspect_reports_damage_and_changes_nothing(killed):
    data = bytearray(wal_path(killed).read_bytes())
    data[9 * 4120] ^= 1
    wal_path(killed).write_bytes(data)
    before = contents(killed.parent)
    scanned = inspect(killed)
    assert "follow damaged bytes" in scanned.damage[0]
    assert "had reached 21" in scanned.damage[-1]
    assert 0 < scanned.last_pos < 21, "SQLite applies the frames before the damage"
    assert contents(killed.parent) == before


def test_inspect_rolls_back_an_interrupted_transaction_in_a_copy(path):
    with contextlib.closing(Journal(path)) as journal:
        journal.append("events", b"kept", at=0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("journal_mode = DELETE", "cache_size = 1", "cache_spill = 1"):
            connection.execute(f"PRAGMA {statement}")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO meta VALUES ('half', zeroblob(100000), 0)")
        files = [(file, file.read_bytes()) for file in (path, rollback_path(path))]
        connection.execute("ROLLBACK")
    for file, data in files:
        file.write_bytes(data)
    assert rollback_path(path).stat().st_size > 0
    before = contents(path.parent)
    assert (inspect(path).damage, inspect(path).num_records) == ([], 1)
    assert contents(path.parent) == before
    with contextlib.closing(Journal(path)) as journal:
        assert ([record.payload for record in journal.records(0)], journal.damage) == ([b"kept"], [])


def test_a_journal_whose_copy_does_not_fit_on_the_disk_is_not_damaged(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    journal.append("events", bytes(20_000), at=0.0, client="a", seq=1)  # its log is smaller than the file with it
    copy = shutil.copytree(tmp_path, tmp_path / "copy") / "journal.db"
    journal.close()
    with full_disk(45_000), pytest.raises(JournalError, match=r"cannot be read: .*no room for a copy"):
        inspect(copy)
    assert not inspect(copy).damage


def test_inspect_names_a_missing_or_foreign_file(tmp_path):
    with pytest.raises(JournalError, match=r"there is no journal .*journal\.db"):
        inspect(tmp_path / "journal.db")
    (tmp_path / "journal.db").write_text("something else")
    with pytest.raises(JournalError, match=f"^{tmp_path}/journal.db is not the journal of a run"):
        inspect(tmp_path / "journal.db")


def test_metadata_and_cursors_are_readable_before_during_and_after_a_run_without_a_change_of_its_files(path):
    assert (read_meta(path, "status"), read_cursors(path)) == (None, {})
    assert not path.parent.exists()
    with pytest.raises(JournalError, match=r"journal\.db cannot be read"):
        connect_read_only(path).execute("SELECT 1 FROM meta")
    with contextlib.closing(Journal(path)) as journal:
        assert (read_meta(path, "status"), read_cursors(path)) == (None, {})
        for number in range(3):
            journal.set_meta("status", b"%d" % number)
            journal.set_cursor("mlflow", number, None)
            assert (read_meta(path, "status"), read_cursors(path)) == (b"%d" % number, {"mlflow": number})
    for extra in path.parent.glob("journal.db-*"):
        extra.unlink()
    before = contents(path.parent)
    assert read_meta(path, "status") == b"2"
    assert contents(path.parent) == before


def test_an_empty_journal_is_intact_and_read_only_connections_reject_writes(path):
    Journal(path).close()
    scanned = inspect(path)
    assert (scanned.num_records, scanned.last_pos, scanned.damage) == (0, 0, [])
    with contextlib.closing(connect_read_only(path)) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM meta")


def test_damaged_metadata_is_none_or_an_error_but_never_another_value(path):
    with contextlib.closing(Journal(path)) as journal:
        journal.set_meta("status", b"old status")
    data = bytearray(path.read_bytes())
    data[data.index(b"old status")] ^= 1
    path.write_bytes(data)
    assert read_meta(path, "status") is None
    path.write_bytes(b"no journal" * 1000)
    with pytest.raises(JournalError, match=r"journal\.db cannot be read"):
        read_meta(path, "status")
