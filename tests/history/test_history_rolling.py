import random
import subprocess
import sys

import pytest
from history_run import Written, drain, point, points
from hypothesis import given
from hypothesis import strategies as st

from trieye.history import rolling as history_rolling
from trieye.history import segments as history_segments
from trieye.history.rolling import MAX_WEIGHT, MERGED_AT_ONCE, ROLL_ITEMS, to_merge
from trieye.stats.operations import LogImage


@pytest.fixture
def written(tmp_path):
    made = Written(tmp_path)
    yield made
    made.close()


def roll_often(written, times=20):
    for _ in range(times):
        written.roll(force=False)
    return written


def test_few_items_stay_in_the_journal(written):
    written.append(points(0, ROLL_ITEMS - 1)).commit().roll(force=False)
    assert written.files() == []
    written.append(points(ROLL_ITEMS - 1, ROLL_ITEMS)).commit().roll(force=False)
    assert written.files() == ["points-0-50000.parquet"]
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


def test_pictures_leave_the_journal_early(written, monkeypatch):
    monkeypatch.setattr(history_rolling, "ROLL_BYTES", 10_000)
    written.append([point(0)]).commit().roll(force=False)
    assert written.files() == []
    written.append([LogImage("i", 1, 1.0, 9, 9, 3, bytes(10_000))]).commit().roll(force=False)
    assert written.files() == ["points-0-2.parquet"]


def test_small_neighbors_become_one_file(written):
    for number in range(MERGED_AT_ONCE):
        written.segment(points(number * 10, number * 10 + 10))
    written.supersede(5, 15)
    roll_often(written)
    assert written.files() == ["points-0-40.parquet"]
    assert drain(written.reopen().history) == [*points(0, 5), *points(15, 40)]
    assert list(written.history.superseded(40)) == points(5, 15)


def test_a_merge_is_done_bit_by_bit(written, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 10)
    monkeypatch.setattr(history_rolling, "GROUPS_PER_CALL", 3)
    for number in range(MERGED_AT_ONCE):
        written.segment(points(number * 20, number * 20 + 20))
    seen = []
    for _ in range(6):
        written.roll(force=False)
        seen.append(sum(name.startswith("points") for name in written.files()))
        assert drain(written.history) == points(0, 80)
    assert seen == [4, 4, 4, 1, 1, 1]


def test_a_merge_that_is_under_way_at_the_end_leaves_nothing(written, monkeypatch):
    monkeypatch.setattr(history_segments, "GROUP_ITEMS", 10)
    monkeypatch.setattr(history_rolling, "GROUPS_PER_CALL", 3)
    for number in range(MERGED_AT_ONCE):
        written.segment(points(number * 20, number * 20 + 20))
    written.roll(force=False).roll(force=False)
    assert len(written.files()) == MERGED_AT_ONCE + 1, "the new file is being written"
    written.roll(force=True)
    assert len(written.files()) == MERGED_AT_ONCE
    assert roll_often(written).files() == ["points-0-80.parquet"]


def test_a_damaged_file_is_not_merged(written, caplog):
    for number in range(MERGED_AT_ONCE):
        written.segment(points(number * 10, number * 10 + 10))
    path = written.path_of(1)
    content = bytearray(path.read_bytes())
    content[100:600] = bytes(500)
    path.write_bytes(content)
    written.reopen()
    files = written.files()
    assert roll_often(written).files() == files
    assert "are not merged" in caplog.text
    assert drain(written.history) == [*points(0, 10), *points(20, 40)]


def test_what_lies_apart_is_not_joined(written):
    for number in range(3):
        written.history.skip_to(number * 20)
        written.history.append(points(number * 20, number * 20 + 10))
        written.commit()
    roll_often(written.roll())
    assert written.files() == ["points-0-10.parquet", "points-20-30.parquet", "points-40-50.parquet"]
    assert drain(written.history) == [*points(0, 10), *points(20, 30), *points(40, 50)]


