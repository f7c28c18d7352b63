import contextlib
import sqlite3
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
import pyarrow.parquet as pq
import pytest
from history_run import NOW, Written, drain, exact, point, points, random_items, seeded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.full_disk import full_disk
from trieye.exceptions import JournalError
from trieye.history import history as history_module
from trieye.history import store as history_store
from trieye.history.columns import Columns
from trieye.history.history import History
from trieye.journal.journal import Journal, JournalChunk, Snapshot
from trieye.stats.operations import LogImage, LogParams


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path)
    yield made
    made.close()


@pytest.fixture
def small(monkeypatch):
    """Lower all limits, so that few items pass through memory, chunks and files."""
    monkeypatch.setattr(history_module, "KEPT_ITEMS", 20)
    monkeypatch.setattr(history_module, "CHUNK_ITEMS", 7)
    monkeypatch.setattr(history_store, "ROLL_BYTES", 2000)
    monkeypatch.setattr("trieye.history.segments.GROUP_ITEMS", 60)


SCRIPT = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 60)),
        st.tuples(st.just("commit"), st.none()),
        st.tuples(st.just("roll"), st.booleans()),
        st.tuples(st.just("supersede"), st.tuples(st.floats(0, 1), st.floats(0, 1))),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("read"), st.tuples(st.floats(0, 1), st.integers(1, 50))),
    ),
    max_size=40,
)


def play(written, script, rng):
    for action, argument in script:
        match action:
            case "append":
                written.append(random_items(rng, argument))
            case "commit":
                written.commit()
            case "roll":
                written.roll(force=argument)
            case "reopen":
                written.reopen()
            case "supersede":
                first, end = sorted(int(part * len(written.items)) for part in argument)
                if first < end:
                    written.supersede(first, end)
            case "read":
                start = int(argument[0] * len(written.items))
                assert exact(drain(written.history, start, argument[1])) == exact(written.surviving(start))
                assert exact(written.history.superseded(start)) == exact(written.lost_branch(start))


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=SCRIPT, seed=st.integers(0, 1 << 30))
def test_a_history_behaves_like_a_list(tmp_path_factory, small, script, seed):
    written = Written(tmp_path_factory.mktemp("run"))
    with contextlib.closing(written):
        play(written, script, seeded(seed))
        assert written.history.end == len(written.items)
        assert exact(drain(written.history)) == exact(written.surviving())
        assert exact(written.history.superseded(written.history.end)) == exact(written.lost_branch())
        assert written.history.num_lost == 0


def test_pending_items_stay_pending_until_they_are_committed(written):
    written.append(points(0, 25))
    first = written.history.pending()
    written.append(points(25, 30))
    assert written.history.num_pending == 30, "a failed commit must not drop pending items"
    assert written.history.pending()[0].first == first[0].first == 0
    written.commit()
    assert written.history.num_pending == 0
    assert written.history.pending() == []
    assert drain(written.reopen().history) == points(0, 30)


def test_images_do_not_stay_in_memory(written, monkeypatch):
    monkeypatch.setattr(history_module, "KEPT_BYTES", 16 << 10)
    monkeypatch.setattr(history_module, "CHUNK_BYTES", 4 << 10)
    images = [LogImage(f"i{n}", n, NOW, 9, 9, 3, bytes([n]) * (3 << 10)) for n in range(6)]
    written.append(images).commit()
    items, end = written.history.read(0, 1000)
    assert (items, end) == (images[:1], 1), "reads from the journal are bounded by bytes, too"
    assert drain(written.roll().history) == images
    assert drain(written.reopen().history) == images


def test_skipped_indices_are_never_assigned_again(written):
    written.append(points(0, 5)).commit()
    written.history.skip_to(3)
    assert written.history.end == 5
    written.history.skip_to(8)
    assert (written.history.end, written.history.num_lost) == (8, 3)
    written.history.append(points(8, 10))
    assert drain(written.history) == [*points(0, 5), *points(8, 10)]
    assert list(written.history.superseded(10)) == []
    written.commit().roll()
    written.journal.close()
    written.open()
    assert (written.history.end, written.history.num_lost) == (10, 3)
    assert drain(written.history, limit=2) == [*points(0, 5), *points(8, 10)]


def test_a_superseded_branch_may_have_gaps(written):
    written.append(points(0, 5)).commit()
    written.history.skip_to(8)
    written.history.append(points(8, 12))
    written.commit()
    written.history.set_superseded([(3, 9)])
    assert drain(written.history) == [*points(0, 3), *points(9, 12)]
    assert list(written.history.superseded(12)) == [*points(3, 5), point(8)]


def test_a_history_without_a_directory_stays_in_the_journal(tmp_path):
    journal = Journal(None)
    history = History(journal, None)
    history.append(points(0, 100))
    history.roll(force=True)
    assert drain(history) == points(0, 100)
    assert list(tmp_path.iterdir()) == []
    journal.close()


