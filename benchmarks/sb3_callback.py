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
TIMESTEPS = {"dqn": 24_000, "ppo": 16_384}


def make(algorithm: str) -> BaseAlgorithm:
    """Return a model as the documentation of stable-baselines3 makes it."""
    if algorithm == "ppo":
        return PPO("MlpPolicy", "CartPole-v1", seed=0)
    return DQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=1000)


def seconds(algorithm: str, name: str | None) -> tuple[float, float, float]:
    """Return the seconds of one training: wall clock, CPU of its own thread, CPU of the process.

    The run is closed afterwards, so it cannot slow down the next training.

    Args:
        algorithm: A key of `TIMESTEPS`.
        name: Name of the run that the callback logs to; None trains without a callback.
    """
    model = make(algorithm)
    began, own, whole = time.perf_counter(), time.thread_time(), time.process_time()
    callback = None if name is None else RunCallback(name, save_freq=5000)
    model.learn(TIMESTEPS[algorithm], callback=callback)
    took = time.perf_counter() - began, time.thread_time() - own, time.process_time() - whole
    close_runs()
    return took


def close_runs() -> None:
    """Close every open run, as the end of a program does."""
    for adopted in list(AdoptedRun._open.values()):  # noqa: SLF001 - it has no public name
        adopted.close()


def cost(algorithm: str) -> dict[str, Any]:
    """Return median ratios with and without the callback; the two alternate in running first."""
    seconds(algorithm, f"{algorithm}-warm")  # imports MLflow and creates its tables
    pairs = []
    for number in range(ROUNDS):
        names = [None, f"{algorithm}{number}"]
        told = {name: seconds(algorithm, name) for name in (names if number % 2 else names[::-1])}
        pairs.append([told[name] for name in names])
    ratios = [statistics.median(ours[kind] / plain[kind] for plain, ours in pairs) for kind in range(3)]
    plain_s = statistics.median(plain[0] for plain, _ in pairs)
    labels = ("ratio", "own_thread_ratio", "cpu_ratio")
    return {"seconds": round(plain_s, 2), **{name: round(ratio, 3) for name, ratio in zip(labels, ratios, strict=True)}}


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
        close_runs()
        os.chdir(before)
    met = all(found[algorithm]["ratio"] <= GOAL for algorithm in TIMESTEPS)
    met = met and found["saved_bytes"]["second"] <= 0.3 * found["saved_bytes"]["first"]
    print(json.dumps({"benchmark": "sb3_callback", **found, "goal": GOAL, "met": met}))


if __name__ == "__main__":
    main()
