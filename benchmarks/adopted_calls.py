"""A call of `add_scalar` and of `wandb.log` beside the original's, offline, in the same run.

Goal: no slower than the original. The value is a tensor, as such programs have it. Calls come in bursts, as between two
updates, and what is done on other threads is waited for between them.
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
    """Return microseconds for one call of a burst."""
    began = time.perf_counter()
    for step in range(first, first + CALLS):
        call(step)
    return (time.perf_counter() - began) / CALLS * 1e6


def in_turns(ours: Callable[[int], Any], theirs: Callable[[int], Any], settle: Callable[[], Any]) -> dict[str, float]:
    """Return the medians of both, and that of their ratios."""
    pairs = []
    for number in range(ROUNDS):
        first = number * CALLS
        pairs.append((per_call_us(ours, first), per_call_us(theirs, first)))
        settle()
    own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return {"ours_us": round(own, 2), "theirs_us": round(other, 2), "ratio": round(ratio, 3)}


def add_scalar() -> dict[str, float]:
    """Compare `SummaryWriter.add_scalar`."""
    from torch.utils.tensorboard import SummaryWriter as TorchWriter

    from trieye.integrations.tensorboard import SummaryWriter

    value = torch.tensor(0.5)
    with SummaryWriter("runs/ours") as ours, TorchWriter("theirs") as theirs:  # type: ignore[no-untyped-call]
        return in_turns(
            lambda step: ours.add_scalar("losses/td", value, step),
            lambda step: theirs.add_scalar("losses/td", value, step),
            lambda: (ours.flush(), theirs.flush()),
        )


def log() -> dict[str, float]:
    """Compare `log` of a dict of two."""
    import wandb as real

    from trieye.integrations import wandb

    value = torch.tensor(0.5)
    ours = wandb.init(project="bench", id="ours")
    theirs = real.init(project="bench", mode="offline", dir=".")
    found = in_turns(
        lambda step: ours.log({"loss": value, "return": 1.5}, step=step),
        lambda step: theirs.log({"loss": value, "return": 1.5}, step=step),
        ours.run.flush,
    )
    theirs.finish()
    ours.finish()
    return found


def main() -> None:
    """Print one JSON line."""
    os.environ["WANDB_SILENT"] = "true"
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        found = {"add_scalar": add_scalar(), "log": log()}
        os.chdir(before)
    met = all(held["ratio"] <= GOAL for held in found.values())
    print(json.dumps({"benchmark": "adopted_calls", **found, "goal": GOAL, "met": met}))


if __name__ == "__main__":
    main()
