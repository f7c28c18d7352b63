"""Scalars per second written to event files: TensorboardSink against torch's SummaryWriter."""

import json
import statistics
import tempfile
import time
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from trieye.sinks.base import MAX_POINTS_PER_WRITE
from trieye.sinks.tensorboard.sink import TensorboardSink
from trieye.stats.point import Point
from trieye.testing import make_run_info

REPEATS = 5
NUM_METRICS = 10
NUM_POINTS = 20_000


def points_of_a_training() -> list[Point]:
    """Return points of ten metrics that a training loop logs at every step."""
    now = time.time()
    return [
        Point(f"Loss/{metric}", step * 0.5, step, now + step)
        for step in range(NUM_POINTS // NUM_METRICS)
        for metric in range(NUM_METRICS)
    ]


def ours(directory: Path, points: list[Point]) -> float:
    """Return scalars per second of the sink, including the time to flush the file."""
    sink = TensorboardSink()
    sink.open(make_run_info(directory))
    sink.write(points[:1])
    sink.flush()  # creates the file, as the constructor of SummaryWriter does
    start = time.perf_counter()
    for first in range(0, len(points), MAX_POINTS_PER_WRITE):
        sink.write(points[first : first + MAX_POINTS_PER_WRITE])
    sink.flush()
    seconds = time.perf_counter() - start
    sink.close("FINISHED")
    return len(points) / seconds


def peer(directory: Path, points: list[Point]) -> float:
    """Return scalars per second of `add_scalar`, including the time to flush the file."""
    with SummaryWriter(str(directory)) as writer:
        start = time.perf_counter()
        for point in points:
            writer.add_scalar(point.metric, point.value, point.step, point.wall_time)
        writer.flush()
        return len(points) / (time.perf_counter() - start)


def main() -> None:
    """Measure alternating rounds and print one JSON line."""
    points = points_of_a_training()
    ours_rates, peer_rates = [], []
    for repeat in range(REPEATS):
        with tempfile.TemporaryDirectory() as scratch:
            ours_rates.append(ours(Path(scratch) / f"ours_{repeat}", points))
            peer_rates.append(peer(Path(scratch) / f"peer_{repeat}", points))
    ours_rate, peer_rate = statistics.median(ours_rates), statistics.median(peer_rates)
    line = {
        "benchmark": "tensorboard_scalars",
        "unit": "scalars/s",
        "ours": round(ours_rate),
        "peer": round(peer_rate),
        "ratio": round(ours_rate / peer_rate, 1),
        "goal": "ratio >= 10",
        "met": ours_rate / peer_rate >= 10,
        "repeats": REPEATS,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
