"""What `RunCallback` costs a training of stable-baselines3: its time beside the training without it, and its saves.

Goals: at most 2 % of the time of a training; of a second save, what is new in the replay and not all of it.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm

from trieye.integrations.opening import AdoptedRun
from trieye.integrations.sb3 import RunCallback

GOAL, ROUNDS = 1.02, 7
TIMESTEPS = {"dqn": 12_000, "ppo": 16_384}


def make(algorithm: str) -> BaseAlgorithm:
    """Return a model as the documentation of stable-baselines3 makes it."""
    if algorithm == "ppo":
        return PPO("MlpPolicy", "CartPole-v1", seed=0)
    return DQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=1000)


def seconds(algorithm: str, name: str | None) -> tuple[float, float]:
    """Return the seconds of a training and those of its process, with a callback if there is a name for a run."""
    model = make(algorithm)
    callback = None if name is None else RunCallback(name, save_freq=5000)
    began, used = time.perf_counter(), time.process_time()
    model.learn(TIMESTEPS[algorithm], callback=callback)
    return time.perf_counter() - began, time.process_time() - used


def cost(algorithm: str) -> dict[str, Any]:
    """Return the median of the ratios of times, with the callback and without."""
    seconds(algorithm, None)
    pairs = [(seconds(algorithm, None), seconds(algorithm, f"{algorithm}{number}")) for number in range(ROUNDS)]
    ratios = [ours[0] / plain[0] for plain, ours in pairs]
    cpu = [ours[1] / plain[1] for plain, ours in pairs]
    return {
        "seconds": round(statistics.median(plain[0] for plain, _ in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "cpu_ratio": round(statistics.median(cpu), 3),
    }


def saved_bytes() -> dict[str, Any]:
    """Return the bytes of parts of the replay that two saves wrote, 20,000 timesteps apart in a replay of 100,000."""
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=200_000, buffer_size=100_000)
    model.learn(100_000)
    callback = RunCallback("saves", save_freq=20_000)
    model.learn(2000, callback=callback, reset_num_timesteps=False)
    first = files_in(callback.run.dir)
    model.learn(20_000, callback=callback, reset_num_timesteps=False)
    second = files_in(callback.run.dir)
    return {
        "first": sum(first.values()),
        "second": sum(size for file, size in second.items() if file not in first),
    }


def files_in(directory: Path) -> dict[tuple[int, int], int]:
    """Return the bytes of each file of the checkpoints of a run, by what is another file: inode, and when written."""
    found = [path.stat() for path in (directory / "checkpoints").rglob("*") if path.is_file()]
    return {(held.st_ino, held.st_mtime_ns): held.st_size for held in found}


def main() -> None:
    """Print one JSON line."""
    torch.set_num_threads(1)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        found: dict[str, Any] = {algorithm: cost(algorithm) for algorithm in TIMESTEPS}
        found["saved_bytes"] = saved_bytes()
        for held in list(AdoptedRun._open.values()):  # noqa: SLF001 - what the end of a program does
            held.close()
        os.chdir(before)
    met = all(found[algorithm]["ratio"] <= GOAL for algorithm in TIMESTEPS)
    met = met and found["saved_bytes"]["second"] <= 0.3 * found["saved_bytes"]["first"]
    print(json.dumps({"benchmark": "sb3_callback", **found, "goal": GOAL, "met": met}))


if __name__ == "__main__":
    main()
