"""trieye 0.1.5: latency of acknowledged log calls during a save. Argument: size of the state in MB."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from rounds import answer_rounds

from trieye import RawMetricEvent


def measure(actor: Any) -> dict[str, float]:
    """Return the latencies during one save, and the duration of the save."""
    state = ray.put({"weights": torch.rand(int(sys.argv[1]) * 1_000_000 // 4)})
    event = RawMetricEvent(name="loss", value=0.5, global_step=1)
    ray.get(actor.log_event.remote(event))
    start = time.perf_counter()
    saving = actor.save_training_state.remote(state, {}, [], 1, 0, 0)
    latencies_ms = []
    while not ray.wait([saving], timeout=0)[0]:
        call_start = time.perf_counter()
        ray.get(actor.log_event.remote(event))
        latencies_ms.append((time.perf_counter() - call_start) * 1e3)
    save_s = time.perf_counter() - start
    # the actor reports no failed saves
    assert (Path(ray.get(actor.get_run_base_dir_str.remote())) / "checkpoints" / "checkpoint_step_1.pkl").exists()
    return {
        "num_calls": len(latencies_ms),
        "p99_ms": float(np.percentile(latencies_ms, 99)),
        "worst_ms": max(latencies_ms),
        "save_s": save_s,
    }


if __name__ == "__main__":
    answer_rounds(measure)
