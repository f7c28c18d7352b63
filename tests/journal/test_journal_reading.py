import contextlib
import sqlite3

import pytest

from trieye.exceptions import JournalError
from trieye.journal.journal import Journal
from trieye.journal.reading import connect_read_only, read_cursors, read_meta


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "journal.db"


def test_values_are_read_while_they_are_written(path):
    with contextlib.closing(Journal(path)) as journal:
        assert read_meta(path, "status") is None
        assert read_cursors(path) == {}
        for number in range(3):
            journal.set_meta("status", b"%d" % number)
            journal.set_cursor("mlflow", number, None)
            assert read_meta(path, "status") == b"%d" % number
            assert read_cursors(path) == {"mlflow": number}


def test_where_there_is_no_journal_there_is_nothing_and_none_is_made(path):
    assert read_meta(path, "status") is None
    assert read_cursors(path) == {}
    assert not path.parent.exists()
    with pytest.raises(JournalError, match=r"journal\.db cannot be read"):
        connect_read_only(path).execute("SELECT 1 FROM meta")


def test_a_journal_that_nobody_has_open_stays_the_only_file(path):
    with contextlib.closing(Journal(path)) as journal:
        journal.set_meta("status", b"last")
    for extra in path.parent.glob("journal.db-*"):
        extra.unlink()
    before = path.read_bytes()
    assert read_meta(path, "status") == b"last"
    assert {file.name for file in path.parent.iterdir()} == {"journal.db", "journal-witness.jsonl"}
    assert path.read_bytes() == before


def test_nothing_can_be_changed(path):
    Journal(path).close()
    with contextlib.closing(connect_read_only(path)) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("DELETE FROM meta")


def test_what_is_damaged_is_an_error_or_nothing_but_never_another_value(path):
    with contextlib.closing(Journal(path)) as journal:
        journal.set_meta("status", b"what it was")
    data = bytearray(path.read_bytes())
    data[data.index(b"what it was")] ^= 1
    path.write_bytes(data)
    assert read_meta(path, "status") is None
    path.write_bytes(b"no journal" * 1000)
    with pytest.raises(JournalError, match=r"journal\.db cannot be read"):
        read_meta(path, "status")
