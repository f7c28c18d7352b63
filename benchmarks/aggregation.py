"""Windowed means of one metric: the aggregator against the same arithmetic in pure Python.

Goals: at least 15 times as fast as pure Python with 1000 events, and at most 30 ns per event with 10 000.
"""

import json
import statistics
import time
from collections import defaultdict

from trieye.config import MetricConfig
from trieye.stats.aggregator import Aggregator
from trieye.stats.batch import EventBatch, EventRow

EVERY = 100
REPEATS = 15
SPEEDUP_GOAL = 15.0
NS_GOAL = 30.0
METRIC = MetricConfig(name="loss", aggregation="mean", log_frequency_steps=EVERY)


def python_ns(rows: list[EventRow]) -> float:
    """Return ns per event in pure Python for the state of a window: count, mean, extremes, deviation, last, time."""
    start = time.perf_counter()
    windows: dict[int, list[float]] = defaultdict(lambda: [0, 0.0, float("inf"), float("-inf"), 0.0, 0.0, 0, 0.0])
    for name, value, step, at, _ in rows:
        window = windows[-(-step // EVERY)]
        window[0] += 1
        delta = value - window[1]
        window[1] += delta / window[0]
        window[4] += delta * (value - window[1])
        window[2] = min(window[2], value)
        window[3] = max(window[3], value)
        if step >= window[6]:
            window[5], window[6] = value, step
        window[7] = max(window[7], at)
        assert name == "loss"
    return (time.perf_counter() - start) / len(rows) * 1e9


def ours_ns(batch: EventBatch) -> float:
    """Return ns per event for `Aggregator.ingest`."""
    aggregator = Aggregator([METRIC])
    start = time.perf_counter()
    aggregator.ingest(batch, at=0.0)
    return (time.perf_counter() - start) / len(batch) * 1e9


def main() -> None:
    """Print one JSON line."""
    figures: dict[str, float] = {}
    for size in (1_000, 10_000):
        rows = [EventRow("loss", 0.5 * step, 1 + step // 10, 1e9 + step) for step in range(size)]
        batch = EventBatch.from_rows(rows)
        pairs = [(ours_ns(batch), python_ns(rows)) for _ in range(REPEATS)]
        figures[f"ours_ns_{size}"] = round(statistics.median(ours for ours, _ in pairs), 1)
        figures[f"python_ns_{size}"] = round(statistics.median(peer for _, peer in pairs), 1)
        figures[f"speedup_{size}"] = round(statistics.median(peer / ours for ours, peer in pairs), 1)
    met = figures["speedup_1000"] >= SPEEDUP_GOAL and figures["ours_ns_10000"] <= NS_GOAL
    goal = f"speedup_1000 >= {SPEEDUP_GOAL}, ours_ns_10000 <= {NS_GOAL}"
    print(json.dumps({"benchmark": "aggregation", **figures, "goal": goal, "met": met}))


if __name__ == "__main__":
    main()
