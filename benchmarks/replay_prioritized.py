"""Drawing 256 rows by priority, then setting their priorities: against tianshou and cpprb in the same run.

The peers are measured if an environment at `.peers/replay` has them (`pip install tianshou==2.0.1 cpprb==11.0.0`);
a process there and this one take turns. Prints one JSON line; figures are million rows per CPU second, medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
SHAPES = {"cartpole": ((4,), np.float32, 100_000), "million": ((4,), np.float32, 1_000_000)}
IMAGES = {"atari": ((84, 84, 4), np.uint8, 3_000)}
PRIORITIES = np.random.default_rng(0).random(BATCH)
# notes/replay.md: sample and update together
LEAST_RATIOS = {"cartpole": ("tianshou", 1.1), "atari": ("cpprb", 1.0)}
LEAST_AT_A_MILLION = 1.0


def ours(shape: tuple[int, ...], dtype: Any, capacity: int) -> Callable[[], object]:
    """Return a step of trieye."""
    from trieye.replay import ReplayBuffer

    buffer = ReplayBuffer(capacity, sampler="prioritized", sampler_options={"alpha": 0.6, "beta": 0.4})
    rows = {"obs": np.ones((1000, *shape), dtype), "next_obs": np.ones((1000, *shape), dtype)}
    rows |= {"action": np.ones(1000, np.int64), "reward": np.ones(1000, np.float32), "done": np.zeros(1000, np.bool_)}
    for _ in range(capacity // 1000):
        buffer.extend(rows)
    batch = buffer.sample(BATCH)

    def step() -> None:
        nonlocal batch
        batch = buffer.sample(BATCH, out=batch)
        buffer.update_priorities(batch.ids, PRIORITIES)

    return step


def tianshou(shape: tuple[int, ...], dtype: Any, capacity: int) -> Callable[[], object]:
    """Return a step of tianshou."""
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(capacity, alpha=0.6, beta=0.4)
    obs = np.ones(shape, dtype)
    for _ in range(capacity):
        buffer.add(Batch(obs=obs, act=1, rew=1.0, terminated=False, truncated=False, obs_next=obs, info={}))

    def step() -> None:
        _, indices = buffer.sample(BATCH)
        buffer.update_weight(indices, PRIORITIES)

    return step


def cpprb(shape: tuple[int, ...], dtype: Any, capacity: int) -> Callable[[], object]:
    """Return a step of cpprb."""
    from cpprb import PrioritizedReplayBuffer

    keys = {"obs": {"shape": shape, "dtype": dtype}, "next_obs": {"shape": shape, "dtype": dtype}}
    keys |= {"act": {"dtype": np.int64}, "rew": {"dtype": np.float32}, "done": {"dtype": np.bool_}}
    buffer = PrioritizedReplayBuffer(capacity, keys, alpha=0.6)
    rows = {key: np.ones((1000, *spec.get("shape", ())), spec["dtype"]) for key, spec in keys.items()}
    for _ in range(capacity // 1000):
        buffer.add(**rows)

    def step() -> None:
        drawn = buffer.sample(BATCH, beta=0.4)
        buffer.update_priorities(drawn["indexes"], PRIORITIES)

    return step


def measured(steps: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return million rows per second of each step."""
    figures = {}
    for name, step in steps.items():
        step()
        calls, start = 0, time.process_time()  # all of it is computing, and whoever else computes is left out
        while (elapsed := time.process_time() - start) < seconds:
            for _ in range(10):
                step()
            calls += 10
        figures[name] = calls * BATCH / elapsed / 1e6
    return figures


def answer(seconds: float) -> None:
    """Print figures of the peers for each line of the input."""
    cases = {"cartpole": SHAPES["cartpole"], **IMAGES}
    steps = {f"{case}/{make.__name__}": make(*cases[case]) for case in cases for make in (tianshou, cpprb)}
    for _ in sys.stdin:
        print(json.dumps(measured(steps, seconds)), flush=True)


def take_turns(peer: Path, rounds: int, seconds: float) -> list[dict[str, float]]:
    """Measure both sides in turn and return the figures of each round."""
    steps = {f"{case}/trieye": ours(*spec) for case, spec in {**SHAPES, **IMAGES}.items()}
    if not peer.exists():
        return [measured(steps, seconds) for _ in range(rounds)]
    figures = []
    command = [peer, __file__, "--peer", "--seconds", str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(rounds):
            own = measured(steps, seconds)
            print(file=process.stdin, flush=True)
            figures.append({**own, **json.loads(process.stdout.readline())})
        process.stdin.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=ROOT / ".peers/replay/bin/python", help="Python of the peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure of a round")
    parser.add_argument("--peer", action="store_true", help="measure the peers; this script starts itself so")
    options = parser.parse_args()
    if options.peer:
        answer(options.seconds)
        return
    rounds = take_turns(options.python, options.rounds, options.seconds)
    medians = {name: statistics.median(figures[name] for figures in rounds) for name in rounds[0]}
    # of the figures of the same round: both sides had the same machine then
    ratios = {
        f"{case}/{peer}": statistics.median(figures[f"{case}/trieye"] / figures[f"{case}/{peer}"] for figures in rounds)
        for case, peer in (name.split("/") for name in rounds[0])
        if peer != "trieye"
    }
    goals = {f"{case}/{peer}": least for case, (peer, least) in LEAST_RATIOS.items() if f"{case}/{peer}" in ratios}
    met = medians["million/trieye"] >= LEAST_AT_A_MILLION and all(ratios[name] >= goals[name] for name in goals)
    figures = {"benchmark": "replay_prioritized", "unit": "million rows/CPU s, sample and update of 256"}
    rounded = {name: round(value, 3) for name, value in medians.items()}
    goal = {**{name: f"ratio >= {least}" for name, least in goals.items()}, "million/trieye": "rows/s >= 1"}
    print(
        json.dumps(
            {**figures, **rounded, "ratio": {k: round(v, 2) for k, v in ratios.items()}, "goal": goal, "met": met}
        )
    )


if __name__ == "__main__":
    main()