def test_a_cursor_beyond_the_end_is_clamped_to_the_end(written):
    assert written.history.cursor("mlflow") is None
    written.append(points(0, 10))
    written.history.set_cursor("mlflow", (7, "here"))
    assert written.history.cursor("mlflow") == (7, "here")
    written.history.set_cursor("mlflow", (70, None))
    assert written.history.cursor("mlflow") == (10, None), "a cursor beyond the end would skip new items"


def test_a_damaged_chunk_loses_only_its_own_items(written, caplog):
    written.append(points(0, 10)).commit().append(points(10, 20)).commit().append(points(20, 30)).commit()
    written.close()
    written.open()
    with contextlib.closing(sqlite3.connect(written.run_dir / "journal.db", isolation_level=None)) as connection:
        connection.execute("UPDATE chunks SET payload = x'00' WHERE first = 10")
    assert drain(written.history) == [*points(0, 10), *points(20, 30)]
    assert written.history.num_lost == 10
    assert "10 items of the history (10 to 19) are lost" in caplog.text
    for _ in range(3):
        written.roll()
    assert written.files() == ["points-0-10.parquet", "points-20-30.parquet"]
    assert drain(written.history) == [*points(0, 10), *points(20, 30)]
    assert caplog.text.count("are lost") == 1


def test_a_closed_journal_is_not_reported_as_damage(written):
    written.append(points(0, 10)).commit()
    written.close()
    written.open()
    written.close()
    with pytest.raises(JournalError):
        written.history.read(0, 10)
    assert written.history.num_lost == 0


def test_concurrent_readers_receive_all_items_during_writes(written, small):
    items_to_write = points(0, 900)
    has_news = threading.Condition()

    def follow(limit):
        received, index = [], 0
        while index < len(items_to_write):
            with has_news:
                assert has_news.wait_for(partial(is_beyond, index), timeout=60)
            items, index = written.history.read(index, limit)
            received += items
        return received

    def is_beyond(index):
        return written.history.end > index

    with ThreadPoolExecutor() as pool:
        readers = [pool.submit(follow, limit) for limit in (1, 13, 1000)]
        for first in range(0, 900, 30):
            with has_news:
                written.append(items_to_write[first : first + 30])
                has_news.notify_all()
            written.commit().roll(force=False)
        assert all(reader.result() == items_to_write for reader in readers)


@pytest.mark.long
def test_memory_stays_bounded_for_many_points(written, monkeypatch):
    monkeypatch.setattr(history_module, "KEPT_ITEMS", 1000)
    monkeypatch.setattr(history_store, "ROLL_BYTES", 1 << 14)
    monkeypatch.setattr("trieye.history.segments.GROUP_ITEMS", 1000)
    history = written.history

    def write(first, end):
        for start in range(first, end, 500):
            history.append(points(start, start + 500))
            written.commit().roll(force=False)

    tracemalloc.start()
    try:
        write(0, 5000)
        before, _ = tracemalloc.get_traced_memory()
        write(5000, 20_000)
        start = 10_000
        while start < history.end:
            items, after = history.read(start, 500)
            assert items == points(start, after) != []
            start = after
        assert tracemalloc.get_traced_memory()[1] - before < 2_000_000, "a point takes 200 bytes"
    finally:
        tracemalloc.stop()


def test_a_full_disk_loses_no_items(written, monkeypatch):
    monkeypatch.setattr(history_store, "ROLL_BYTES", 1 << 16)
    written.append(random_items(seeded(1), 2000)).commit()
    with full_disk(1 << 12):
        with pytest.raises(JournalError, match="cannot be written at the moment"):
            written.history.roll()
        assert written.files() == []
    assert exact(drain(written.history)) == exact(written.items)
    written.roll(force=False)
    assert written.files() == ["points-0-2000.parquet"]
    assert exact(drain(written.history)) == exact(written.items)


def test_an_operation_of_a_later_version_is_stored_but_not_read(written, caplog):
    columns = Columns.from_items(0, [point(0), LogParams({"a": "1"}), point(2), LogParams({"a": "3"}), point(4)])
    columns.operations[3] = msgspec.msgpack.encode({"type": "LogSmell", "name": "v"})
    written.journal.append("pass", b"", at=0.0)
    chunks = [JournalChunk(0, 5, columns.to_chunk())]
    written.journal.commit(Snapshot(1, 5, 0.0, b""), chunks=chunks, keep_after=1)
    written.journal.close()
    written.open()
    for _ in range(2):
        assert drain(written.history) == [point(0), LogParams({"a": "1"}), point(2), point(4)]
        assert written.history.num_lost == 1
        written.roll()
    assert pq.read_table(written.path_of(0))["kind"].to_pylist()[3] == "LogSmell"
    assert "LogSmell" in caplog.text
