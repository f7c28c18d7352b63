import threading
import time

import pytest

from trieye.exceptions import JournalError
from trieye.journal.journal import Journal
from trieye.journal.sync import IntervalSync

DEADLINE_S = 10.0


def wait_until(condition):
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until
        threading.Event().wait(0.005)


@pytest.fixture
def sync_of():
    made = []

    def make(path):
        made.append(IntervalSync(path))
        return made[-1]

    yield make
    for sync in made:
        sync.stop()


def test_what_was_written_is_synced_soon(tmp_path, sync_of):
    path = tmp_path / "log"
    path.write_bytes(b"new")
    sync = sync_of(path)
    for _ in range(2):
        sync.note_written()
        wait_until(lambda: not sync._written.is_set())
    sync.note_written()


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path, sync_of):
    sync = sync_of(tmp_path / "log")
    for _ in range(2):
        sync.note_written()
        wait_until(lambda: not sync._written.is_set())


def test_a_file_that_cannot_be_synced_is_reported_to_the_next_writer(tmp_path, sync_of):
    path = tmp_path / "log"
    path.symlink_to("/dev/null")  # fdatasync refuses it
    sync = sync_of(path)
    sync.note_written()
    wait_until(lambda: sync._error is not None)
    with pytest.raises(JournalError, match="log cannot be brought to the disk"):
        sync.note_written()


def test_the_thread_ends_with_the_journal(tmp_path):
    journal = Journal(tmp_path / "journal.db", durability="interval")
    journal.append("events", b"", at=0.0)
    names = [thread.name for thread in threading.enumerate()]
    assert "trieye-journal-sync" in names
    journal.close()
    assert "trieye-journal-sync" not in [thread.name for thread in threading.enumerate()]
