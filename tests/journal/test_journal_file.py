import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.waiting import wait_until
from trieye.exceptions import JournalError
from trieye.files import filesystem
from trieye.journal.file import rollback_path, wal_path
from trieye.journal.journal import Journal, Snapshot
from trieye.journal.look import connect_read_only

WRITE_UNTIL_KILLED = """
import os, sys
from pathlib import Path
from trieye.files import filesystem
from trieye.journal.journal import Journal
filesystem.MOUNTINFO = Path(sys.argv[2])
journal = Journal(Path(sys.argv[1]))
print(journal.num_lost, *journal.damage, flush=True)
while True:
    os.write(1, b"%d\\n" % journal.append("events", bytes(2800), at=0.0))
"""


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    """Let the temporary directory be on a network file system, as far as anybody can see."""
    path = tmp_path / "mountinfo"
    path.write_text(f"1 0 0:1 / / rw - ext4 disk rw\n2 1 0:2 / {os.path.realpath(tmp_path)} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(filesystem, "MOUNTINFO", path)
    return path


def fill(journal, count=20):
    for number in range(count):
        journal.append("events", bytes(2800), at=float(number), client="a", seq=journal.last_pos + 1)


def test_on_a_network_file_system_there_is_no_write_ahead_log_and_one_warning(tmp_path, mounts, caplog):
    path = tmp_path / "journal.db"
    with caplog.at_level(logging.WARNING):
        journal = Journal(path)
    fill(journal)
    assert not wal_path(path).exists()
    assert rollback_path(path).stat().st_size == 0
    (text,) = [record.getMessage() for record in caplog.records]
    assert "is on a network file system (nfs4)" in text
    assert "root_data_dir to a directory on a local disk" in text
    (mode,) = journal._store._connection.execute("PRAGMA synchronous").fetchone()
    assert mode == 2, "FULL"
    journal.commit(Snapshot(20, 0, 0.0, b"state"), keep_after=20)
    journal.close()
    journal = Journal(path)
    assert (journal.last_pos, journal.damage) == (20, [])
    journal.close()


def test_a_journal_may_move_between_local_disks_and_network_file_systems(tmp_path, mounts, monkeypatch):
    path = tmp_path / "journal.db"
    local = tmp_path / "local"
    local.write_text("1 0 0:1 / / rw - ext4 disk rw\n")
    for round_number, place in enumerate([local, mounts, local, mounts]):
        monkeypatch.setattr(filesystem, "MOUNTINFO", place)
        journal = Journal(path)
        assert (journal.last_pos, journal.damage) == (20 * round_number, [])
        fill(journal)
        assert wal_path(path).exists() == (place == local)
        journal.close()


def test_others_can_read_while_it_is_written_on_a_network_file_system(tmp_path, mounts):
    path = tmp_path / "journal.db"
    journal = Journal(path)
    for count in (20, 40):
        fill(journal)
        reader = connect_read_only(path)
        assert reader.execute("SELECT count(*) FROM records").fetchone() == (count,)
        reader.close()
    journal.close()


def test_nothing_acknowledged_is_lost_by_a_kill_on_a_network_file_system(tmp_path, mounts):
    path = tmp_path / "journal.db"
    acknowledged = 0
    for count in (1, 37, 5):
        command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path), str(mounts)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout.readline() == b"0\n", "damage"
            lines = [process.stdout.readline() for _ in range(count)]
            process.kill()
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        assert int(lines[0]) in {acknowledged + 1, acknowledged + 2}
        acknowledged = int([line for line in lines if line.endswith(b"\n")][-1])
    journal = Journal(path)
    assert (journal.damage, journal.num_lost) == ([], 0)
    assert len(list(journal.records(0))) in {acknowledged, acknowledged + 1}
    journal.close()


def test_a_directory_that_cannot_be_written_is_an_error_that_names_the_journal(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"the journal .*journal\.db cannot be made"):
        Journal(tmp_path / "file" / "journal.db")
    (tmp_path / "journal.db").mkdir()
    with pytest.raises(JournalError, match=r"the journal .*journal\.db cannot be read"):
        Journal(tmp_path / "journal.db")


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """A journal that is brought to the disk at intervals, and a list with an item for each time that it was tried."""
    tries = []

    def sync(_descriptor):
        tries.append(None)
        if (tmp_path / "broken").exists():
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    journal = Journal(tmp_path / "journal.db", durability="interval")
    yield journal, tries
    journal.close()


def test_what_was_written_is_brought_to_the_disk_soon(synced):
    journal, tries = synced
    for _ in range(2):
        before = len(tries)
        journal.append("events", b"", at=0.0)
        wait_until(lambda before=before: len(tries) > before)


def test_a_file_that_cannot_be_synced_is_reported_to_the_next_writer_and_costs_no_record(synced, tmp_path):
    journal, tries = synced
    (tmp_path / "broken").touch()
    journal.append("events", b"first", at=0.0)
    wait_until(lambda: tries)
    (tmp_path / "broken").unlink()

    def is_reported():
        try:
            journal.append("events", b"more", at=0.0)
        except JournalError as error:
            return "cannot be brought to the disk: Input/output error" in str(error)
        return False

    wait_until(is_reported)
    last = journal.append("events", b"last", at=0.0)
    assert [record.pos for record in journal.records(0)] == list(range(1, last + 1))


def test_the_thread_that_syncs_ends_with_the_journal(synced):
    names = [thread.name for thread in threading.enumerate()]
    assert "trieye-journal-sync" in names
    synced[0].close()
    assert "trieye-journal-sync" not in [thread.name for thread in threading.enumerate()]
