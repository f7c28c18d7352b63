import random
import threading
import time

import pytest

from tests.sinks.feeding import SOON_S, add, points, steps_of
from tests.waiting import wait_until
from trieye.exceptions import JournalError, JournalFullError
from trieye.sinks.base import Cursor
from trieye.sinks.thread import SinkThread
from trieye.stats.operations import SetTags
from trieye.testing import FlakySink, MemoryHistory, MemorySink


class Flaky:
    """Base of the sinks below: they work, fail for a number of calls, or are dead like their process."""

    def __init__(self):
        self.num_failures = 0
        self.is_dead = False

    def may_fail(self):
        if self.is_dead or self.num_failures > 0:
            self.num_failures -= 1
            raise ConnectionError("away")

    def open(self, run):
        self.may_fail()

    def close(self, status):
        self.may_fail()


class FileSink(Flaky):
    """A sink like TensorBoard's: a buffer, and a file that attempts share and can truncate."""

    name = "file"
    flush_interval_s = 0.001

    def __init__(self, file):
        super().__init__()
        self.file, self.buffer = file, []

    def write(self, points):
        self.may_fail()
        self.buffer += points

    def flush(self):
        self.may_fail()
        while self.buffer:
            self.file.append(self.buffer.pop(0))
            self.may_fail()

    def position(self):
        return str(len(self.file))

    def resume(self, position):
        self.may_fail()
        if int(position or 0) > len(self.file):
            return False
        del self.file[int(position or 0) :]
        return True

    def clear(self):
        self.may_fail()
        self.buffer.clear()
        self.file.clear()


class StoreSink(Flaky):
    """A sink like MLflow: it drops exact duplicates and superseded points, and deletes nothing."""

    name = "store"

    def __init__(self, store):
        super().__init__()
        self.store, self.superseded = store, set()
        self.is_empty = not store

    def write(self, points):
        self.may_fail()
        for point in points:
            if self.is_dead:
                self.may_fail()
            if self.key(point) not in self.superseded:
                self.store.setdefault(point)

    def note_superseded(self, points):
        self.may_fail()
        self.superseded.update(map(self.key, points))

    @staticmethod
    def key(point):
        return point.metric, point.step, point.value


class LossySource(MemoryHistory):
    """A history that has lost all items before an index."""

    lost_to = 50
    is_whole = False

    def read(self, start, limit):
        return super().read(start, limit) if start >= self.lost_to else ([], self.lost_to)


@pytest.mark.parametrize("cursor", [Cursor(50, "0 50"), Cursor(50, "7 50"), Cursor(50, "0 99"), Cursor(50, None), None])
def test_a_resumable_sink_keeps_points_that_the_history_has_lost(run, cursor):
    file = points(0, 50)
    source = LossySource([*points(0, 50)])
    if cursor is not None:
        source.cursors["file"] = cursor
    SinkThread(FileSink(file), run, source).close("KILLED", SOON_S)
    source.append(points(50, 10))
    thread = SinkThread(FileSink(file), run, source)
    assert thread.flush(SOON_S)
    source.supersede(55, 60)
    thread.rewind(55)
    add(thread, source, points(60, 5))
    assert thread.close("KILLED", SOON_S)
    assert SinkThread(FileSink(file), run, source).close("FINISHED", SOON_S)
    assert [point.step for point in file] == list(range(65)), "superseded points stay, too"


def test_an_empty_sink_receives_the_rest_of_the_history(run):
    sink = FileSink([])
    sink.is_empty = True
    assert SinkThread(sink, run, LossySource([*points(0, 60)])).close("FINISHED", SOON_S)
    assert [point.step for point in sink.file] == list(range(50, 60))


def test_a_live_sink_shows_new_points_and_points_after_its_cursor(run):
    class LiveSink(MemorySink):
        live_only = True

    first, second, source = LiveSink(), LiveSink(), MemoryHistory(points(0, 5))
    thread = SinkThread(first, run, source)
    add(thread, source, points(5, 5))
    wait_until(lambda: source.cursors["memory"].index >= 5)
    assert thread.close("KILLED", SOON_S)
    assert steps_of(first) == [5, 6, 7, 8, 9]
    source.cursors["memory"] = Cursor(8)
    assert SinkThread(second, run, source).close("FINISHED", SOON_S)
    assert steps_of(second) == [8, 9]


@pytest.mark.long
def test_a_cursor_is_stored_every_second_and_on_flush(run):
    class Watched(MemoryHistory):
        def __init__(self):
            super().__init__()
            self.stored = []

        def set_cursor(self, sink, cursor):
            super().set_cursor(sink, cursor)
            self.stored.append(cursor.index)

    source = Watched()
    thread = SinkThread(sink := MemorySink(), run, source)
    start = time.monotonic()
    for step in range(100):
        add(thread, source, points(step, 1))
        wait_until(lambda: len(sink.points) > step)  # noqa: B023 - called at once
    assert len(source.stored) <= 1 + (time.monotonic() - start)
    assert thread.flush(SOON_S)
    assert source.stored[-1] == 100
    add(thread, source, points(100, 1))
    wait_until(lambda: source.stored[-1] == 101)  # without a flush or further items
    assert thread.close("FINISHED", SOON_S)


