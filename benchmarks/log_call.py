"""`run.log(name, value)` in a training loop against a bare `deque.append` of the tuple that it stands for.

Goal: at most 4 times the append, with the step and thread safety included. `peer_us` is what a single call of the
actor of trieye 0.1.5 takes of the caller.
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
    """Return ns for one append of (name, value, step, time, context)."""
    pending: deque[tuple[Any, ...]] = deque()
    append, clock, step, value = pending.append, time.time, 5, 1.5
    began = time.perf_counter()
    for _ in range(CALLS):
        append(("loss", value, step, clock(), None))
    return (time.perf_counter() - began) / CALLS * 1e9


def run_log(run: trieye.Run) -> float:
    """Return ns for one `run.log`, while the flusher of the run works beside it."""
    log, value = run.log, 1.5
    began = time.perf_counter()
    for _ in range(CALLS):
        log("loss", value)
    elapsed = (time.perf_counter() - began) / CALLS * 1e9
    run.flush()
    return elapsed


def ours() -> dict[str, float]:
    """Return ns of both, in turns."""
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            persistence={"root_data_dir": root},
            runtime={"kind": "local"},
            sinks={},
            stats={"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 100}]},
        )
        with trieye.Run(config) as run:
            pairs = [(run_log(run), bare_append()) for _ in range(ROUNDS)]
    logged, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return {"run_log_ns": round(logged), "deque_append_ns": round(bare), "ratio": round(ratio, 2)}


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
