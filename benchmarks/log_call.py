"""`run.log(name, value)` in a training loop against a bare `deque.append` of the tuple that it stands for.

Goal: at most 4 times the append, with the step and thread safety included.
"""

import json
import statistics
import tempfile
import time
from collections import deque
from typing import Any

import trieye

CALLS = 50_000
ROUNDS = 7
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


def main() -> None:
    """Print one JSON line."""
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            persistence={"root_data_dir": root},
            runtime={"kind": "local"},
            sinks={},
            stats={"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 100}]},
        )
        with trieye.Run(config) as run:
            pairs = [(run_log(run), bare_append()) for _ in range(ROUNDS)]
    ours, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    figures = {"run_log_ns": round(ours), "deque_append_ns": round(bare), "ratio": round(ratio, 2)}
    print(json.dumps({"benchmark": "log_call", **figures, "goal": f"<= {GOAL}", "met": ratio <= GOAL}))


if __name__ == "__main__":
    main()