@given(st.lists(st.integers(1, 150_000), max_size=400))
def test_the_number_of_files_grows_with_the_logarithm(sizes):
    files, written = [], 0
    for size in sizes:
        files.append(size)
        while (span := to_merge(files)) != (0, 0):
            first, end = span
            files[first:end] = [sum(files[first:end])]
            written += files[first]
    assert max(files, default=0) <= MAX_WEIGHT
    assert len(files) <= 3 * 3 + 2 * sum(sizes) / 1_000_000 + 1
    small = sum(size for size in sizes if size < ROLL_ITEMS)
    assert written <= 4 * sum(sizes) + 20 * small


KILL_AT_EACH_OPERATION = """
import os, pathlib, shutil, signal, sys
import pyarrow.parquet
from trieye.history import rolling as history_rolling
from trieye.history import segments as history_segments
from trieye.history.history import History
from trieye.journal.journal import Journal, Snapshot
from trieye.stats.point import Point

here = pathlib.Path(sys.argv[1])
history_segments.GROUP_ITEMS = 8
history_rolling.GROUPS_PER_CALL = 2
OPERATIONS = {"open", "os.rename", "os.remove", "os.mkdir"}

def points(first, end):
    return [Point("loss", n * 0.1, n, 1.8e9 + n) for n in range(first, end)]

def opened(directory):
    journal = Journal(directory / "journal.db")
    return journal, History(journal, directory / "history")

def write(directory, rolls):
    journal, history = opened(directory)
    for _ in range(rolls):
        history.append(points(history.end, history.end + 10))
        journal.append("pass", b"", at=0.0)
        end = history.end
        snapshot = Snapshot(journal.last_pos, end, 0.0, b"")
        journal.commit(snapshot, chunks=history.pending(), keep_after=journal.last_pos)
        history.committed(end)
        (directory / "committed").write_text(str(end))
        history.roll(force=True)
    for _ in range(20):
        history.roll()

def write_killed_at(directory, kill_at):
    count = 0
    def watch(event, args):
        nonlocal count
        if event in OPERATIONS and "/history/" in str(args[0]):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(watch)
    write(directory, 6)
    os._exit(0)

def read(history):
    found, place = [], 0
    while place < history.end:
        items, place = history.read(place, 1000)
        found += items
    return found

for kill_at in range(1, 1000):
    directory = here / str(kill_at)
    pid = os.fork()
    if pid == 0:
        write_killed_at(directory, kill_at)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    committed = int((directory / "committed").read_text())
    for attempt in range(2):
        journal, history = opened(directory)
        assert journal.damage == [], (kill_at, journal.damage)
        assert history.end == committed and history.num_lost == 0, (kill_at, history.end, committed)
        assert read(history) == points(0, committed), kill_at
        (directory / "history").mkdir(exist_ok=True)
        left = {path.name for path in (directory / "history").iterdir()}
        assert left <= {segment.name for segment in journal.segments()}, (kill_at, left)
        journal.close()
    if code == 0:
        assert committed == 60
        print(kill_at - 1)
        sys.exit(0)
    shutil.rmtree(directory)
"""


def test_a_kill_at_any_file_operation_of_a_roll_costs_nothing(tmp_path):
    command = [sys.executable, "-c", KILL_AT_EACH_OPERATION, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25, "operations at which it was killed"


ENDLESS = """
import itertools, pathlib, sys
import pyarrow.parquet
sys.path.insert(0, sys.argv[2])
from history_run import Written, points
from trieye.history import rolling as history_rolling
from trieye.history import segments as history_segments
from trieye.history import tail as history_tail

history_segments.GROUP_ITEMS = 100
history_rolling.ROLL_ITEMS = 50
history_tail.KEPT_ITEMS = 10
written = Written(pathlib.Path(sys.argv[1]))
for first in itertools.count(written.history.end, 30):
    written.history.append(points(first, first + 30))
    written.commit()
    print(first + 30, flush=True)
    written.roll(force=False)
"""


def test_a_kill_at_any_moment_costs_nothing(tmp_path, request):
    rng = random.Random(1)
    for _ in range(4):
        command = [sys.executable, "-c", ENDLESS, str(tmp_path), str(request.path.parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            acknowledged = [int(writer.stdout.readline()) for _ in range(rng.randrange(20, 60))]
            writer.kill()
            acknowledged += [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        written = Written(tmp_path)
        assert written.history.end >= acknowledged[-1]
        assert drain(written.history) == points(0, written.history.end)
        assert written.history.num_lost == 0
        written.close()
