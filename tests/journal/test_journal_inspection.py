import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trieye.exceptions import JournalError
from trieye.journal.file import wal_path
from trieye.journal.inspection import Inspection, inspect
from trieye.journal.journal import Chunk, Journal, Segment, Snapshot

WRITER = Path(__file__).with_name("journal_kill_writer.py")


@pytest.fixture
def killed(tmp_path):
    """The files of a journal as a killed process leaves them."""
    journal = Journal(tmp_path / "written" / "journal.db")
    for number in range(1, 11):
        journal.append("events", bytes(3000), at=0.0, client="a", seq=number)
        journal.append("rows", b"", at=0.0, client=f"key-{number}")
    journal.append("events", bytes(3000), at=0.0, client="b", seq=1)
    for pos in (4, 6, 8):
        journal.commit(Snapshot(pos, 2 * pos, 0.0, b"state"), chunks=[Chunk(pos, pos + 2, b"chunk")], keep_after=pos)
    journal.replace_chunks(Segment(4, 6, "points-4-6.parquet", 100, 7))
    journal.supersede(3, 5)
    journal.set_cursor("mlflow", 9, None)
    files = tmp_path / "killed"
    shutil.copytree(tmp_path / "written", files)
    journal.close()
    return files / "journal.db"


def everything_in(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_it_says_what_is_there_and_changes_nothing(killed):
    before = everything_in(killed.parent)
    for _ in range(2):
        assert inspect(killed) == Inspection(
            num_records=15,
            first_pos=7,
            last_pos=21,
            clients={"a": 10, "b": 1},
            snapshots=[(6, 12), (8, 16)],
            chunks=[(6, 8), (8, 10)],
            segments=[Segment(4, 6, "points-4-6.parquet", 100, 7)],
            cursors={"mlflow": 9},
            superseded=[(3, 5)],
            damage=[],
        )
    assert everything_in(killed.parent) == before


def test_it_says_what_is_damaged_and_changes_nothing(killed):
    data = bytearray(wal_path(killed).read_bytes())
    data[9000] ^= 1
    wal_path(killed).write_bytes(data)
    before = everything_in(killed.parent)
    found = inspect(killed)
    assert len(found.damage) >= 1
    assert "stand after damaged bytes" in found.damage[0]
    assert found.last_pos == 21
    assert everything_in(killed.parent) == before


def test_an_empty_journal_is_whole(tmp_path):
    Journal(tmp_path / "journal.db").close()
    found = inspect(tmp_path / "journal.db")
    assert (found.num_records, found.first_pos, found.last_pos, found.damage) == (0, 0, 0, [])


def test_what_is_no_journal_is_named(tmp_path):
    with pytest.raises(JournalError, match=r"there is no journal .*journal\.db"):
        inspect(tmp_path / "journal.db")
    (tmp_path / "journal.db").write_text("something else")
    with pytest.raises(JournalError, match=f"^{tmp_path}/journal.db is no journal of a run"):
        inspect(tmp_path / "journal.db")


def test_a_journal_that_is_being_written_is_whole(tmp_path):
    path = tmp_path / "journal.db"
    with subprocess.Popen([sys.executable, str(WRITER), str(path), "process"], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        last_pos = 0
        for _ in range(20):
            acknowledged = int(process.stdout.readline())
            found = inspect(path)
            assert found.damage == []
            assert found.last_pos >= max(acknowledged, last_pos)
            assert found.clients == {"writer": found.last_pos}
            assert found.num_records == found.last_pos - found.first_pos + 1
            last_pos = found.last_pos
            for _ in range(100):
                process.stdout.readline()
        process.kill()
