"""Overhead of the training loop per step: an experiment with an empty `step`, against calling `step` directly.

Goal: less than 0.1 ms. A trainer that sleeps while it polls for data takes 1001 ms (`contract_ms`, measured once with
Trinity-RFT 0.2.1 and an empty step). Prints one JSON line.
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
    """Record the times of the first and the last step."""

    start = end = 0.0

    def step(self) -> dict[str, float | None]:
        """Return no metrics."""
        Idle.end = time.perf_counter()
        Idle.start = Idle.start or Idle.end
        return {}

    def save_checkpoint(self, checkpoint_dir: Any) -> dict[str, int]:  # noqa: ARG002 - required by the interface
        """Return a state of one number."""
        return {"nothing": 0}

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Ignore the state."""


def loop() -> float:
    """Return the time per step in the loop, in ms."""
    Idle.start = 0.0
    with tempfile.TemporaryDirectory() as root:
        config = trieye.TrieyeConfig(
            persistence={"root_data_dir": root, "checkpoint_save_freq_steps": 0},
            runtime={"kind": "local"},
            sinks={},
            loop={"steps": STEPS},
        )
        trieye.run_experiment(Idle, config)
    return (Idle.end - Idle.start) / STEPS * 1e3


def bare() -> float:
    """Return the time per direct call, in ms."""
    idle, start = Idle(trieye.TrieyeConfig()), time.perf_counter()
    for _ in range(STEPS):
        idle.step()
    return (time.perf_counter() - start) / STEPS * 1e3


def main() -> None:
    """Measure alternating rounds and print one JSON line."""
    pairs = [(loop(), bare()) for _ in range(ROUNDS)]
    loop_ms, bare_ms = (statistics.median(times) for times in zip(*pairs, strict=True))
    overhead_ms = statistics.median(step_ms - call_ms for step_ms, call_ms in pairs)
    line = {"loop_ms": round(loop_ms, 4), "bare_ms": round(bare_ms, 4), "overhead_ms": round(overhead_ms, 4)}
    print(json.dumps({**line, "contract_ms": CONTRACT_MS, "goal_ms": GOAL_MS, "met": overhead_ms < GOAL_MS}))


if __name__ == "__main__":
    main()
