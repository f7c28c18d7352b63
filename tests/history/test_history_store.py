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
    """Change the journal behind the back of everybody."""
    written.close()
    with contextlib.closing(sqlite3.connect(written.run_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute(statement)


def roll_unnoticed(written):
    """Write a file that the journal does not get to know."""
    journal = written.run_dir / "journal.db"
    written.close()
    before = journal.read_bytes()
    written.open().roll().close()
    journal.write_bytes(before)


# rolling


def test_few_bytes_stay_in_the_journal(written, monkeypatch):
    monkeypatch.setattr(history_store, "ROLL_BYTES", 40 * 1000)
    written.append(points(0, 900)).commit().roll(force=False)
    assert written.files() == []
    written.append(points(900, 1000)).commit().roll(force=False)
    assert written.files() == ["points-0-1000.parquet"]
    assert written.journal.chunks() == []


def test_only_what_is_committed_is_rolled(written):
    written.append(points(0, 10)).commit().append(points(10, 20)).roll()
    assert written.files() == ["points-0-10.parquet"]
    written.commit().roll()
    assert written.files() == ["points-0-10.parquet", "points-10-20.parquet"]
    written.roll()
    assert len(written.files()) == 2


def test_chunks_of_an_earlier_attempt_are_rolled_at_once(written):
    written.append(points(0, 10)).commit().reopen().roll(force=False)
    assert written.files() == ["points-0-10.parquet"]
    written.append(points(10, 20)).commit().roll(force=False)
    assert len(written.files()) == 1


def test_a_reader_whose_chunk_goes_into_a_file_meanwhile_loses_nothing(written, monkeypatch):
    monkeypatch.setattr("trieye.history.history.KEPT_ITEMS", 0)
    written.append(points(0, 50)).commit()
    has_missed, found = threading.Event(), []
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

    reader = threading.Thread(target=lambda: found.extend(drain(written.history)))
    monkeypatch.setattr(written.journal, "replace_chunks", replaced)
    written.roll()
    reader.join(60)
    assert found == points(0, 50)
    assert written.history.num_lost == 0


def test_what_lies_apart_is_not_joined(written):
    for number in range(3):
        written.history.skip_to(number * 20)
        written.history.append(points(number * 20, number * 20 + 10))
        written.commit()
    written.roll()
    assert written.files() == ["points-0-10.parquet", "points-20-30.parquet", "points-40-50.parquet"]
    assert drain(written.history) == [*points(0, 10), *points(20, 30), *points(40, 50)]


def test_a_kill_at_any_file_operation_of_a_roll_costs_nothing(tmp_path, monkeypatch):
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
            again = Written(directory.parent)
            assert again.journal.damage == [], number
            assert (again.history.end, again.history.num_lost) == (committed, 0), number
            assert drain(again.history) == points(0, committed), number
            assert set(again.files()) <= {segment.name for segment in again.journal.segments()}, number
            again.close()
    assert number >= 12


# opening


def test_a_file_that_was_not_registered_is_removed_if_its_items_are_in_chunks(written):
    roll_unnoticed(written.append(points(0, 300)).commit())
    assert written.files() == ["points-0-300.parquet"]
    written.open()
    assert written.files() == []
    assert drain(written.history) == points(0, 300)


def test_what_a_killed_writer_left_is_removed(written):
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


def test_indices_beyond_what_survived_are_not_superseded(written):
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
def test_files_that_the_journal_forgot_are_adopted(written, condition):
    written.segment(points(0, 100)).segment(points(100, 200))
    in_journal(written, f"DELETE FROM segments WHERE {condition}")  # noqa: S608 - ours
    written.open()
    assert drain(written.history) == points(0, 200)
    assert [segment[:2] for segment in written.journal.segments()] == [(0, 100), (100, 200)]
    assert written.history.num_lost == 0


def test_what_is_left_of_a_damaged_file_is_adopted(written, caplog):
    written.segment(points(0, 300))
    flip(written.path_of(0), 700)
    lose_journal(written)
    assert written.history.end == 300
    found = drain(written.history)
    assert 0 < written.history.num_lost < 300
    assert len(found) == 300 - written.history.num_lost
    assert set(found) <= set(points(0, 300))


def test_a_damaged_file_fills_gaps_and_does_not_replace_chunks(written):
    roll_unnoticed(written.append(points(0, 100)).commit().append(points(100, 300)).commit())
    flip(written.directory / "points-0-300.parquet", 700)
    in_journal(written, "DELETE FROM chunks WHERE first > 0")
    for _ in range(2):
        found = drain(written.open().history)
        assert found[:100] == points(0, 100)
        assert set(found) <= set(points(0, 300))
        assert len(found) + written.history.num_lost == written.history.end == 300
        written.roll().close()
    written.open()


def test_a_file_that_says_nothing_of_itself_is_left_alone(written, caplog):
    written.segment(points(0, 10))
    (written.directory / "points-10-20.parquet").write_bytes(b"PAR1 nonsense PAR1")
    written.reopen()
    assert drain(written.history) == points(0, 10)
    assert written.files() == ["points-0-10.parquet", "points-10-20.parquet"]
    assert "points-10-20.parquet, which cannot be read" in caplog.text
