import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from history_run import NOW, Written, point, points

from tests.forked import in_a_child
from trieye.exceptions import JournalError
from trieye.history import segments as history_segments
from trieye.history import store as history_store
from trieye.history.history import iter_history, read_history
from trieye.stats.operations import LogParams, LogText
from trieye.stats.point import Point


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path / "run")
    yield made
    made.close()


def rows(items):
    """Return the table rows expected for the points among the items of a history."""
    names = ("metric", "value", "step", "wall_time", "count")
    return [
        {"index": index, **{name: getattr(item, name) for name in names}}
        for index, item in enumerate(items)
        if isinstance(item, Point)
    ]


def state_of(directory):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*") if path.is_file()}


def test_a_table_has_the_committed_points_of_files_and_journal(written):
    items = [LogParams({"a": "1"}), *points(1, 50), LogText("t", 1, NOW, "x"), *points(51, 60)]
    written.segment(items).append(points(60, 70)).commit().append(points(70, 75))
    assert read_history(written.run_dir).to_pylist() == rows([*items, *points(60, 70)]), "uncommitted points are absent"


def test_a_table_can_be_restricted_to_metrics(written):
    written.segment([point(n, metric=f"m{n % 3}") for n in range(10)])
    written.append([point(n, metric=f"m{n % 3}") for n in range(10, 20)]).commit()
    table = read_history(written.run_dir, ["m1", "unknown"])
    assert table["index"].to_pylist() == [1, 4, 7, 10, 13, 16, 19]
    assert read_history(written.run_dir, []).num_rows == 0
    assert read_history(written.run_dir, []).schema == table.schema


def test_a_run_without_points_has_an_empty_table(written):
    assert read_history(written.run_dir).num_rows == 0
    assert list(iter_history(written.run_dir)) == []


def test_large_histories_are_iterated_in_parts(written, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 100)
    monkeypatch.setattr("trieye.history.history.CHUNK_ITEMS", 50)
    written.segment(points(0, 950))
    assert [table.num_rows for table in iter_history(written.run_dir)] == [100] * 9 + [50]


def test_reading_a_directory_without_a_run_is_an_error(tmp_path):
    with pytest.raises(JournalError, match=r"neither journal\.db nor history/"):
        read_history(tmp_path)


def test_superseded_points_are_absent_even_without_the_journal(written):
    written.segment(points(0, 10)).append(points(10, 20))
    written.supersede(5, 15)
    assert read_history(written.run_dir)["index"].to_pylist() == [*range(5), *range(15, 20)]
    written.roll().close()
    for path in written.run_dir.glob("journal.db*"):
        path.unlink()
    before = state_of(written.run_dir)
    assert read_history(written.run_dir)["index"].to_pylist() == [*range(5), *range(15, 20)]
    assert state_of(written.run_dir) == before


READ = """
import os, sys
import pyarrow.compute, pyarrow.parquet
from trieye.history.history import read_history
if os.geteuid() == 0:  # file modes do not restrict root
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(os.access(sys.argv[1], os.W_OK), read_history(sys.argv[1]).num_rows)
"""


@pytest.mark.long
def test_a_killed_run_can_be_read_without_write_access(tmp_path):
    run_dir = tmp_path / "run"

    def write():
        Written(run_dir).segment(points(0, 10)).append(points(10, 20)).commit()
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_child(write) == -signal.SIGKILL
    before = state_of(run_dir)
    assert run_dir / "journal.db-wal" in before
    for path in [run_dir, run_dir / "history", *before]:
        path.chmod(path.stat().st_mode & ~0o222)
    for path in list(run_dir.parents)[:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    done = subprocess.run([sys.executable, "-c", READ, str(run_dir)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False 20\n", done.stderr
    assert state_of(run_dir) == before
    for path in (run_dir, run_dir / "history"):
        path.chmod(0o755)


@pytest.mark.long
def test_a_run_can_be_read_while_it_is_written(written, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 100)
    monkeypatch.setattr(history_store, "ROLL_BYTES", 2000)
    is_done = threading.Event()

    def read():
        seen = [0]
        while not is_done.is_set():
            table = read_history(written.run_dir)
            assert table["index"].to_pylist() == list(range(table.num_rows))
            assert table["step"].to_pylist() == list(range(table.num_rows))
            seen.append(table.num_rows)
        return seen

    written.commit()
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(read)
        try:
            for first in range(0, 900, 30):
                written.append(points(first, first + 30)).commit().roll(force=False)
        finally:
            is_done.set()
        seen = reader.result()
    assert seen == sorted(seen)
    assert read_history(written.run_dir).num_rows == 900


def test_intact_points_are_read_despite_a_damaged_journal(written, caplog):
    written.segment(points(0, 10)).append(points(10, 20)).commit().close()
    path = written.run_dir / "journal.db"
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 4] = bytes(4096)
    path.write_bytes(content)
    before = state_of(written.run_dir)
    table = read_history(written.run_dir)
    assert table["index"].to_pylist()[:10] == list(range(10))
    assert set(table["step"].to_pylist()) <= set(range(20))
    assert state_of(written.run_dir) == before


def test_a_missing_file_is_reported(written, caplog):
    written.segment(points(0, 10)).segment(points(10, 20))
    written.path_of(0).unlink()
    assert read_history(written.run_dir)["index"].to_pylist() == list(range(10, 20))
    assert "points-0-10.parquet" in caplog.text


@pytest.mark.long
def test_neither_reading_nor_writing_a_history_loads_packages_that_it_does_not_use(tmp_path):
    program = """
import sys, trieye
from trieye.history.history import read_history
print(*sys.modules)
with trieye.Run(trieye.TrieyeConfig(runtime={"kind": "local"}, sinks={"mlflow": {"enabled": False}})) as run:
    run.log("loss", 1.0, step=1)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    imported, after_run = (set(line.split()) for line in done.stdout.splitlines()[:2])
    assert not {"pyarrow", "torch", "ray", "mlflow", "pandas", "hydra"} & imported
    assert "pyarrow" in after_run
    assert not {"torch", "ray", "mlflow", "pandas", "hydra"} & after_run