def test_storing_a_cursor_is_retried_and_blocks_no_points(run, caplog):
    class FullSource(MemoryHistory):
        is_full = True

        def set_cursor(self, sink, cursor):
            if self.is_full:
                raise JournalFullError("no space left")
            super().set_cursor(sink, cursor)

    source = FullSource(points(0, 10))
    thread = SinkThread(sink := MemorySink(), run, source)
    assert thread.flush(SOON_S)
    assert (thread.error, len(sink.points)) == (None, 10)
    source.is_full = False
    wait_until(lambda: source.cursors.get("memory") == Cursor(10))
    source.is_full = True
    add(thread, source, points(10, 1))
    assert thread.close("FINISHED", SOON_S)
    assert "no space left" in thread.error
    assert "received everything" in caplog.text
    assert source.cursors["memory"] == Cursor(10)


def test_reading_the_history_is_retried(run):
    class DamagedSource(MemoryHistory):
        num_failures = 3

        def read(self, start, limit):
            self.num_failures -= 1
            if self.num_failures >= 0:
                raise JournalError("locked")
            return super().read(start, limit)

    thread = SinkThread(sink := MemorySink(), run, DamagedSource(points(0, 10)), first_delay_s=0.01)
    assert thread.flush(SOON_S)
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(10))


def test_a_cursor_beyond_a_damaged_history_skips_no_new_points(run):
    source, sink, file = MemoryHistory(points(0, 10)), MemorySink(), points(0, 500)
    source.cursors |= {"memory": Cursor(500), "file": Cursor(500, "0 500")}
    threads = [SinkThread(each, run, source) for each in (sink, FileSink(file))]
    source.append(points(500, 3))
    assert all([thread.close("FINISHED", SOON_S) for thread in threads])
    assert steps_of(sink) == [500, 501, 502]
    assert file == points(0, 503)


def test_points_for_other_sinks_advance_the_cursor(run):
    source = MemoryHistory(points(0, 5, log_to=("mlflow",)) + points(5, 5, log_to=("console",)))
    thread = SinkThread(sink := MemorySink("console"), run, source)
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [5, 6, 7, 8, 9]
    source.append(points(10, 5, log_to=("mlflow",)))
    assert SinkThread(MemorySink("console"), run, source).close("FINISHED", SOON_S)
    assert source.cursors["console"] == Cursor(15)


@pytest.mark.parametrize("position", ["from the beginning", "", None, "7", "0", "0 99"])
def test_a_cursor_with_an_unknown_position_causes_a_rewrite(run, position):
    source, file = MemoryHistory(points(0, 10)), points(3, 10)
    source.cursors["file"] = Cursor(5, position)
    assert SinkThread(FileSink(file), run, source).close("FINISHED", SOON_S)
    assert file == points(0, 10)
    assert source.cursors["file"] == Cursor(10, "0 10")


def test_a_rewind_beyond_the_sinks_points_clears_nothing(run):
    class Picky(FileSink):
        def clear(self):
            raise AssertionError

    source, file = MemoryHistory(points(0, 10)), []
    thread = SinkThread(Picky(file), run, source)
    assert thread.flush(SOON_S)
    source.append(points(10, 5))
    source.supersede(10, 15)
    thread.rewind(10)
    add(thread, source, points(10, 2, time_s=60))
    assert thread.close("FINISHED", SOON_S)
    assert file == points(0, 10) + points(10, 2, time_s=60)


def test_a_flush_after_a_rewind_waits_for_the_rewritten_points(run):
    source, file = MemoryHistory(points(0, 3000)), []
    thread = SinkThread(FileSink(file), run, source)
    for num_retained in (2000, 1000):
        assert thread.flush(SOON_S)
        source.supersede(num_retained, 3000)
        thread.rewind(num_retained)
        assert thread.flush(SOON_S)
        assert file == points(0, num_retained)
    assert thread.close("FINISHED", SOON_S)


def test_a_rewind_drops_superseded_points_of_a_failing_sink(run):
    source = MemoryHistory(points(0, 10))
    thread = SinkThread(sink := FlakySink(0), run, source, first_delay_s=1000)
    assert thread.flush(SOON_S)
    sink.fail()
    add(thread, source, points(10, 5))
    wait_until(lambda: thread.error)
    source.supersede(8, 15)
    thread.rewind(8)
    sink.repair()
    add(thread, source, points(8, 2, time_s=60))
    assert thread.flush(SOON_S)
    assert sink.points == points(0, 10) + points(8, 2, time_s=60)
    assert thread.close("FINISHED", SOON_S)


