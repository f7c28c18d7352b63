import threading
import time

import pytest

from tests.sinks.feeding import SOON_S
from trieye.sinks.fan_out import FanOut
from trieye.stats.operations import LogParams, SetTags
from trieye.stats.point import Point
from trieye.testing import FlakySink, MemoryHistory, MemorySink


class NumberedSink(MemorySink):
    run_id = None

    def open(self, run):
        self.run_id = "abc"


def test_every_sink_receives_its_targeted_points_and_all_parameters(run):
    sinks = [MemorySink("mlflow"), MemorySink("tensorboard"), MemorySink("console"), MemorySink("mine")]
    source = MemoryHistory()
    fan_out = FanOut(sinks, run, source)
    targets = [("mlflow",), ("tensorboard", "console"), (), ("mine",)]
    source.append([Point("m", 0.5, step, 1.7e9, log_to) for step, log_to in enumerate(targets)])
    source.append([LogParams({"lr": "0.1"})])
    fan_out.wake()
    assert fan_out.flush(SOON_S)
    assert [[point.step for point in sink.points] for sink in sinks] == [[0], [1], [1], [0, 1, 2, 3]]
    assert [sink.params for sink in sinks] == [{"lr": "0.1"}] * 4
    assert fan_out.close("FINISHED", SOON_S)


def test_a_broken_sink_does_not_delay_the_others(run):
    good, broken = MemorySink("good"), FlakySink()
    fan_out = FanOut([broken, good], run, MemoryHistory([Point("m", 0.5, 1, 1.7e9)]))
    assert not fan_out.flush(0.3)
    assert fan_out.flush(SOON_S, working_only=True)
    assert len(good.points) == 1
    assert [(health.name, health.error is None) for health in fan_out.health()] == [("flaky", False), ("good", True)]
    assert not fan_out.close("FINISHED", SOON_S)
    assert good.statuses == ["FINISHED"]


def test_all_broken_sinks_share_one_deadline(run):
    fan_out = FanOut([FlakySink(name=f"broken_{n}") for n in range(5)], run, MemoryHistory([Point("m", 0.5, 1, 1.7e9)]))
    start = time.monotonic()
    assert not fan_out.flush(0.3)
    assert time.monotonic() - start < 1.4
    assert not fan_out.close("FINISHED", 1)


@pytest.mark.long
def test_a_patient_close_waits_for_progress_computation_and_other_writers(run, monkeypatch):
    monkeypatch.setattr("trieye.sinks.fan_out.CLOSE_GRACE_S", 0.0)

    class Slow(MemorySink):
        def set_tags(self, tags):
            time.sleep(0.05)  # simulates a slow server
            super().set_tags(tags)

    class Importing(MemorySink):
        def open(self, run):
            until = time.thread_time() + 1.5
            while time.thread_time() < until:
                pass

    class Blocked(MemorySink):
        activity = 0

        def store_activity(self):
            return self.activity

        def set_tags(self, tags):
            for self.activity in range(15):  # one write of another process each
                time.sleep(0.1)
            super().set_tags(tags)

    tags = [SetTags({"a": str(number)}) for number in range(30)]
    assert not FanOut([Slow()], run, MemoryHistory(tags)).close("FINISHED", 0.5)
    for sink, items in ((Slow(), tags), (Importing(), tags[-1:]), (Blocked(), tags[-1:])):
        assert FanOut([sink], run, MemoryHistory(items)).close("FINISHED", 1, patient=True), sink
        assert (sink.tags, sink.statuses) == ({"a": "29"}, ["FINISHED"])


@pytest.mark.long
def test_a_patient_close_abandons_a_hanging_sink(run):
    unblock = threading.Event()

    class Hanging(MemorySink):
        def write(self, points):
            unblock.wait(SOON_S)

    assert not FanOut([Hanging()], run, MemoryHistory([Point("m", 0.5, 1, 1.7e9)])).close("FINISHED", 0.2, patient=True)
    unblock.set()


def test_one_sink_can_be_closed_while_the_others_continue(run):
    first, second, source = MemorySink("first"), MemorySink("second"), MemoryHistory([Point("m", 0.5, 1, 1.7e9)])
    fan_out = FanOut([first, second], run, source)
    assert fan_out.close_sink("first", SOON_S)
    source.append([Point("m", 0.5, 2, 1.7e9)])
    fan_out.wake()
    assert fan_out.close("FINISHED", SOON_S)
    assert [len(first.points), len(second.points)] == [1, 2]
    assert [source.cursors["first"].index, source.cursors["second"].index] == [1, 2]


def test_a_rewind_reaches_every_sink(run):
    class Forgetful(MemorySink):
        def position(self):
            return str(len(self.points))

        def resume(self, position):
            return position is None

        def clear(self):
            self.points.clear()

    sinks, source = [Forgetful("first"), Forgetful("second")], MemoryHistory()
    fan_out = FanOut(sinks, run, source)
    source.append([Point("m", 0.5, step, 1.7e9) for step in range(5)])
    assert fan_out.flush(SOON_S)
    source.supersede(3, 5)
    fan_out.rewind(3)
    assert fan_out.flush(SOON_S)
    assert [[point.step for point in sink.points] for sink in sinks] == [[0, 1, 2]] * 2
    assert fan_out.close("FINISHED", SOON_S)


def test_mlflow_run_id_waits_for_the_sink_and_is_none_at_once_without_mlflow(run):
    with_mlflow = FanOut([MemorySink(), NumberedSink("mlflow")], run, MemoryHistory())
    assert with_mlflow.mlflow_run_id(SOON_S) == "abc"
    with_mlflow.close("FINISHED", SOON_S)
    start = time.monotonic()
    without = FanOut([MemorySink()], run, MemoryHistory())
    assert without.mlflow_run_id(SOON_S) is None
    assert time.monotonic() - start < SOON_S / 2
    without.close("FINISHED", SOON_S)


def test_a_fan_out_without_sinks_works(run):
    fan_out = FanOut([], run, MemoryHistory([Point("m", 0.5, 1, 1.7e9)]))
    fan_out.wake()
    fan_out.rewind(0)
    assert fan_out.flush(0)
    assert fan_out.close("FINISHED", 0)
