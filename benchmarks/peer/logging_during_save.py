"""trieye 0.1.5: how long acknowledged log calls wait while a state is saved; argument 1 = MB of the state."""

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
    """Return the waits of one save in milliseconds, and how long the save takes."""
    state = ray.put({"weights": torch.rand(int(sys.argv[1]) * 1_000_000 // 4)})
    event = RawMetricEvent(name="loss", value=0.5, global_step=1)
    ray.get(actor.log_event.remote(event))
    began = time.perf_counter()
    saving = actor.save_training_state.remote(state, {}, [], 1, 0, 0)
    waits = []
    while not ray.wait([saving], timeout=0)[0]:
        called = time.perf_counter()
        ray.get(actor.log_event.remote(event))
        waits.append((time.perf_counter() - called) * 1e3)
    save_s = time.perf_counter() - began
    # a save that failed looks like one that did not
    assert (Path(ray.get(actor.get_run_base_dir_str.remote())) / "checkpoints" / "checkpoint_step_1.pkl").exists()
    return {
        "num_calls": len(waits),
        "p99_ms": float(np.percentile(waits, 99)),
        "worst_ms": max(waits),
        "save_s": save_s,
    }


if __name__ == "__main__":
    answer_rounds(measure)
