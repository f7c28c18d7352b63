"""Overhead of `RunCallback` in a stable-baselines3 training: duration, and bytes written by saves.

Goals: at most 2 % of the training time; a second save writes only the new rows of the replay.
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
    """Return a model with the arguments of the examples in the documentation of stable-baselines3."""
    if algorithm == "ppo":
        return PPO("MlpPolicy", "CartPole-v1", seed=0)
    return DQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=1000)


def seconds(algorithm: str, name: str | None) -> tuple[float, float, float]:
    """Train once; return wall-clock time, CPU time of the calling thread and CPU time of the process, in seconds.

    The run is closed afterwards, so it cannot slow down the next training.

    Args:
        algorithm: A key of `TIMESTEPS`.
        name: Name of the run that the callback logs to; None trains without a callback.
    """
    model = make(algorithm)
    starts = time.perf_counter(), time.thread_time(), time.process_time()
    callback = None if name is None else RunCallback(name, save_freq=5000)
    model.learn(TIMESTEPS[algorithm], callback=callback)
    wall_s, thread_s, process_s = time.perf_counter(), time.thread_time(), time.process_time()
    close_runs()
    return wall_s - starts[0], thread_s - starts[1], process_s - starts[2]


def close_runs() -> None:
    """Close all open runs, which otherwise stay open until the program exits."""
    for adopted in list(AdoptedRun._open.values()):  # noqa: SLF001 - no public equivalent
        adopted.close()


def overhead(algorithm: str) -> dict[str, Any]:
    """Return the median ratios of training with and without the callback; the order alternates."""
    seconds(algorithm, f"{algorithm}-warm")  # imports MLflow and creates its tables
    pairs = []
    for number in range(ROUNDS):
        names = [None, f"{algorithm}{number}"]
        durations = {name: seconds(algorithm, name) for name in (names if number % 2 else names[::-1])}
        pairs.append([durations[name] for name in names])
    ratios = [statistics.median(ours[clock] / plain[clock] for plain, ours in pairs) for clock in range(3)]
    plain_s = statistics.median(plain[0] for plain, _ in pairs)
    labels = ("ratio", "own_thread_ratio", "cpu_ratio")
    return {"seconds": round(plain_s, 2), **{name: round(ratio, 3) for name, ratio in zip(labels, ratios, strict=True)}}


def saved_bytes() -> dict[str, Any]:
    """Return the bytes written by two saves of a replay of 100,000 rows, 20,000 timesteps apart."""
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=200_000, buffer_size=100_000)
    model.learn(100_000)
    callback = RunCallback("saves", save_freq=20_000)
    model.learn(2000, callback=callback, reset_num_timesteps=False)
    first = files_in(callback.run.dir)
    model.learn(20_000, callback=callback, reset_num_timesteps=False)
    second = files_in(callback.run.dir)
    return {
        "first": sum(first.values()),
        "second": sum(size for key, size in second.items() if key not in first),
    }


def files_in(directory: Path) -> dict[tuple[int, int], int]:
    """Return the sizes of a run's checkpoint files in bytes; inode and modification time identify a file."""
    stats = [path.stat() for path in (directory / "checkpoints").rglob("*") if path.is_file()]
    return {(stat.st_ino, stat.st_mtime_ns): stat.st_size for stat in stats}


def main() -> None:
    """Print one JSON line."""
    torch.set_num_threads(1)
    working_dir = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        figures: dict[str, Any] = {algorithm: overhead(algorithm) for algorithm in TIMESTEPS}
        figures["saved_bytes"] = saved_bytes()
        close_runs()
        os.chdir(working_dir)
    met = all(figures[algorithm]["ratio"] <= GOAL for algorithm in TIMESTEPS)
    met = met and figures["saved_bytes"]["second"] <= 0.3 * figures["saved_bytes"]["first"]
    print(json.dumps({"benchmark": "sb3_callback", **figures, "goal": GOAL, "met": met}))


if __name__ == "__main__":
    main()
