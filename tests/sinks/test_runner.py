import logging
import threading
import time

import pytest

from trieye.exceptions import ProcessingError, RunClosedError
from trieye.sinks.operations import LogArtifact, LogParams, SetTags
from trieye.sinks.runner import SinkThread
from trieye.stats.point import Point
from trieye.testing import FlakySink, MemorySink, make_run

SOON_S = 20.0


def points(first, num):
    return [Point("m", 0.5, step, 1.7e9 + step) for step in range(first, first + num)]


def steps_of(sink):
    return [point.step for point in sink.points]


def wait_until(condition):
    deadline = time.monotonic() + SOON_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(0.005)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


class StuckSink(MemorySink):
    """A sink whose writes do not return until released."""

    def __init__(self):
        super().__init__("stuck")
        self.entered = threading.Event()
        self.release = threading.Event()

    def write(self, points):
        self.entered.set()
        self.release.wait(SOON_S)
        super().write(points)


class BufferedSink(MemorySink):
    """A sink that shows points only after a flush."""

    flush_interval_s = 0.05

    def __init__(self):
        super().__init__("buffered")
        self.flushed = []
        self.num_flushes = 0

    def flush(self):
        self.num_flushes += 1
        self.flushed = list(self.points)


def test_points_arrive_in_order_and_in_large_writes(run):
    sink = MemorySink()
    thread = SinkThread(sink, run)
    for step in range(5000):
        thread.submit_points(points(step, 1))
    assert thread.flush(SOON_S)
    assert steps_of(sink) == list(range(5000))
    assert max(sink.writes) <= 1000
    assert thread.close("FINISHED", SOON_S)
    assert sink.statuses == ["FINISHED"]


def test_a_burst_is_written_in_full_batches(run):
    sink = FlakySink(1)
    thread = SinkThread(sink, run, first_delay_s=0.2)
    for step in range(0, 5000, 10):
        thread.submit_points(points(step, 10))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(5000))
    assert sink.writes == [1000] * 5


def test_other_operations_keep_their_place(run, tmp_path):
    sink = MemorySink()
    thread = SinkThread(sink, run)
    thread.submit(LogParams({"lr": "0.1"}))
    thread.submit(SetTags({"a": "1"}))
    thread.submit(SetTags({"a": "2"}))
    thread.submit(LogArtifact(tmp_path, "sub"))
    assert thread.close("FAILED", SOON_S)
    assert (sink.params, sink.tags, sink.artifacts) == ({"lr": "0.1"}, {"a": "2"}, [(tmp_path, "sub")])
    assert sink.statuses == ["FAILED"]


def test_a_failing_sink_gets_everything_later_and_in_order(run):
    sink = FlakySink(6)
    thread = SinkThread(sink, run, first_delay_s=0.01)
    for step in range(100):
        thread.submit_points(points(step, 1))
    assert thread.flush(SOON_S)
    assert steps_of(sink) == list(range(100))
    assert thread.refused == thread.backlog == 0
    assert thread.error is None
    thread.close("FINISHED", SOON_S)


def test_an_outage_is_told_once_and_its_end_once(run, caplog):
    sink = FlakySink()
    thread = SinkThread(sink, run, first_delay_s=0.01)
    thread.submit_points(points(0, 3))
    wait_until(lambda: sink.num_calls > 4)
    assert thread.error == "ConnectionError: the other side is away"
    assert not thread.when_ready(0)
    sink.repair()
    assert thread.flush(SOON_S)
    assert thread.when_ready(0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "'flaky' does not work: the other side is away" in warnings[0]
    assert "points are kept" in warnings[0]
    assert "'flaky' works again" in warnings[1]
    thread.close("FINISHED", SOON_S)


def test_submitting_never_waits_for_the_sink(run):
    sink = StuckSink()
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 1))
    assert sink.entered.wait(SOON_S)
    start = time.monotonic()
    for step in range(1, 1001):
        thread.submit_points(points(step, 1))
    assert time.monotonic() - start < 1
    assert thread.backlog == 1001
    assert not thread.flush(0.01)
    sink.release.set()
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(1001))


def test_closing_an_unreachable_sink_is_quick_and_keeps_the_points(run, caplog):
    sink = FlakySink()
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 1500))
    thread.submit(SetTags({"a": "1"}))
    wait_until(lambda: thread.error)
    start = time.monotonic()
    assert not thread.close("FINISHED", 30)
    assert time.monotonic() - start < 5
    assert thread.backlog == 1501
    assert "did not get 1501 points" in caplog.text
    assert (run.spool_dir / "flaky.jsonl").exists()


