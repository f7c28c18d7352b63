"""Points per second written to a real SQLite-backed MLflow store: MlflowSink against single `log_metric` calls.

The peer writes to a store with MLflow's default settings. `same_store` is `log_metric` on the store that the sink
created: both benefit from its WAL mode, so that ratio isolates the effect of batching.
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
    """Return points of ten metrics that a training loop logs at every step."""
    now = time.time()
    steps = range(first_step, first_step + num_points // NUM_METRICS)
    return [Point(f"Loss/{metric}", step * 0.5, step, now + step) for step in steps for metric in range(NUM_METRICS)]


def ours(sink: MlflowSink, points: list[Point]) -> float:
    """Return points per second of the sink, with the write size of its thread."""
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
    """Measure alternating rounds and print one JSON line."""
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run_info(Path(scratch))
        sink = MlflowSink()
        sink.open(run)
        client = MlflowClient(tracking_uri=run.tracking_uri)
        same_store_run_id = client.create_run(client.get_experiment_by_name(run.app_name).experiment_id).info.run_id
        peer_client = MlflowClient(tracking_uri=f"sqlite:///{scratch}/peer.db")
        peer_run_id = peer_client.create_run(peer_client.create_experiment("peer")).info.run_id
        ours_rates, peer_rates, same_rates = [], [], []
        for repeat in range(REPEATS):
            ours_rates.append(ours(sink, points_of(repeat * OURS_POINTS, OURS_POINTS)))
            peer_rates.append(peer(peer_client, peer_run_id, points_of(repeat * PEER_POINTS, PEER_POINTS)))
            same_rates.append(peer(client, same_store_run_id, points_of(repeat * PEER_POINTS, PEER_POINTS)))
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
