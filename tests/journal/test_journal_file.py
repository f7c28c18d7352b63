import contextlib
import logging
import resource
import sqlite3
import threading

import pytest

from tests.forked import in_a_child
from tests.waiting import wait_until
from trieye.exceptions import JournalError, JournalFullError
from trieye.files import filesystem
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal, JournalChunk, Snapshot
from trieye.journal.scan import connect_read_only


def fill(journal, count=20):
    for number in range(count):
        journal.append("events", bytes(2800), at=float(number), client="a", seq=journal.last_pos + 1)


def test_a_network_file_system_disables_the_wal_with_one_warning(tmp_path, mounts, caplog):
    path = tmp_path / "journal.db"
    with caplog.at_level(logging.WARNING):
        journal = Journal(path)
    fill(journal)
    with contextlib.closing(connect_read_only(path)) as reader:  # while the journal is open
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (20,)
    fill(journal)
    assert not wal_path(path).exists()
    assert rollback_path(path).stat().st_size == 0
    (text,) = [record.getMessage() for record in caplog.records]
    assert "is on a network file system (nfs4)" in text
    assert "root_data_dir to a directory on a local disk" in text
    (mode,) = journal._connection.execute("PRAGMA synchronous").fetchone()
    assert mode == 2, "FULL"
    journal.commit(Snapshot(40, 0, 0.0, b"state"), keep_after=40)
    journal.close()
    journal = Journal(path)
    assert (journal.last_pos, journal.damage) == (40, [])
    journal.close()


def test_a_journal_may_move_between_local_disks_and_network_file_systems(tmp_path, mounts, monkeypatch):
    path = tmp_path / "journal.db"
    local = tmp_path / "local"
    local.write_text("1 0 0:1 / / rw - ext4 disk rw\n")
    for round_number, mountinfo in enumerate([local, mounts, local, mounts]):
        monkeypatch.setattr(filesystem, "MOUNTINFO", mountinfo)
        journal = Journal(path)
        assert (journal.last_pos, journal.damage) == (20 * round_number, [])
        fill(journal)
        assert wal_path(path).exists() == (mountinfo == local)
        journal.close()


def test_an_unusable_path_is_an_error_that_names_the_journal(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"the journal .*journal\.db cannot be created"):
        Journal(tmp_path / "file" / "journal.db")
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(JournalError, match=r"the journal .*journal\.db cannot be read"):
        Journal(tmp_path / "journal.db")


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """A journal that is synced at intervals, and a list with an item for each attempt to sync."""
    tries = []

    def sync(_descriptor):
        broken = (tmp_path / "broken").exists()
        tries.append(None)  # after the check, because a test mends the disk when it sees the attempt
        if broken:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("trieye.journal.file._sync", sync)
    journal = Journal(tmp_path / "journal.db", durability="interval")
    yield journal, tries
    journal.close()


def test_appended_entries_are_synced_by_a_thread_that_ends_when_the_journal_is_closed(synced):
    journal, tries = synced
    for _ in range(2):
        before = len(tries)
        journal.append("events", b"", at=0.0)
        wait_until(lambda before=before: len(tries) > before)
    assert "trieye-journal-sync" in [thread.name for thread in threading.enumerate()]
    journal.close()
    assert "trieye-journal-sync" not in [thread.name for thread in threading.enumerate()]


def test_a_failed_sync_is_reported_by_a_later_append_and_loses_no_entries(synced, tmp_path):
    journal, tries = synced
    (tmp_path / "broken").touch()
    journal.append("events", b"first", at=0.0)
    wait_until(lambda: tries)
    (tmp_path / "broken").unlink()

    def is_reported():
        try:
            journal.append("events", b"more", at=0.0)
        except JournalError as error:
            return "cannot be synced to disk: Input/output error" in str(error)
        return False

    wait_until(is_reported)
    last = journal.append("events", b"last", at=0.0)
    assert [record.pos for record in journal.records(0)] == list(range(1, last + 1))


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def is_refused(use):
    try:
        use()
    except JournalFullError as error:
        return "journal.db cannot grow" in str(error) and "make room" in str(error)
    return False


@pytest.mark.parametrize(("durability", "size"), [("process", 60_000), ("always", 300_000)])
def test_a_full_disk_rejects_new_entries_and_loses_no_accepted_ones(tmp_path, durability, size):
    path, last_file = tmp_path / "journal.db", tmp_path / "last"
    parts = {"chunks": [JournalChunk(0, 9, b"chunk")], "meta": {"key": b"value"}}

    def fill_up():
        journal = Journal(path, durability=durability)

        def append():
            assert journal.append("events", bytes(2800), at=0.0, client="a", seq=journal.last_pos + 1)

        limit(size)
        num_refused = 0
        while num_refused < 10:  # retries: after the first refusals it can still use the remaining space
            num_refused += is_refused(append)
        last = journal.last_pos
        big = Snapshot(last, 9, 0.0, bytes(2 * size))
        assert is_refused(lambda: journal.commit(big, keep_after=last, **parts))
        assert (journal.snapshot(), journal.chunks(), journal.meta("key")) == (None, [], None)
        assert [record.pos for record in journal.records(0)] == list(range(1, last + 1)), "all accepted entries exist"
        limit(resource.RLIM_INFINITY)
        for _ in range(3):
            append()
        journal.commit(big, keep_after=last, **parts)
        limit(journal.size_bytes)
        while not is_refused(append):
            pass
        limit(resource.RLIM_INFINITY)
        last_file.write_text(str(journal.last_pos))  # and exits as if killed

    assert in_a_child(fill_up) == 0
    journal = Journal(path)
    assert (journal.damage, journal.num_lost) == ([], 0)
    assert [record.pos for record in journal.records(0)] == list(range(1, int(last_file.read_text()) + 1))
    assert len(journal.snapshot().payload) == 2 * size
    assert journal.read_chunk(0) == b"chunk"
    journal.close()


def test_a_disk_too_full_for_a_new_journal_is_a_journal_full_error(tmp_path):
    def begin():
        limit(5000)
        with pytest.raises(JournalFullError, match="the journal"):
            Journal(tmp_path / "journal.db")

    assert in_a_child(begin) == 0
    journal = Journal(tmp_path / "journal.db")
    assert journal.damage == []
    journal.close()


def test_reading_a_row_damaged_while_the_journal_is_open_is_an_error(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    with sqlite3.connect(tmp_path / "journal.db") as other:
        other.execute("INSERT INTO meta VALUES ('key', x'00', 12345)")
    other.close()
    with pytest.raises(JournalError, match=r"a row of meta has a wrong checksum.*start the run again"):
        journal.meta("key")
    journal.close()
