"""Throughput of the Ray actor with one producer: `Run.log` against single calls of trieye 0.1.5.

Goal: at least 100 times the peer, although each event is in the journal before it is acknowledged. Both log to MLflow
and TensorBoard; `delivered` includes the time until both sinks have every point. `drop_in` runs the peer's program on
this version of trieye, where each call returns after its event is in the journal. Goals: at least 0.9 times the peer
with one event per call, and 3 times the peer with batches of 100.
"""

import json
import statistics
import tempfile
import time
from typing import Any

import ray
from peer.trieye015 import Peer

import trieye

CALLS = 3_000
BATCHED = 30_000
RUN_EVENTS = 300_000
ROUNDS = 3
BATCH = 100
GOALS = {"ratio": 100.0, "drop_in_ratio": 0.9, "batched_ratio": 3.0}
STATS = {"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 1000}]}


def config(root: str, run_name: str) -> trieye.TrieyeConfig:
    """Return a config with default sinks and runtime, and one metric that is aggregated over 1000 steps."""
    return trieye.TrieyeConfig(run_name=run_name, persistence={"root_data_dir": root}, stats=STATS)


def run_log(root: str, number: int) -> dict[str, float]:
    """Return the throughput of `Run.log` until all events are processed, and until the sinks have all points."""
    with trieye.Run(config(root, f"run{number}")) as run:
        assert run.mlflow_run_id() is not None
        run.log("loss", 0.5, step=0)
        run.flush()
        start = time.perf_counter()
        for step in range(1, RUN_EVENTS + 1):
            run.log("loss", 0.5, step=step)
        run.step = RUN_EVENTS
        run.flush()
        processed = time.perf_counter()
        while any(sink["backlog"] for sink in run.health()["sinks"]):
            time.sleep(0.005)
        delivered = time.perf_counter()
        assert run.health()["processed"] == RUN_EVENTS + 1
    return {
        "run_log_per_s": RUN_EVENTS / (processed - start),
        "delivered_per_s": RUN_EVENTS / (delivered - start),
    }


def drop_in(root: str, number: int) -> dict[str, float]:
    """Return the throughput of `log_event` and of `log_batch_events`, until all events are processed."""
    actor_class: Any = trieye.TrieyeActor  # a Ray actor class, whose `remote` has no type
    actor = actor_class.remote(config=config(root, f"drop_in{number}"))
    ray.get(actor.log_event.remote(trieye.RawMetricEvent(name="loss", value=0.5, global_step=0)))
    assert ray.get(actor.wait_mlflow_run_id.remote(60.0)) is not None  # the peer's constructor imports MLflow
    start = time.perf_counter()
    for step in range(1, CALLS + 1):
        actor.log_event.remote(trieye.RawMetricEvent(name="loss", value=0.5, global_step=step))
    ray.get(actor.force_process_and_log.remote(CALLS))
    single = time.perf_counter()
    for first in range(CALLS + 1, CALLS + BATCHED + 1, BATCH):
        steps = range(first, first + BATCH)
        actor.log_batch_events.remote(
            [trieye.RawMetricEvent(name="loss", value=0.5, global_step=step) for step in steps]
        )
    ray.get(actor.force_process_and_log.remote(CALLS + BATCHED))
    batched = time.perf_counter()
    ray.get(actor.shutdown.remote())
    ray.kill(actor)
    return {"drop_in_per_s": CALLS / (single - start), "drop_in_batched_per_s": BATCHED / (batched - single)}


def main() -> None:
    """Print one JSON line."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="trieye", log_to_driver=False)
    rounds = []
    with tempfile.TemporaryDirectory() as root, Peer("single_calls.py", CALLS, BATCHED) as peer:
        for number in range(ROUNDS):
            figures = {**run_log(root, number), **drop_in(root, number)}
            measured = peer.measure()
            figures["peer_per_s"], figures["peer_batched_per_s"] = measured["events_per_s"], measured["batched_per_s"]
            figures["ratio"] = figures["run_log_per_s"] / figures["peer_per_s"]
            figures["drop_in_ratio"] = figures["drop_in_per_s"] / figures["peer_per_s"]
            figures["batched_ratio"] = figures["drop_in_batched_per_s"] / figures["peer_batched_per_s"]
            rounds.append(figures)
    medians = {name: round(statistics.median(figures[name] for figures in rounds), 2) for name in rounds[0]}
    met = all(medians[name] >= goal for name, goal in GOALS.items())
    print(json.dumps({"benchmark": "actor_ingest", **medians, "rounds": ROUNDS, "goal": GOALS, "met": met}))


if __name__ == "__main__":
    main()
