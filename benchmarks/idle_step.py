"""What the loop costs for each step of an experiment whose `step` does nothing, against calling that method bare.

Goal: less than 0.1 ms; a trainer that sleeps between two looks at its data takes 1001 ms (`contract_ms`, measured once
with Trinity-RFT 0.2.1 and a step that costs nothing). Prints one JSON line.
"""

import json
import statistics
import tempfile
import time
from typing import Any

import trieye

STEPS = 30_000
ROUNDS = 5
GOAL_MS = 0.1
CONTRACT_MS = 1001.0


class Idle(trieye.Experiment[trieye.TrieyeConfig]):
    """Does nothing, and notes when it began and ended."""

    began = ended = 0.0

    def step(self) -> dict[str, float | None]:
        """Return no values."""
        Idle.ended = time.perf_counter()
        Idle.began = Idle.began or Idle.ended
        return {}

    def save_checkpoint(self, checkpoint_dir: Any) -> dict[str, int]:  # noqa: ARG002 - of the interface
        """Return a little."""
        return {"nothing": 0}

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take it back."""


def in_the_loop() -> float:
    """Return ms for one step of a run."""
    Idle.began = 0.0
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            persistence={"root_data_dir": root, "checkpoint_save_freq_steps": 0},
            runtime={"kind": "local"},
            sinks={},
            loop={"steps": STEPS},
        )
        trieye.run_experiment(Idle, config)
    return (Idle.ended - Idle.began) / STEPS * 1e3


def bare() -> float:
    """Return ms for one call."""
    idle, began = Idle(trieye.TrieyeConfig()), time.perf_counter()
    for _ in range(STEPS):
        idle.step()
    return (time.perf_counter() - began) / STEPS * 1e3


def main() -> None:
    """Take both in turns and print one line."""
    pairs = [(in_the_loop(), bare()) for _ in range(ROUNDS)]
    loop_ms, bare_ms = (statistics.median(side) for side in zip(*pairs, strict=True))
    overhead_ms = statistics.median(loop - call for loop, call in pairs)
    line = {"loop_ms": round(loop_ms, 4), "bare_ms": round(bare_ms, 4), "overhead_ms": round(overhead_ms, 4)}
    print(json.dumps({**line, "contract_ms": CONTRACT_MS, "goal_ms": GOAL_MS, "met": overhead_ms < GOAL_MS}))


if __name__ == "__main__":
    main()