def test_the_next_attempt_sends_first_what_the_last_one_could_not(run):
    first = SinkThread(FlakySink(), run)
    first.submit_points(points(0, 1500))
    first.submit(SetTags({"a": "old"}))
    first.close("KILLED", 1)

    sink = MemorySink("flaky")
    second = SinkThread(sink, run)
    second.submit_points(points(1500, 10))
    second.submit(SetTags({"a": "new"}))
    assert second.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(1510))
    assert sink.tags == {"a": "new"}
    assert list(run.spool_dir.iterdir()) == []


def test_closing_a_stuck_sink_returns_in_time_and_keeps_the_points(run):
    sink = StuckSink()
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 1))
    assert sink.entered.wait(SOON_S)
    thread.submit_points(points(1, 5))
    start = time.monotonic()
    assert not thread.close("FINISHED", 0.5)
    assert time.monotonic() - start < 5
    # what is under way may or may not arrive: it is kept too
    again = MemorySink("stuck")
    assert SinkThread(again, run).close("FINISHED", SOON_S)
    assert steps_of(again) == list(range(6))
    sink.release.set()


def test_a_sink_that_fails_while_closing_gets_more_than_one_chance(run):
    sink = FlakySink(0)
    thread = SinkThread(sink, run, first_delay_s=0.01)
    assert thread.when_ready(SOON_S)
    sink._left = 2
    thread.submit_points(points(0, 3))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [0, 1, 2]


def test_what_a_sink_refuses_for_good_is_counted_and_told_once(run, caplog):
    sink = FlakySink(0, error=ProcessingError("no such thing"))
    thread = SinkThread(sink, run)
    assert thread.when_ready(SOON_S)
    sink._left = 2
    thread.submit_points(points(0, 3))
    assert thread.flush(SOON_S)
    thread.submit_points(points(3, 4))
    assert thread.flush(SOON_S)
    thread.submit_points(points(7, 1))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [7]
    assert thread.refused == 7
    assert caplog.text.count("no such thing") == 1


def test_a_refusal_to_open_means_not_now(run):
    sink = FlakySink(2, error=ProcessingError("not yet"))
    thread = SinkThread(sink, run, first_delay_s=0.01)
    thread.submit_points(points(0, 1))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [0]
    assert thread.refused == 0


def test_more_than_memory_takes_waits_in_the_file(run):
    sink = FlakySink()
    thread = SinkThread(sink, run, max_backlog_points=1000)
    for step in range(0, 20_000, 100):
        thread.submit_points(points(step, 100))
    assert (run.spool_dir / "flaky.jsonl").stat().st_size > 100_000
    assert thread.backlog == 20_000
    sink.repair()
    assert thread.flush(SOON_S)
    assert steps_of(sink) == list(range(20_000))
    assert not (run.spool_dir / "flaky.jsonl").exists()
    thread.close("FINISHED", SOON_S)


def test_flush_waits_for_the_sinks_own_buffer(run):
    sink = BufferedSink()
    sink.flush_interval_s = 1000.0
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 10))
    wait_until(lambda: len(sink.points) == 10)
    assert sink.num_flushes == 0
    assert thread.flush(SOON_S)
    assert len(sink.flushed) == 10
    assert thread.flush(SOON_S)
    assert sink.num_flushes == 1
    thread.close("FINISHED", SOON_S)


def test_a_sink_with_a_buffer_is_flushed_in_its_interval_and_not_when_idle(run):
    sink = BufferedSink()
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 10))
    wait_until(lambda: len(sink.flushed) == 10)
    num_flushes = sink.num_flushes
    thread.submit_points(points(10, 1))
    wait_until(lambda: len(sink.flushed) == 11)
    assert sink.num_flushes == num_flushes + 1
    thread.close("FINISHED", SOON_S)


def test_nothing_can_be_submitted_after_close(run):
    thread = SinkThread(MemorySink(), run)
    assert thread.close("FINISHED", SOON_S)
    with pytest.raises(RunClosedError, match="memory"):
        thread.submit_points(points(0, 1))
    assert thread.close("FAILED", SOON_S)


def test_health_tells_all_of_it(run):
    sink = FlakySink()
    thread = SinkThread(sink, run)
    thread.submit_points(points(0, 3))
    wait_until(lambda: thread.error)
    health = thread.health
    assert (health.name, health.backlog, health.refused, health.lost) == ("flaky", 3, 0, 0)
    assert "away" in health.error
    thread.close("FINISHED", 1)
