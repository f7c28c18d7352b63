"""Time for which a save blocks training: `Run.save` of a 200 MB model against a memcpy of the same size.

Prints one JSON line. Goal: `ratio` <= 2 in the slower of the two runtimes.
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
    """Return a model with 50 layers of 4 MB."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)])


def seconds(call: Callable[[], Any]) -> float:
    """Return the duration of a call, without the time to free its result."""
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    del result
    return elapsed


def saving(model: torch.nn.Module, runtime: str, references: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return median durations in seconds of `Run.save` and of the references, measured in alternating rounds."""
    times: dict[str, list[float]] = {name: [] for name in ("save", "write", *references)}
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            runtime={"kind": runtime}, persistence={"root_data_dir": root, "keep_last": 1}, sinks={}
        )
        with trieye.Run(config) as run:
            for _ in run.steps(ROUNDS + 1):
                for name, call in references.items():
                    times[name].append(seconds(call))
                start = time.perf_counter()
                handle = run.save(model=model)
                times["save"].append(time.perf_counter() - start)
                handle.wait()  # keeps disk writes out of the next measurement
                times["write"].append(time.perf_counter() - start)
        load_s = seconds(lambda: load_checkpoint(run.dir))
    # the first round also allocates memory
    return {name: statistics.median(values[1:]) for name, values in times.items()} | {"load": load_s}


def main() -> None:
    """Measure alternating rounds, so that other load affects all figures, and print one JSON line."""
    model = make_model()
    flat = np.concatenate([tensor.numpy().reshape(-1) for tensor in model.state_dict().values()])
    references: dict[str, Callable[[], Any]] = {"memcpy": flat.copy, "encode": lambda: encode({"model": model})}
    medians = {runtime: saving(model, runtime, references) for runtime in ("local", "ray")}
    ratios = {runtime: times["save"] / times["memcpy"] for runtime, times in medians.items()}
    report = {
        "benchmark": "save_blocking",
        "size_mb": round(flat.nbytes / 1e6, 1),
        "ratio": round(max(ratios.values()), 2),
        "ratios": {runtime: round(ratio, 2) for runtime, ratio in ratios.items()},
        "goal": f"ratio <= {GOAL}",
        "met": max(ratios.values()) <= GOAL,
        "rounds": ROUNDS,
        **{
            f"{runtime}_ms": {name: round(1e3 * elapsed, 1) for name, elapsed in times.items()}
            for runtime, times in medians.items()
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
