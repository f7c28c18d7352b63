import random

import pytest

from trieye.journal.journal import Chunk, Journal, Snapshot
from trieye.journal.pages import rows_in_pages
from trieye.journal.schema import select

PAGE = 4096
INTEGERS = [0, 1, -1, 127, 128, -(2**15), 2**23, 2**31, -(2**47), 2**48, 2**62, -(2**63), 2**63 - 1]


@pytest.fixture
def path(tmp_path):
    """A journal with numbers and contents of every size, closed."""
    source = random.Random(3)
    path = tmp_path / "journal.db"
    journal = Journal(path)
    for number, size in enumerate([*range(3900, 4100, 7), 0, 1, 100, 8000, 8190, 20_000, 300_000]):
        at = source.choice([0.0, 5.0, -2.0, 1e300, 0.1, 2.0**60])
        journal.append("events", source.randbytes(size), at=at, client=source.choice(["", f"key-{number}" + 50 * "ü"]))
    for integer in INTEGERS:
        chunk = Chunk(integer, integer, source.randbytes(10))
        journal.commit(Snapshot(integer, integer, 0.5, source.randbytes(5000)), chunks=[chunk], keep_after=0)
    journal.supersede(1, 2**62)
    journal.close()
    return path


def test_the_rows_on_the_pages_are_those_that_sqlite_reads(path):
    data = path.read_bytes()
    journal = Journal(path)
    seed = journal._store._connection.seed
    found = set(rows_in_pages(lambda number: data[(number - 1) * PAGE : number * PAGE], len(data) // PAGE, seed))
    expected = {
        (table, row)
        for table in ("records", "calls", "snapshots", "chunks", "segments", "superseded")
        for row in journal._store.read(select(table))
    }
    journal.close()
    assert len(expected) > 50
    assert expected <= found
    # what is there besides was deleted
    assert {table for table, _ in found - expected} <= {"snapshots", "superseded"}


def test_pages_full_of_noise_hold_no_row(path):
    source = random.Random(4)
    pages = [bytes([0x0D]) + source.randbytes(PAGE - 1) for _ in range(50)]
    assert list(rows_in_pages(lambda number: pages[number - 1] if number <= 50 else b"", 50, 0)) == []