def test_a_rewind_between_two_calls_duplicates_no_points(run):
    class Stuck(FileSink):
        is_stuck = True

        def write(self, points):
            if self.is_stuck and points[0].step == 20:
                raise ConnectionError("away")
            super().write(points)

    # since superseded items are omitted, the sink's index is only determined after the second call
    source, file = MemoryHistory([*points(0, 5), *points(10, 3), SetTags({"a": "b"}), *points(20, 3)]), []
    source.supersede(0, 5)
    thread = SinkThread(sink := Stuck(file), run, source, first_delay_s=1000)
    wait_until(lambda: thread.error)
    source.append(points(30, 2))
    source.supersede(12, 14)
    sink.is_stuck = False
    thread.rewind(12)
    assert thread.close("FINISHED", SOON_S)
    assert file == points(10, 3) + points(20, 3)


def test_an_undelivered_branch_does_not_hide_the_next_one(run):
    source, store = MemoryHistory(points(0, 10)), {}
    sink = StoreSink(store)
    thread = SinkThread(sink, run, source, first_delay_s=0.001)
    assert thread.flush(SOON_S)
    sink.num_failures = 10**9
    add(thread, source, points(10, 20))
    source.supersede(5, 30)
    assert not thread.close("KILLED", 0.5)
    for _ in range(2):
        thread = SinkThread(StoreSink(store), run, source)
        add(thread, source, points(source.end - 25, 1, time_s=60))
        assert thread.close("KILLED", SOON_S)
    assert sorted(point.step for point in store) == list(range(30))


def test_a_sink_first_opened_after_a_rewind_shows_the_points_that_a_later_rewind_restores(run):
    source, store = MemoryHistory(points(0, 10)), {}
    source.supersede(3, 10)
    source.append(points(3, 2, time_s=60))
    assert SinkThread(StoreSink(store), run, source).close("KILLED", SOON_S)
    source._superseded = {10, 11}  # the run restores a checkpoint of the first branch
    thread = SinkThread(StoreSink(store), run, source)
    thread.rewind(3)
    assert thread.close("FINISHED", SOON_S)
    assert set(points(0, 10)) <= set(store)


class World:
    """Both kinds of sinks on one history, in simulated processes that are killed."""

    def __init__(self, run, seed):
        self.run, self.rng = run, random.Random(seed)
        self.source, self.file, self.store = MemoryHistory(), [], {}
        self.alive, self.step, self.moment = [], 0, 0.0
        self.start()

    def start(self):
        self.process = Process(self.source)
        self.sinks = [FileSink(self.file), StoreSink(self.store)]
        self.threads = [SinkThread(sink, self.run, self.process, first_delay_s=0.0005) for sink in self.sinks]

    def log(self):
        self.moment += 1
        new = points(self.step, self.rng.randrange(1, 1500), time_s=self.moment)
        self.source.append(new)
        self.alive += enumerate(new, self.source.end - len(new))
        self.step += len(new)
        for thread in self.threads:
            thread.wake()

    def outage(self):
        self.rng.choice(self.sinks).num_failures = self.rng.randrange(4)

    def flush(self):
        self.rng.choice(self.threads).flush(0.005)

    def rewind(self, *, notify_sinks=True):
        if not self.alive:
            return
        num_retained = self.rng.choice(self.alive)[0]
        self.source.supersede(num_retained, self.source.end)
        self.alive = [pair for pair in self.alive if pair[0] < num_retained]
        self.step = self.alive[-1][1].step + 1 if self.alive else 0
        if self.rng.random() < 0.3:
            self.log()  # before the sinks are notified
        if notify_sinks:
            for thread in self.threads:
                thread.rewind(num_retained)

    def rewind_and_die(self):
        self.rewind(notify_sinks=False)
        self.kill()

    def kill(self):
        self.process.is_dead = True  # stores no further cursor, but may still send points
        threading.Event().wait(self.rng.random() * 0.01)
        for sink in self.sinks:
            sink.is_dead = True
        for thread in self.threads:
            thread.close("KILLED", 0.2)
        self.start()


class Process(MemoryHistory):
    """The history in one process, which stops storing cursors when it dies."""

    def __init__(self, source):
        self.__dict__.update(source.__dict__)
        self.is_dead = False

    def set_cursor(self, sink, cursor):
        if not self.is_dead:
            super().set_cursor(sink, cursor)


@pytest.mark.parametrize("seed", range(3))
def test_random_kills_outages_and_rewinds_keep_every_point_once(run, seed):
    world = World(run, seed)
    actions = [world.log, world.outage, world.flush, world.rewind, world.rewind_and_die, world.kill]
    for _ in range(60):
        world.rng.choices(actions, [40, 20, 10, 6, 4, 8])[0]()
    for sink in world.sinks:
        sink.num_failures = 0
    assert all([thread.flush(SOON_S) and thread.close("FINISHED", SOON_S) for thread in world.threads])
    survivors = [point for _, point in world.alive]
    assert world.file == survivors
    keys = [StoreSink.key(point) for point in world.store]
    assert len(keys) == len(set(keys))
    assert set(keys) >= set(map(StoreSink.key, survivors))
