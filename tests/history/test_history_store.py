import contextlib
import sqlite3
import threading

import pytest
from history_run import Written, drain, exact, is_of_a_branch, points, random_items, seeded

from tests.damage import flip
from tests.forked import killed_at_each
from trieye.history import segments as history_segments
from trieye.history import store as history_store


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 64)
    monkeypatch.setattr("trieye.history.history.CHUNK_ITEMS", 64)
    made = Written(tmp_path)
    yield made
    made.close()


def lose_journal(written):
    written.close()
    for path in written.run_dir.glob("journal.db*"):
        path.unlink()
    return written.open()


def in_journal(written, statement):
    """Execute a statement in the closed journal."""
    written.close()
    with contextlib.closing(sqlite3.connect(written.run_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute(statement)


def roll_unnoticed(written):
    """Write a file without its registration in the journal."""
    journal = written.run_dir / "journal.db"
    written.close()
    before = journal.read_bytes()
    written.open().roll().close()
    journal.write_bytes(before)


# rolling


def test_committed_items_are_rolled_at_the_size_limit_or_in_the_next_attempt(written, monkeypatch):
    monkeypatch.setattr(history_store, "ROLL_BYTES", 40 * 1000)
    written.append(points(0, 900)).commit().roll(force=False)
    assert written.files() == []
    written.append(points(900, 1000)).commit().append(points(1000, 1100)).roll(force=False)
    assert written.files() == ["points-0-1000.parquet"]
    assert written.journal.chunks() == []
    written.commit().roll(force=False)
    assert written.files() == ["points-0-1000.parquet"]
    written.reopen().roll(force=False)
    assert written.files() == ["points-0-1000.parquet", "points-1000-1100.parquet"]
    written.roll()
    assert len(written.files()) == 2


def test_a_reader_loses_no_items_when_its_chunk_is_rolled(written, monkeypatch):
    monkeypatch.setattr("trieye.history.history.KEPT_ITEMS", 0)
    written.append(points(0, 50)).commit()
    has_missed, received = threading.Event(), []
    read_chunk, replace_chunks = written.journal.read_chunk, written.journal.replace_chunks

    def missed(first):
        try:
            return read_chunk(first)
        finally:
            has_missed.set()

    def replaced(segment):
        replace_chunks(segment)
        monkeypatch.setattr(written.journal, "read_chunk", missed)
        reader.start()
        assert has_missed.wait(60)

    reader = threading.Thread(target=lambda: received.extend(drain(written.history)))
    monkeypatch.setattr(written.journal, "replace_chunks", replaced)
    written.roll()
    reader.join(60)
    assert received == points(0, 50)
    assert written.history.num_lost == 0


def test_items_across_a_gap_are_not_joined(written):
    for number in range(3):
        written.history.skip_to(number * 20)
        written.history.append(points(number * 20, number * 20 + 10))
        written.commit()
    written.roll()
    assert written.files() == ["points-0-10.parquet", "points-20-30.parquet", "points-40-50.parquet"]
    assert drain(written.history) == [*points(0, 10), *points(20, 30), *points(40, 50)]


@pytest.mark.long
def test_a_kill_at_any_file_operation_of_a_roll_loses_no_items(tmp_path, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 8)

    def prepare(number):
        (tmp_path / f"{number}" / "history").mkdir(parents=True)
        return tmp_path / f"{number}" / "history"

    def write(directory):
        written = Written(directory.parent)
        for first in range(0, 60, 10):
            written.append(points(first, first + 10)).commit()
            (directory.parent / "committed").write_text(str(first + 10))
            written.roll()
        return written

    write(prepare(0)).close()
    for number, directory, is_done in killed_at_each({"open", "os.rename", "os.remove"}, prepare, write):
        committed = int((directory.parent / "committed").read_text())
        assert not is_done or committed == 60
        for _ in range(2):
            reopened = Written(directory.parent)
            assert reopened.journal.damage == [], number
            assert (reopened.history.end, reopened.history.num_lost) == (committed, 0), number
            assert drain(reopened.history) == points(0, committed), number
            assert set(reopened.files()) <= {segment.name for segment in reopened.journal.segments()}, number
            reopened.close()
    assert number >= 12


# opening


def test_an_unregistered_file_is_removed_if_chunks_have_its_items(written):
    roll_unnoticed(written.append(points(0, 300)).commit())
    assert written.files() == ["points-0-300.parquet"]
    written.open()
    assert written.files() == []
    assert drain(written.history) == points(0, 300)


def test_temporary_files_of_a_killed_writer_are_removed(written):
    written.segment(points(0, 10))
    (written.directory / ".points-1234abcd.tmp").write_bytes(b"half")
    (written.directory / "notes.txt").write_text("not ours")
    written.reopen()
    assert written.files() == ["notes.txt", "points-0-10.parquet"]


def test_files_survive_the_loss_of_the_journal(written, caplog):
    rng = seeded(3)
    written.segment(random_items(rng, 100)).segment(random_items(rng, 150))
    written.supersede(30, 60)
    written.segment(random_items(rng, 20))
    written.append(random_items(rng, 5)).commit()
    lose_journal(written)
    assert (written.history.end, written.history.num_lost) == (270, 0)
    del written.items[270:]
    assert exact(drain(written.history)) == exact(written.surviving())
    assert "was not registered in the journal" in caplog.text
    branch = [item for item in written.items[30:60] if is_of_a_branch(item)]
    assert {*exact(written.history.superseded(270))} <= {*exact(branch)}
    assert len(written.journal.segments()) == 3
    caplog.clear()
    written.reopen()
    assert exact(drain(written.history)) == exact(written.surviving())
    assert caplog.text == ""


def test_supersession_excludes_indices_lost_with_a_file(written):
    written.append(points(0, 10)).commit()
    written.history.skip_to(12)
    written.history.append(points(12, 20))
    written.supersede(5, 18)
    written.roll()
    written.path_of(1).unlink()
    lose_journal(written)
    assert written.history.end == 10
    written.history.append(points(10, 20))
    assert drain(written.history) == [*points(0, 5), *points(10, 20)]


@pytest.mark.parametrize("condition", ["first = 0", "first = 100", "1"])
def test_files_missing_in_the_journal_are_adopted(written, condition):
    written.segment(points(0, 100)).segment(points(100, 200))
    in_journal(written, f"DELETE FROM segments WHERE {condition}")  # noqa: S608 - ours
    written.open()
    assert drain(written.history) == points(0, 200)
    assert [segment[:2] for segment in written.journal.segments()] == [(0, 100), (100, 200)]
    assert written.history.num_lost == 0


def test_intact_items_of_a_damaged_file_are_adopted(written, caplog):
    written.segment(points(0, 300))
    flip(written.path_of(0), 700)
    lose_journal(written)
    assert written.history.end == 300
    received = drain(written.history)
    assert 0 < written.history.num_lost < 300
    assert len(received) == 300 - written.history.num_lost
    assert set(received) <= set(points(0, 300))


def test_a_damaged_file_fills_gaps_but_replaces_no_chunks(written):
    roll_unnoticed(written.append(points(0, 100)).commit().append(points(100, 300)).commit())
    flip(written.directory / "points-0-300.parquet", 700)
    in_journal(written, "DELETE FROM chunks WHERE first > 0")
    for _ in range(2):
        received = drain(written.open().history)
        assert received[:100] == points(0, 100)
        assert set(received) <= set(points(0, 300))
        assert len(received) + written.history.num_lost == written.history.end == 300
        written.roll().close()
    written.open()


def test_an_unreadable_file_is_reported_and_left_in_place(written, caplog):
    written.segment(points(0, 10))
    (written.directory / "points-10-20.parquet").write_bytes(b"PAR1 nonsense PAR1")
    written.reopen()
    assert drain(written.history) == points(0, 10)
    assert written.files() == ["points-0-10.parquet", "points-10-20.parquet"]
    assert "points-10-20.parquet, which cannot be read" in caplog.text
