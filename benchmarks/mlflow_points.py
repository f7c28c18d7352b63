"""Points per second into a real SQLite store of MLflow: MlflowSink against log_metric one by one.

The peer writes to a store as MLflow makes it, which is what one has without trieye. `same_store` is log_metric on the
store that the sink made, whose WAL mode helps it too: that ratio is what the batches alone bring.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from mlflow import MlflowClient

from trieye.sinks.base import MAX_POINTS_PER_WRITE
from trieye.sinks.mlflow.sink import MlflowSink
from trieye.stats.point import Point
from trieye.testing import make_run_info

REPEATS = 5
NUM_METRICS = 10
OURS_POINTS = 10_000
PEER_POINTS = 200


def points_of(first_step: int, num_points: int) -> list[Point]:
    """Return points of ten metrics that advance together, as a training loop makes them."""
    now = time.time()
    steps = range(first_step, first_step + num_points // NUM_METRICS)
    return [Point(f"Loss/{metric}", step * 0.5, step, now + step) for step in steps for metric in range(NUM_METRICS)]


def ours(sink: MlflowSink, points: list[Point]) -> float:
    """Return points per second of the sink, in writes as large as its thread makes them."""
    start = time.perf_counter()
    for first in range(0, len(points), MAX_POINTS_PER_WRITE):
        sink.write(points[first : first + MAX_POINTS_PER_WRITE])
    return len(points) / (time.perf_counter() - start)


def peer(client: MlflowClient, run_id: str, points: list[Point]) -> float:
    """Return points per second of log_metric."""
    start = time.perf_counter()
    for point in points:
        client.log_metric(run_id, point.metric, point.value, int(point.wall_time * 1000), point.step)
    return len(points) / (time.perf_counter() - start)


def main() -> None:
    """Measure both on the same store, in turns, and print one line."""
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run_info(Path(scratch))
        sink = MlflowSink()
        sink.open(run)
        client = MlflowClient(tracking_uri=run.tracking_uri)
        same_run_id = client.create_run(client.get_experiment_by_name(run.app_name).experiment_id).info.run_id
        peer_client = MlflowClient(tracking_uri=f"sqlite:///{scratch}/peer.db")
        peer_run_id = peer_client.create_run(peer_client.create_experiment("peer")).info.run_id
        ours_rates, peer_rates, same_rates = [], [], []
        for repeat in range(REPEATS):
            ours_rates.append(ours(sink, points_of(repeat * OURS_POINTS, OURS_POINTS)))
            peer_rates.append(peer(peer_client, peer_run_id, points_of(repeat * PEER_POINTS, PEER_POINTS)))
            same_rates.append(peer(client, same_run_id, points_of(repeat * PEER_POINTS, PEER_POINTS)))
        last = client.get_run(str(sink.run_id)).data.metrics["Loss/0"]
        assert last == ((REPEATS - 1) * OURS_POINTS + OURS_POINTS // NUM_METRICS - 1) * 0.5, last
    ours_rate, peer_rate, same_rate = map(statistics.median, (ours_rates, peer_rates, same_rates))
    line = {
        "benchmark": "mlflow_points",
        "unit": "points/s",
        "ours": round(ours_rate),
        "peer": round(peer_rate),
        "ratio": round(ours_rate / peer_rate, 1),
        "goal": "ratio >= 25",
        "met": ours_rate / peer_rate >= 25,
        "same_store": round(same_rate),
        "same_store_ratio": round(ours_rate / same_rate, 1),
        "repeats": REPEATS,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
