import logging
import threading
import time
import tracemalloc

import pytest

from tests.sinks.feeding import SOON_S, add, points, steps_of
from tests.waiting import wait_until
from trieye.exceptions import ProcessingError
from trieye.sinks.thread import SinkThread
from trieye.stats.operations import LogArtifact, LogImage, LogParams, LogText, SetTags
from trieye.testing import FlakySink, MemoryHistory, MemorySink


@pytest.fixture
def source():
    return MemoryHistory()


class StuckSink(MemorySink):
    """A sink whose writes do not return until released."""

    def __init__(self, name="stuck"):
        super().__init__(name)
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


def test_a_burst_is_written_in_full_batches(run, source):
    sink = FlakySink(1)
    thread = SinkThread(sink, run, source, first_delay_s=0.2)
    for step in range(0, 5000, 10):
        add(thread, source, points(step, 10))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(5000))
    assert sink.writes == [1000] * 5


def test_a_tracker_receives_parameters_artifacts_and_media(run):
    sink = MemorySink()
    image, text = LogImage("i", 1, 1.7e9, 1, 1, 1, b"png"), LogText("t", 1, 1.7e9, "hello")
    operations = [LogParams({"lr": "0.1"}), SetTags({"a": "1"}), LogArtifact("a.txt", "sub"), image, text]
    assert SinkThread(sink, run, MemoryHistory(operations)).close("FINISHED", SOON_S)
    assert (sink.params, sink.tags, sink.artifacts) == ({"lr": "0.1"}, {"a": "1"}, [(run.run_dir / "a.txt", "sub")])
    assert sink.media == [image, text]


