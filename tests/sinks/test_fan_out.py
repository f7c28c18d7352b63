import time

import pytest

from trieye.sinks import FanOut
from trieye.stats.point import Point
from trieye.testing import FlakySink, MemorySink, make_run

SOON_S = 20.0


class PlainSink:
    """A sink that is no tracker."""

    name = "plain"

    def __init__(self):
        self.points = []

    def open(self, run):
        pass

    def write(self, points):
        self.points.extend(points)

    def close(self, status):
        pass


class NumberedSink(MemorySink):
    run_id = None

    def open(self, run):
        self.run_id = "abc"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def test_log_to_chooses_among_our_sinks_and_others_get_all(run):
    sinks = [MemorySink("mlflow"), MemorySink("tensorboard"), MemorySink("console"), MemorySink("mine")]
    fan_out = FanOut(sinks, run)
    targets = [("mlflow",), ("tensorboard", "console"), (), ("mine",)]
    fan_out.write([Point("m", 0.5, step, 1.7e9, log_to) for step, log_to in enumerate(targets)])
    assert fan_out.close("FINISHED", SOON_S)
    assert [[point.step for point in sink.points] for sink in sinks] == [[0], [1], [1], [0, 1, 2, 3]]


def test_parameters_tags_and_files_go_to_trackers_only_and_as_they_were(run, tmp_path):
    tracker, plain = MemorySink(), PlainSink()
    fan_out = FanOut([plain, tracker], run)
    params = {"lr": 0.1, "layers": [1, 2]}
    fan_out.log_params(params)
    params["layers"].append(3)
    fan_out.set_tags({"n": 1})
    fan_out.log_artifact(tmp_path, "sub")
    assert fan_out.close("FINISHED", SOON_S)
    assert tracker.params == {"lr": "0.1", "layers": "[1, 2]"}
    assert tracker.tags == {"n": "1"}
    assert tracker.artifacts == [(tmp_path, "sub")]


def test_a_broken_sink_does_not_hold_up_the_others(run):
    good, broken = MemorySink("good"), FlakySink()
    fan_out = FanOut([broken, good], run)
    fan_out.write([Point("m", 0.5, 1, 1.7e9)])
    assert not fan_out.flush(0.3)
    assert len(good.points) == 1
    assert [(health.name, health.error is None) for health in fan_out.health()] == [("flaky", False), ("good", True)]
    assert not fan_out.close("FINISHED", SOON_S)
    assert good.statuses == ["FINISHED"]


def test_all_broken_sinks_share_one_deadline(run):
    fan_out = FanOut([FlakySink(name=f"broken_{n}") for n in range(5)], run)
    start = time.monotonic()
    assert not fan_out.flush(0.3)
    assert time.monotonic() - start < 1.4


def test_one_sink_can_be_closed_while_the_others_go_on(run):
    first, second = MemorySink("first"), MemorySink("second")
    fan_out = FanOut([first, second], run)
    fan_out.write([Point("m", 0.5, 1, 1.7e9)])
    assert fan_out.close_sink("first", SOON_S)
    fan_out.write([Point("m", 0.5, 2, 1.7e9)])
    assert fan_out.close("FINISHED", SOON_S)
    assert [len(first.points), len(second.points)] == [1, 2]


def test_the_id_of_the_mlflow_run_is_waited_for(run):
    fan_out = FanOut([MemorySink(), NumberedSink("mlflow")], run)
    assert fan_out.mlflow_run_id(SOON_S) == "abc"
    fan_out.close("FINISHED", SOON_S)


def test_without_mlflow_there_is_no_id_and_no_waiting(run):
    start = time.monotonic()
    fan_out = FanOut([MemorySink()], run)
    assert fan_out.mlflow_run_id(SOON_S) is None
    assert time.monotonic() - start < SOON_S / 2
    fan_out.close("FINISHED", SOON_S)


def test_a_run_without_sinks_is_fine(run):
    fan_out = FanOut([], run)
    fan_out.write([Point("m", 0.5, 1, 1.7e9)])
    assert fan_out.flush(0)
    assert fan_out.close("FINISHED", 0)
