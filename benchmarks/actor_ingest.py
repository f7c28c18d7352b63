"""Events to the Ray actor: single calls as in trieye 0.1.5 against `Run.log`, and both while a checkpoint is saved.

Goals: at least 100 times single calls; a log call waits at most 250 ms, p99 50 ms, while 400 MB are saved.
"""

import json
import statistics
import tempfile
import time
from typing import Any

import numpy as np
import ray

import trieye

SINGLE_EVENTS = 3_000
RUN_EVENTS = 300_000
ROUNDS = 3
SPEEDUP_GOAL = 100.0
WORST_MS_GOAL = 250.0
P99_MS_GOAL = 50.0
STATS = {"metrics": [{"name": "loss", "aggregation": "mean", "log_frequency_steps": 1000}]}


def config(root: str, run_name: str) -> trieye.TrieyeConfig:
    """Return the config of a run with TensorBoard."""
    return trieye.TrieyeConfig(
        run_name=run_name,
        persistence={"root_data_dir": root},
        sinks={"tensorboard": {"enabled": True}},
        stats=STATS,
    )


def single_calls(root: str, number: int) -> float:
    """Return events/s of one `log_event` call for each event, until all are processed."""
    actor = trieye.TrieyeActor.remote(config=config(root, f"single{number}"))
    ray.get(actor.get_actor_name.remote())
    began = time.perf_counter()
    for step in range(SINGLE_EVENTS):
        actor.log_event.remote(trieye.RawMetricEvent(name="loss", value=0.5, global_step=step))
    ray.get(actor.force_process_and_log.remote(SINGLE_EVENTS))
    rate = SINGLE_EVENTS / (time.perf_counter() - began)
    ray.get(actor.shutdown.remote())
    ray.kill(actor)
    return rate


def run_log(root: str, number: int) -> float:
    """Return events/s of `Run.log`, until all are processed."""
    with trieye.Run(config(root, f"run{number}")) as run:
        began = time.perf_counter()
        for step in range(RUN_EVENTS):
            run.log("loss", 0.5, step=step)
        run.flush()
        return RUN_EVENTS / (time.perf_counter() - began)


def waits_during_save(root: str) -> dict[str, float]:
    """Return how long acknowledged log calls wait while 400 MB are saved."""
    actor = trieye.TrieyeActor.remote(config=config(root, "saving"))
    state: dict[str, Any] = {"w": np.random.default_rng(0).random(50_000_000)}
    event = trieye.RawMetricEvent(name="loss", value=0.5, global_step=1)
    ray.get(actor.log_event.remote(event))
    saving = actor.save_training_state.remote(ray.put(state), {}, [], 1, 0, 0)
    waits = []
    while not ray.wait([saving], timeout=0)[0]:
        began = time.perf_counter()
        ray.get(actor.log_event.remote(event))
        waits.append((time.perf_counter() - began) * 1e3)
    ray.get(saving)
    return {"calls": len(waits), "p99_ms": float(np.percentile(waits, 99)), "worst_ms": max(waits)}


def main() -> None:
    """Print one JSON line."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, namespace="trieye", log_to_driver=False)
    with tempfile.TemporaryDirectory() as root:
        pairs = [(run_log(root, number), single_calls(root, number)) for number in range(ROUNDS)]
        waits = waits_during_save(root)
    ours, single = (statistics.median(side) for side in zip(*pairs, strict=True))
    speedup = statistics.median(a / b for a, b in pairs)
    met = speedup >= SPEEDUP_GOAL and waits["worst_ms"] < WORST_MS_GOAL and waits["p99_ms"] < P99_MS_GOAL
    figures = {
        "run_log_per_s": round(ours),
        "single_calls_per_s": round(single),
        "speedup": round(speedup, 1),
        "during_save": {name: round(value, 1) for name, value in waits.items()},
    }
    goal = f"speedup >= {SPEEDUP_GOAL}, worst < {WORST_MS_GOAL} ms, p99 < {P99_MS_GOAL} ms"
    print(json.dumps({"benchmark": "actor_ingest", **figures, "goal": goal, "met": met}))


if __name__ == "__main__":
    main()
