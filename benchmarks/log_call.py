"""Latency of `run.log(name, value)` in a training loop against a bare `deque.append` of the same tuple.

Goal: at most 4 times the append, including the step and thread safety. `peer_us` is the time for which one call of the
trieye 0.1.5 actor blocks the caller.
"""

import json
import statistics
import tempfile
import time
from collections import deque
from typing import Any

from peer.trieye015 import Peer

import trieye

CALLS = 50_000
PEER_CALLS = 3_000
ROUNDS = 7
PEER_ROUNDS = 3
GOAL = 4.0


def bare_append() -> float:
    """Return the mean duration of appending (name, value, step, time, context), in ns."""
    pending: deque[tuple[Any, ...]] = deque()
    append, clock, step, value = pending.append, time.time, 5, 1.5
    start = time.perf_counter()
    for _ in range(CALLS):
        append(("loss", value, step, clock(), None))
    return (time.perf_counter() - start) / CALLS * 1e9


def run_log(run: trieye.Run) -> float:
    """Return the mean duration of `run.log` in ns, while the run's flusher is active in its thread."""
    log, value = run.log, 1.5
    start = time.perf_counter()
    for _ in range(CALLS):
        log("loss", value)
    elapsed = (time.perf_counter() - start) / CALLS * 1e9
    run.flush()
    return elapsed


def ours() -> dict[str, float]:
    """Return the latency of both in ns, measured in alternating rounds."""
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            persistence={"root_data_dir": root},
            runtime={"kind": "local"},
            sinks={},
            stats={"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 100}]},
        )
        with trieye.Run(config) as run:
            pairs = [(run_log(run), bare_append()) for _ in range(ROUNDS)]
    log_ns, append_ns = (statistics.median(latencies) for latencies in zip(*pairs, strict=True))
    ratio = statistics.median(log_ns / append_ns for log_ns, append_ns in pairs)
    return {"run_log_ns": round(log_ns), "deque_append_ns": round(append_ns), "ratio": round(ratio, 2)}


def main() -> None:
    """Print one JSON line."""
    figures = ours()
    with Peer("single_calls.py", PEER_CALLS, 100) as peer:
        peer_us = statistics.median(peer.measure()["caller_us"] for _ in range(PEER_ROUNDS))
    figures |= {"peer_us": round(peer_us), "peer_ratio": round(peer_us * 1e3 / figures["run_log_ns"])}
    met = figures["ratio"] <= GOAL
    print(json.dumps({"benchmark": "log_call", **figures, "rounds": ROUNDS, "goal": f"ratio <= {GOAL}", "met": met}))


if __name__ == "__main__":
    main()
