"""How long a save blocks the training: the snapshot of a 200 MB model against a memcpy of it, in the same run.

Prints one JSON line. Goal: `ratio` <= 2.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trieye.persistence.checkpoints import CheckpointStore
from trieye.persistence.encoding import encode

NUM_LAYERS = 50
WIDTH = 1000
ROUNDS = 9
GOAL = 2.0


def make_model() -> torch.nn.Module:
    """Return a model of 50 layers of 4 MB each."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)])


def seconds(work: Callable[[], Any]) -> float:
    """Return how long `work` took; its result is freed outside."""
    started = time.perf_counter()
    result = work()
    elapsed = time.perf_counter() - started
    del result
    return elapsed


def main() -> None:
    """Measure in turns, so that a noisy neighbor hits both."""
    model = make_model()
    flat = np.concatenate([tensor.numpy().reshape(-1) for tensor in model.state_dict().values()])
    warm = np.empty_like(flat)
    works: dict[str, Callable[[], Any]] = {
        "encode": lambda: encode({"model": model}),
        "memcpy": flat.copy,
        "memcpy_warm": lambda: np.copyto(warm, flat),
        "clone_each": lambda: [tensor.clone() for tensor in model.state_dict().values()],
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            times[name].append(seconds(work))
    medians = {name: statistics.median(values) for name, values in times.items()}
    encoded = encode({"model": model})
    with tempfile.TemporaryDirectory() as directory:
        write_s = seconds(lambda: CheckpointStore(Path(directory)).save(1, encoded))
        entry = CheckpointStore(Path(directory)).latest()
        assert entry is not None
        load_s = seconds(lambda: CheckpointStore(Path(directory)).load(entry.path))
    ratio = medians["encode"] / medians["memcpy"]
    report = {
        "benchmark": "save_blocking",
        "size_mb": round(flat.nbytes / 1e6, 1),
        "ratio": round(ratio, 2),
        "goal": f"ratio <= {GOAL}",
        "met": ratio <= GOAL,
        "rounds": ROUNDS,
        **{f"{name}_ms": round(1e3 * value, 1) for name, value in medians.items()},
        "write_ms": round(1e3 * write_s, 1),
        "load_ms": round(1e3 * load_s, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
