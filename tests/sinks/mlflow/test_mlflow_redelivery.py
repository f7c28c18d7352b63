"""Points that come twice: after a kill of the hub with the same times, after a rewind with other ones."""

import dataclasses
import random

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


def test_what_comes_again_after_a_kill_is_there_once(run):
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


def test_any_overlap_and_order_leaves_each_point_once_and_the_latest_value_right(run):
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


def test_points_of_a_rewound_branch_come_only_if_they_differ(run):
    first = opened(run)
    branch = points_of("loss", 200)
    write(first, branch)
    second = opened(run)
    second.note_superseded(branch[100:])
    rerun = [Point("loss", step * 0.25 + (step >= 150), step, 1.8e9 + step) for step in range(100, 220)]
    write(second, rerun, size=33)
    kept = [(step * 0.25, step) for step in range(200)]
    assert sorted(histories(run, second, ["loss"])["loss"]) == sorted(
        [*kept, *((step * 0.25 + 1, step) for step in range(150, 220))]
    )
    assert latest(run, second) == {"loss": 219 * 0.25 + 1}


def test_a_write_that_is_repeated_leaves_the_same_points_out(run):
    first = opened(run)
    write(first, points_of("loss", 10))
    first.note_superseded(points_of("loss", 10))
    for _ in range(2):
        first.write(points_of("loss", 12, at=1.8e9))
    assert sorted(histories(run, first, ["loss"])["loss"]) == expected()[:12]


def test_a_store_that_knows_nothing_of_the_run_gets_all_of_it(run):
    source = MemoryHistory(points_of("loss", 30))
    assert SinkThread(MlflowSink(), run, source).close("KILLED", 60.0)
    assert source.cursor("mlflow").index == 30
    elsewhere = dataclasses.replace(run, tracking_uri=f"sqlite:///{run.mlflow_dir / 'other.db'}")
    source.append(points_of("loss", 40)[30:])
    sink = MlflowSink()
    assert SinkThread(sink, elsewhere, source).close("FINISHED", 60.0)
    assert sorted(step for _, step in histories(elsewhere, sink, ("loss",))["loss"]) == list(range(40))
