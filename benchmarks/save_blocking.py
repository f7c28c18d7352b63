"""How long a save blocks the training: `Run.save` of a 200 MB model against a memcpy of it, in the same run.

Prints one JSON line. Goal: `ratio`, that of the slower of both runtimes, <= 2.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import trieye
from trieye.checkpoints.store import load_checkpoint
from trieye.snapshot.encode import encode

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


def saving(model: torch.nn.Module, runtime: str, references: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return medians in seconds: of `Run.save`, and of what it is compared with, in turns with it."""
    times: dict[str, list[float]] = {name: [] for name in ("save", "write", *references)}
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            runtime={"kind": runtime}, persistence={"root_data_dir": root, "keep_last": 1}, sinks={}
        )
        with trieye.Run(config) as run:
            for _ in run.steps(ROUNDS + 1):
                for name, work in references.items():
                    times[name].append(seconds(work))
                started = time.perf_counter()
                handle = run.save(model=model)
                times["save"].append(time.perf_counter() - started)
                handle.wait()  # what the disk does is not to be measured with the next one
                times["write"].append(time.perf_counter() - started)
        load_s = seconds(lambda: load_checkpoint(run.dir))
    # the first of each is left out: it also makes the memory
    return {name: statistics.median(values[1:]) for name, values in times.items()} | {"load": load_s}


def main() -> None:
    """Measure in turns, so that a noisy neighbor hits all of them."""
    model = make_model()
    flat = np.concatenate([tensor.numpy().reshape(-1) for tensor in model.state_dict().values()])
    references: dict[str, Callable[[], Any]] = {"memcpy": flat.copy, "encode": lambda: encode({"model": model})}
    medians = {runtime: saving(model, runtime, references) for runtime in ("local", "ray")}
    ratios = {runtime: found["save"] / found["memcpy"] for runtime, found in medians.items()}
    report = {
        "benchmark": "save_blocking",
        "size_mb": round(flat.nbytes / 1e6, 1),
        "ratio": round(max(ratios.values()), 2),
        "ratios": {runtime: round(ratio, 2) for runtime, ratio in ratios.items()},
        "goal": f"ratio <= {GOAL}",
        "met": max(ratios.values()) <= GOAL,
        "rounds": ROUNDS,
        **{
            f"{runtime}_ms": {name: round(1e3 * value, 1) for name, value in found.items()}
            for runtime, found in medians.items()
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
