import contextlib
import sqlite3

import pytest
from history_run import Written, drain, exact, is_of_a_branch, points, random_items, seeded

from trieye.history import segments as history_segments


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 64)
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


def flip_a_bit(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def roll_unnoticed(written):
    """Write a file that the journal does not get to know."""
    journal = written.run_dir / "journal.db"
    written.close()
    before = journal.read_bytes()
    written.open().roll().close()
    journal.write_bytes(before)


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


def test_inputs_of_a_merge_that_was_killed_are_removed(written):
    written.segment(points(0, 100)).segment(points(100, 200))
    parts = {path.name: path.read_bytes() for path in written.directory.iterdir()}
    write_anew(written, points(0, 200))
    for name, part in parts.items():
        (written.directory / name).write_bytes(part)
    written.reopen()
    assert written.files() == ["points-0-200.parquet"]
    assert drain(written.history) == points(0, 200)


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
    assert "was not known to the journal" in caplog.text
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


def write_anew(written, items):
    """Write the same items as one file, into a run of which nothing is left."""
    for path in written.directory.iterdir():
        path.unlink()
    lose_journal(written)
    written.history.append(items)
    return written.commit().roll()


def test_a_merged_file_is_adopted_instead_of_its_parts(written):
    written.segment(points(0, 100)).segment(points(100, 200))
    parts = {path.name: path.read_bytes() for path in written.directory.iterdir()}
    write_anew(written, points(0, 200))
    for name, part in parts.items():
        (written.directory / name).write_bytes(part)
    lose_journal(written)
    assert written.files() == ["points-0-200.parquet"]
    assert drain(written.history) == points(0, 200)


@pytest.mark.parametrize("condition", ["first = 0", "first = 100", "1"])
def test_files_that_the_journal_forgot_are_adopted(written, condition):
    written.segment(points(0, 100)).segment(points(100, 200))
    in_journal(written, f"DELETE FROM segments WHERE {condition}")  # noqa: S608 - ours
    written.open()
    assert drain(written.history) == points(0, 200)
    assert [segment[:2] for segment in written.journal.segments()] == [(0, 100), (100, 200)]
    assert written.history.num_lost == 0


def test_a_whole_part_is_preferred_to_a_damaged_file(written):
    written.segment(points(0, 100)).segment(points(100, 200))
    part = written.path_of(0).read_bytes()
    write_anew(written, points(0, 200))
    flip_a_bit(written.path_of(0), 700)
    (written.directory / "points-0-100.parquet").write_bytes(part)
    lose_journal(written)
    found = drain(written.history)
    assert found[:100] == points(0, 100)
    assert len(found) + written.history.num_lost == written.history.end


def test_what_is_left_of_a_damaged_file_is_adopted(written, caplog):
    written.segment(points(0, 300))
    flip_a_bit(written.path_of(0), 700)
    lose_journal(written)
    assert written.history.end == 300
    found = drain(written.history)
    assert 0 < written.history.num_lost < 300
    assert len(found) == 300 - written.history.num_lost
    assert set(found) <= set(points(0, 300))


def test_a_damaged_file_does_not_replace_chunks(written):
    roll_unnoticed(written.append(points(0, 100)).commit().append(points(100, 300)).commit())
    flip_a_bit(written.directory / "points-0-300.parquet", 700)
    in_journal(written, "DELETE FROM chunks WHERE first > 0")
    assert drain(written.open().history) == points(0, 100)


def test_a_file_that_says_nothing_of_itself_is_left_alone(written, caplog):
    written.segment(points(0, 10))
    (written.directory / "points-10-20.parquet").write_bytes(b"PAR1 nonsense PAR1")
    written.reopen()
    assert drain(written.history) == points(0, 10)
    assert written.files() == ["points-0-10.parquet", "points-10-20.parquet"]
    assert "points-10-20.parquet cannot be read, and is left alone" in caplog.text


def test_a_shortened_file_gives_way_to_an_unregistered_one(written):
    written.segment(points(0, 100)).segment(points(100, 200))
    part = written.path_of(0).read_bytes()
    write_anew(written, points(0, 200))
    with written.path_of(0).open("r+b") as file:
        file.truncate(500)
    (written.directory / "points-0-100.parquet").write_bytes(part)
    written.reopen()
    assert drain(written.history) == points(0, 100)
    assert (written.history.end, written.history.num_lost) == (200, 100)
