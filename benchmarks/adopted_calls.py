"""Latency of `add_scalar` and `wandb.log` through trieye's drop-in replacements, against the originals, offline.

Goal: no slower than the original. The logged value is a tensor, as in a typical training loop. Calls come in bursts, as
between two updates; background threads are flushed after each pair of bursts.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CALLS = 1_000
ROUNDS = 9
GOAL = 1.0


def per_call_us(call: Callable[[int], Any], first: int) -> float:
    """Return the mean duration of a call in a burst, in microseconds."""
    start = time.perf_counter()
    for step in range(first, first + CALLS):
        call(step)
    return (time.perf_counter() - start) / CALLS * 1e6


def compare(ours: Callable[[int], Any], theirs: Callable[[int], Any], flush: Callable[[], Any]) -> dict[str, float]:
    """Return the median latency of both in alternating bursts, and the median of their ratios."""
    pairs = []
    for number in range(ROUNDS):
        first = number * CALLS
        pairs.append((per_call_us(ours, first), per_call_us(theirs, first)))
        flush()
    ours_us, theirs_us = (statistics.median(latencies) for latencies in zip(*pairs, strict=True))
    ratio = statistics.median(our_us / their_us for our_us, their_us in pairs)
    return {"ours_us": round(ours_us, 2), "theirs_us": round(theirs_us, 2), "ratio": round(ratio, 3)}


def add_scalar() -> dict[str, float]:
    """Compare `SummaryWriter.add_scalar` with torch's."""
    from torch.utils.tensorboard import SummaryWriter as TorchWriter

    from trieye.integrations.tensorboard import SummaryWriter

    value = torch.tensor(0.5)
    with SummaryWriter("runs/ours") as ours, TorchWriter("theirs") as theirs:

        def flush() -> None:
            ours.flush()
            theirs.flush()

        return compare(
            lambda step: ours.add_scalar("losses/td", value, step),
            lambda step: theirs.add_scalar("losses/td", value, step),
            flush,
        )


def log() -> dict[str, float]:
    """Compare `wandb.log` of a dict of two values."""
    import wandb as original

    from trieye.integrations import wandb

    value = torch.tensor(0.5)
    ours = wandb.init(project="bench", id="ours")
    theirs = original.init(project="bench", mode="offline", dir=".")
    latencies = compare(
        lambda step: ours.log({"loss": value, "return": 1.5}, step=step),
        lambda step: theirs.log({"loss": value, "return": 1.5}, step=step),
        ours.run.flush,
    )
    theirs.finish()
    ours.finish()
    return latencies


def main() -> None:
    """Print one JSON line."""
    os.environ["WANDB_SILENT"] = "true"
    working_dir = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        figures = {"add_scalar": add_scalar(), "log": log()}
        os.chdir(working_dir)
    met = all(latencies["ratio"] <= GOAL for latencies in figures.values())
    print(json.dumps({"benchmark": "adopted_calls", **figures, "goal": GOAL, "met": met}))


if __name__ == "__main__":
    main()
