"""Points that are delivered twice: after a kill with the same times, after a rewind with other times."""

import dataclasses
import random

import pytest
from mlflow import MlflowClient

from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory

METRICS = ("loss", "episode/return", "acc@1")
NUM_STEPS = 1200


def points_of(name, num_steps=NUM_STEPS, at=1.7e9):
    return [Point(name, step * 0.25, step, at + step * 0.01) for step in range(num_steps)]


def histories(run, sink, names=("loss", "episode/return", "acc_x40_1")):
    client = MlflowClient(tracking_uri=run.tracking_uri)
    return {
        name: [(metric.value, metric.step) for metric in client.get_metric_history(sink.run_id, name)] for name in names
    }


def latest(run, sink):
    return MlflowClient(tracking_uri=run.tracking_uri).get_run(sink.run_id).data.metrics


def opened(run):
    sink = MlflowSink()
    sink.open(run)
    return sink


def write(sink, points, size=1000):
    for first in range(0, len(points), size):
        sink.write(points[first : first + size])


def expected():
    return [(step * 0.25, step) for step in range(NUM_STEPS)]


def test_points_redelivered_after_a_kill_are_stored_once(run):
    points = [point for step in zip(*map(points_of, METRICS), strict=True) for point in step]
    first = opened(run)
    write(first, points[:2400])
    second = opened(run)  # the hub was killed before the cursor of the last 1800 points was stored
    write(second, points[600:], size=777)
    third = opened(run)
    write(third, points)
    assert third.run_id == first.run_id
    assert {name: sorted(history) for name, history in histories(run, third).items()} == {
        "loss": expected(),
        "episode/return": expected(),
        "acc_x40_1": expected(),
    }
    assert latest(run, third) == dict.fromkeys(("loss", "episode/return", "acc_x40_1"), (NUM_STEPS - 1) * 0.25)


@pytest.mark.long
def test_overlapping_redeliveries_store_each_point_once_with_the_latest_value(run):
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    points = points_of("loss")
    sink = opened(run)
    for _ in range(4):
        first = rng.randrange(NUM_STEPS)
        some = points[first : first + rng.randrange(1, 1000)]
        write(sink, rng.sample(some, len(some)), size=rng.randrange(100, 1000))
    write(sink, points)
    write(sink, points[100:200])
    assert sorted(histories(run, sink, ["loss"])["loss"]) == expected(), seed
    assert latest(run, sink) == {"loss": (NUM_STEPS - 1) * 0.25}


def test_points_of_a_rewound_branch_are_stored_only_if_they_differ(run):
    first = opened(run)
    branch = points_of("loss", 200)
    write(first, branch)
    second = opened(run)
    second.note_superseded(branch[100:])
    rerun = [Point("loss", step * 0.25 + (step >= 150), step, 1.8e9 + step) for step in range(100, 220)]
    write(second, rerun, size=33)
    original = [(step * 0.25, step) for step in range(200)]
    assert sorted(histories(run, second, ["loss"])["loss"]) == sorted(
        [*original, *((step * 0.25 + 1, step) for step in range(150, 220))]
    )
    assert latest(run, second) == {"loss": 219 * 0.25 + 1}


def test_a_repeated_write_omits_the_same_points(run):
    first = opened(run)
    write(first, points_of("loss", 10))
    first.note_superseded(points_of("loss", 10))
    for _ in range(2):
        first.write(points_of("loss", 12, at=1.8e9))
    assert sorted(histories(run, first, ["loss"])["loss"]) == expected()[:12]


def test_another_store_without_the_run_receives_all_points(run):
    source = MemoryHistory(points_of("loss", 30))
    assert SinkThread(MlflowSink(), run, source).close("KILLED", 60.0)
    assert source.cursor("mlflow").index == 30
    run_in_other_store = dataclasses.replace(run, tracking_uri=f"sqlite:///{run.mlflow_dir / 'other.db'}")
    source.append(points_of("loss", 40)[30:])
    sink = MlflowSink()
    assert SinkThread(sink, run_in_other_store, source).close("FINISHED", 60.0)
    assert sorted(step for _, step in histories(run_in_other_store, sink, ("loss",))["loss"]) == list(range(40))