def test_an_outage_and_its_end_are_each_reported_once(run, source, caplog):
    sink = FlakySink()
    thread = SinkThread(sink, run, source, first_delay_s=0.01)
    add(thread, source, points(0, 3))
    wait_until(lambda: sink.num_calls > 4)
    assert thread.error == "ConnectionError: the server is unavailable"
    assert not thread.when_ready(0)
    sink.repair()
    assert thread.flush(SOON_S)
    assert thread.when_ready(0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 2
    assert "'flaky' does not work: the server is unavailable" in warnings[0]
    assert "points are buffered" in warnings[0]
    assert "'flaky' works again" in warnings[1]
    thread.close("FINISHED", SOON_S)


def test_a_stuck_sink_blocks_no_other_calls(run, source):
    sink, other = StuckSink(), MemorySink()
    thread, other_thread = SinkThread(sink, run, source), SinkThread(other, run, source)
    add(thread, source, points(0, 1))
    assert sink.entered.wait(SOON_S)
    start = time.monotonic()
    for step in range(1, 1001):
        add(thread, source, points(step, 1))
    thread.rewind(1001)
    assert thread.health.backlog == 1001
    assert time.monotonic() - start < 1
    other_thread.wake()
    assert other_thread.flush(SOON_S)
    assert steps_of(other) == list(range(1001))
    assert not thread.flush(0.01)
    sink.release.set()
    assert thread.close("FINISHED", SOON_S)
    assert other_thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == list(range(1001))


def test_closing_an_unreachable_sink_is_quick_and_the_next_attempt_delivers_the_reported_backlog(run, source, caplog):
    thread = SinkThread(FlakySink(), run, source)
    add(thread, source, [*points(0, 1500), SetTags({"a": "old"})])
    wait_until(lambda: thread.error)
    start = time.monotonic()
    assert not thread.close("FINISHED", 30)
    assert time.monotonic() - start < 5
    assert thread.backlog == 1501
    assert "did not receive the last 1501 items" in caplog.text
    assert "stored in the history and delivered when the run is restarted" in caplog.text
    source.append([*points(1500, 10), SetTags({"a": "new"})])
    sink = MemorySink("flaky")
    assert SinkThread(sink, run, source).close("FINISHED", SOON_S)
    assert (steps_of(sink), sink.tags) == (list(range(1510)), {"a": "new"})


def test_a_long_pause_ends_when_the_run_is_closed(run, source):
    sink = FlakySink()
    thread = SinkThread(sink, run, source, first_delay_s=1000.0)
    wait_until(lambda: sink.num_calls == 1)
    sink.repair()
    assert thread.close("FINISHED", SOON_S)
    assert sink.statuses == ["FINISHED"]


def test_points_of_a_stuck_sink_are_redelivered_by_the_next_attempt(run, source, caplog):
    sink = StuckSink()
    thread = SinkThread(sink, run, source)
    add(thread, source, points(0, 1))
    assert sink.entered.wait(SOON_S)
    add(thread, source, points(1, 5))
    start = time.monotonic()
    assert not thread.close("FINISHED", 0.5)
    assert time.monotonic() - start < 5
    assert "did not receive the last 6 items" in caplog.text
    # the point in flight may or may not have arrived: it is delivered again
    next_sink = MemorySink("stuck")
    assert SinkThread(next_sink, run, source).close("FINISHED", SOON_S)
    assert steps_of(next_sink) == list(range(6))
    sink.release.set()
    wait_until(lambda: sink.statuses)
    assert source.cursors["stuck"].index == 6


def test_failures_during_close_are_retried(run, source):
    sink = FlakySink(0)
    thread = SinkThread(sink, run, source, first_delay_s=0.01)
    assert thread.when_ready(SOON_S)
    sink._failures_left = 2
    add(thread, source, points(0, 3))
    assert thread.close("FAILED", SOON_S)
    assert (steps_of(sink), sink.statuses) == ([0, 1, 2], ["FAILED"])


def test_items_after_request_close_are_not_sent(run, source):
    sink = StuckSink()
    thread = SinkThread(sink, run, source)
    add(thread, source, points(0, 1500))
    assert sink.entered.wait(SOON_S)
    thread.request_close("FINISHED", SOON_S)
    add(thread, source, points(1500, 5000))
    sink.release.set()
    assert thread.wait_closed(time.monotonic() + SOON_S)
    assert 1500 <= len(sink.points) <= 2000
    assert steps_of(sink) == list(range(len(sink.points)))
    assert source.cursors["stuck"].index == len(sink.points)
    start = time.monotonic()
    assert not thread.flush(SOON_S)
    assert time.monotonic() - start < SOON_S / 2


def test_rejected_points_are_counted_and_reported_once(run, source, caplog):
    sink = FlakySink(0, error=ProcessingError("no such thing"))
    thread = SinkThread(sink, run, source)
    assert thread.when_ready(SOON_S)
    sink._failures_left = 2
    for first, num in [(0, 3), (3, 4), (7, 1)]:
        add(thread, source, points(first, num))
        assert thread.flush(SOON_S)
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [7]
    assert thread.refused == 7
    assert caplog.text.count("no such thing") == 1


def test_a_sink_may_have_any_attribute_named_refused(run, source):
    sink = MemorySink()
    sink.refused = ["a row"]
    thread = SinkThread(sink, run, source)
    assert thread.health.refused == 0
    thread.close("FINISHED", SOON_S)


def test_a_rejected_open_is_retried(run, source):
    sink = FlakySink(2, error=ProcessingError("not yet"))
    thread = SinkThread(sink, run, source, first_delay_s=0.01)
    add(thread, source, points(0, 1))
    assert thread.close("FINISHED", SOON_S)
    assert steps_of(sink) == [0]
    assert thread.refused == 0


class LongSource(MemoryHistory):
    """A history of a million points that takes no memory."""

    end = 1_000_000
    some = points(0, 1000)

    def read(self, start, limit):
        return self.some[: min(limit, self.end - start)], min(start + limit, self.end)


class CountingSink(FlakySink):
    """A flaky sink that only counts."""

    num_points = 0

    def write(self, points):
        self._maybe_fail()
        self.num_points += len(points)


def test_a_long_backlog_needs_no_memory(run):
    tracemalloc.start()
    try:
        sink, source = CountingSink(), LongSource()
        thread = SinkThread(sink, run, source, first_delay_s=0.01)
        wait_until(lambda: sink.num_calls > 2)
        assert thread.backlog == 1_000_000
        sink.repair()
        assert thread.flush(SOON_S)
        assert sink.num_points == 1_000_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert thread.close("FINISHED", SOON_S)


def test_flush_waits_for_the_sinks_own_buffer(run, source):
    sink = BufferedSink()
    sink.flush_interval_s = 1000.0
    thread = SinkThread(sink, run, source)
    add(thread, source, points(0, 10))
    wait_until(lambda: len(sink.points) == 10)
    assert sink.num_flushes == 0
    for _ in range(2):
        assert thread.flush(SOON_S)
        assert (len(sink.flushed), sink.num_flushes) == (10, 1)
    thread.close("FINISHED", SOON_S)


def test_a_buffered_sink_is_flushed_at_its_interval_but_not_when_idle(run, source):
    sink = BufferedSink()
    thread = SinkThread(sink, run, source)
    add(thread, source, points(0, 10))
    wait_until(lambda: len(sink.flushed) == 10)
    num_flushes = sink.num_flushes
    add(thread, source, points(10, 1))
    wait_until(lambda: len(sink.flushed) == 11)
    assert sink.num_flushes == num_flushes + 1
    thread.close("FINISHED", SOON_S)


def test_a_second_close_has_no_effect(run, source):
    sink = MemorySink()
    thread = SinkThread(sink, run, source)
    assert thread.close("FINISHED", SOON_S)
    assert thread.close("FAILED", SOON_S)
    assert sink.statuses == ["FINISHED"]


def test_health_reports_backlog_lag_and_error(run, source):
    sink = FlakySink()
    thread = SinkThread(sink, run, source, first_delay_s=0.01)
    assert thread.health.lag_s == 0.0
    add(thread, source, points(0, 3))
    wait_until(lambda: thread.health.lag_s > 0.05)
    health = thread.health
    assert (health.name, health.backlog, health.refused) == ("flaky", 3, 0)
    assert "unavailable" in health.error
    sink.repair()
    assert thread.flush(SOON_S)
    assert (thread.health.backlog, thread.health.lag_s, thread.health.error) == (0, 0.0, None)
    thread.close("FINISHED", 1)


def test_an_idle_sink_uses_no_cpu(run):
    class NosySource(MemoryHistory):
        num_reads = 0

        def read(self, start, limit):
            self.num_reads += 1
            return super().read(start, limit)

    source = NosySource(points(0, 3))
    thread = SinkThread(MemorySink(), run, source)
    assert thread.flush(SOON_S)
    cpu_s, until = time.process_time(), time.monotonic() + 0.3
    threading.Event().wait(until - time.monotonic())
    assert source.num_reads == 1
    assert time.process_time() - cpu_s < 0.1
    assert thread.close("FINISHED", SOON_S)
