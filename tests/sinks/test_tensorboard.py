import re
import socket

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from trieye.sinks.runner import SinkThread
from trieye.sinks.tensorboard import EventFile, TensorboardSink
from trieye.stats.point import Point
from trieye.testing import SinkContract, make_run


def events_of(path):
    return [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]


def files_of(run):
    return sorted(run.tensorboard_dir.iterdir())


class TestContract(SinkContract):
    def make_sink(self):
        return TensorboardSink()

    def read_points(self, run):
        accumulator = EventAccumulator(str(run.tensorboard_dir), size_guidance={"scalars": 0})
        accumulator.Reload()
        return [
            (tag, event.value, event.step)
            for tag in accumulator.Tags()["scalars"]
            for event in accumulator.Scalars(tag)
        ]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


@pytest.fixture
def sink(run):
    sink = TensorboardSink()
    sink.open(run)
    yield sink
    sink.close("FINISHED")


def test_the_file_is_named_and_begun_as_tensorboard_does(run, sink):
    (path,) = files_of(run)
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\.{re.escape(socket.gethostname())}\.\d+\.\d+", path.name)
    assert [event.file_version for event in events_of(path)] == ["brain.Event:2"]


def test_points_of_a_step_share_an_event_when_they_share_the_time(run, sink):
    sink.write([Point("a", 1.0, 1, 10.5), Point("b", 2.0, 1, 10.5), Point("c", 3.0, 1, 11.5), Point("a", 4.0, 2, 12.0)])
    sink.flush()
    events = events_of(files_of(run)[0])[1:]
    assert [(event.step, event.wall_time, [value.tag for value in event.summary.value]) for event in events] == [
        (1, 10.5, ["a", "b"]),
        (1, 11.5, ["c"]),
        (2, 12.0, ["a"]),
    ]


def test_an_event_stays_small_whatever_a_step_holds(run, sink):
    points = [Point(f"layer_{number}/" + "x" * 200, 1.0, 1, 10.5) for number in range(1000)]
    sink.write(points)
    sink.flush()
    events = events_of(files_of(run)[0])[1:]
    assert max(len(event.summary.value) for event in events) <= 64
    assert [value.tag for event in events for value in event.summary.value] == [point.metric for point in points]


def test_points_are_in_the_file_after_a_flush_and_not_before(run, sink):
    (path,) = files_of(run)
    size_before = path.stat().st_size
    sink.write([Point("a", 1.0, 1, 10.5)])
    assert path.stat().st_size == size_before
    sink.flush()
    assert len(events_of(path)) == 2


def test_a_running_sink_flushes_in_its_interval(run):
    thread = SinkThread(TensorboardSink(flush_interval_s=600), run)
    thread.submit_points([Point("a", 1.0, 1, 10.5)])
    assert thread.flush(20)
    assert len(events_of(files_of(run)[0])) == 2
    assert thread.close("FINISHED", 20)


def test_every_attempt_has_its_own_file(run):
    for _ in range(3):
        other = TensorboardSink()
        other.open(run)
        other.close("FINISHED")
    assert len(files_of(run)) == 3


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, 3.4028235e38])
def test_values_beyond_single_precision_do_not_stop_the_file(run, sink, value):
    sink.write([Point("a", value, 1, 10.5), Point("b", 1.0, 1, 10.5)])
    sink.flush()
    (event,) = events_of(files_of(run)[0])[1:]
    assert [found.tag for found in event.summary.value] == ["a", "b"]


def test_names_that_are_no_text_do_not_stop_the_file(run, sink):
    sink.write([Point("a\ud800", 1.0, 1, 10.5), Point("b", 2.0, 1, 10.5)])
    sink.flush()
    (event,) = events_of(files_of(run)[0])[1:]
    assert [(found.tag, found.simple_value) for found in event.summary.value] == [("a\\ud800", 1.0), ("b", 2.0)]


class SmallDisk:
    """A file that takes a few bytes and then fails, until it gets more room."""

    def __init__(self, room):
        self.room = room
        self.data = b""

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = bytes(data[: self.room])
        self.room -= len(taken)
        self.data += taken
        return len(taken)


def test_a_full_disk_costs_nothing_once_there_is_room_again(tmp_path):
    file = EventFile(tmp_path)
    disk, real = SmallDisk(100), file._file
    file._file = disk
    file.add([Point("a", float(step), step, 10.5) for step in range(100)])
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            file.flush()
    disk.room = 10**6
    file.flush()
    real.write(disk.data)
    real.close()
    (path,) = tmp_path.iterdir()
    assert [event.step for event in events_of(path)[1:]] == list(range(100))


class Writer:
    """What trieye 0.1.5 let one inject."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, *arguments):
        self.calls.append(arguments)

    def flush(self):
        self.calls.append("flush")

    def close(self):
        self.calls.append("close")


def test_a_given_writer_is_used_as_it_is(run):
    writer = Writer()
    sink = TensorboardSink(writer=writer)
    sink.open(run)
    sink.write([Point("a", 1.0, 1, 10.5)])
    sink.close("FINISHED")
    assert writer.calls == [("a", 1.0, 1), "flush", "close"]
    assert not run.tensorboard_dir.exists()
