import subprocess
import sys

import pytest

from trieye.exceptions import JournalError
from trieye.journal.journal import Journal
from trieye.journal.store import JournalStore

FILL_UP = """
import os, resource, sys
from pathlib import Path
from trieye.exceptions import JournalFullError
from trieye.journal.journal import Chunk, Journal, Snapshot

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def append():
    assert journal.append("events", bytes(2800), at=0.0, client="a", seq=journal.last_pos + 1) == journal.last_pos

def is_refused(use):
    try:
        use()
    except JournalFullError as error:
        assert str(path) in str(error) and "make room" in str(error), error
        return True
    return False

path, durability, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
journal = Journal(path, durability=durability)
limit(size)
num_refused = 0
while num_refused < 10:  # it is asked again and again; the first refusals let it use the rest of the room
    num_refused += is_refused(append)
last = journal.last_pos
assert last > 0
big = Snapshot(last, 9, 0.0, bytes(2 * size))
parts = {"chunks": [Chunk(0, 9, b"chunk")], "meta": {"key": b"value"}}
assert is_refused(lambda: journal.commit(big, keep_after=last, **parts))
assert (journal.snapshot(), journal.chunks(), journal.meta("key")) == (None, [], None)
assert [record.pos for record in journal.records(0)] == list(range(1, last + 1)), "what was accepted is there"
limit(resource.RLIM_INFINITY)
for _ in range(3):
    append()
journal.commit(big, keep_after=last, **parts)
limit(journal.size_bytes)
while not is_refused(append):
    pass
print(journal.last_pos, flush=True)
os._exit(0)  # as if it was killed
"""


@pytest.mark.parametrize("durability", ["process", "always"])
@pytest.mark.parametrize("size", [60_000, 300_000])
def test_a_full_disk_refuses_what_does_not_fit_and_costs_nothing_else(tmp_path, durability, size):
    path = tmp_path / "journal.db"
    command = [sys.executable, "-c", FILL_UP, str(path), durability, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    journal = Journal(path)
    assert (journal.damage, journal.num_lost) == ([], 0)
    assert [record.pos for record in journal.records(0)] == list(range(1, int(done.stdout) + 1))
    assert len(journal.snapshot().payload) == 2 * size
    assert journal.read_chunk(0) == b"chunk"
    journal.close()


def test_a_journal_that_is_full_from_the_beginning_says_so(tmp_path):
    code = (
        "import resource, sys; from pathlib import Path; from trieye.journal.journal import Journal\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\n"
        "Journal(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "journal.db")], capture_output=True, text=True)
    assert "trieye.exceptions.JournalFullError: the journal" in done.stderr
    journal = Journal(tmp_path / "journal.db")
    assert journal.damage == []
    journal.close()


def test_a_row_that_is_damaged_while_the_journal_is_open_is_not_given_out(tmp_path):
    store = JournalStore(tmp_path / "journal.db", "process")
    with store.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('key', x'00', 12345)")
    with pytest.raises(JournalError, match=r"a row of meta has a wrong checksum.*start the run again"):
        store.rows("meta")
    store.close()
