"""Points that are delivered twice: after a kill with the same times, after a rewind with other times."""

import dataclasses

from mlflow import MlflowClient

from trieye.sinks.mlflow.sink import MlflowSink
from trieye.sinks.thread import SinkThread
from trieye.stats.point import Point
from trieye.testing import MemoryHistory

METRICS = ("loss", "episode/return", "acc@1")
NUM_STEPS = 120


def points_of(name, num_steps=NUM_STEPS, at=1.7e9):
    return [Point(name, step * 0.25, step, at + step * 0.01) for step in range(num_steps)]


def histories(run, sink, names=("loss",)):
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


def test_points_redelivered_after_a_kill_are_stored_once(run):
    points = [point for step in zip(*map(points_of, METRICS), strict=True) for point in step]
    first = opened(run)
    write(first, points[:240])
    second = opened(run)  # the hub was killed before the cursor of the last 180 points was stored
    write(second, points[60:], size=77)
    third = opened(run)
    write(third, points)
    assert third.run_id == first.run_id
    names = ("loss", "episode/return", "acc_x40_1")
    for name, history in histories(run, third, names).items():
        assert sorted(history) == [(step * 0.25, step) for step in range(NUM_STEPS)], name
    assert latest(run, third) == dict.fromkeys(names, (NUM_STEPS - 1) * 0.25)


def test_points_of_a_rewound_branch_are_stored_only_if_they_differ(run):
    first = opened(run)
    branch = points_of("loss", 200)
    write(first, branch)
    second = opened(run)
    second.note_superseded(branch[100:])
    rerun = [Point("loss", step * 0.25 + (step >= 150), step, 1.8e9 + step) for step in range(100, 220)]
    for _ in range(2):  # a repeated write omits the same points
        write(second, rerun, size=33)
    original = [(step * 0.25, step) for step in range(200)]
    assert sorted(histories(run, second)["loss"]) == sorted(
        [*original, *((step * 0.25 + 1, step) for step in range(150, 220))]
    )
    assert latest(run, second) == {"loss": 219 * 0.25 + 1}


def test_another_store_without_the_run_receives_all_points(run):
    source = MemoryHistory(points_of("loss", 30))
    assert SinkThread(MlflowSink(), run, source).close("KILLED", 60.0)
    assert source.cursor("mlflow").index == 30
    run_in_other_store = dataclasses.replace(run, tracking_uri=f"sqlite:///{run.mlflow_dir / 'other.db'}")
    source.append(points_of("loss", 40)[30:])
    sink = MlflowSink()
    assert SinkThread(sink, run_in_other_store, source).close("FINISHED", 60.0)
    assert sorted(step for _, step in histories(run_in_other_store, sink)["loss"]) == list(range(40))
