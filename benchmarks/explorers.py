"""Explorers against a single process, TorchRL and RLlib: sampling, training, and recovery from failures.

Measures three things. Sampling: environment steps per second of this process (a hand-written loop, and ours), of two
explorers in Ray, and of two processes of each peer, in alternating turns. Training: PPO's environment steps per CPU
second of all processes. Recovery: how long the learner stalls after a sampling process is killed or its environment
raises. Goals: 0.95 times the hand-written loop; 1.35 times a single process, 1.6 times if a step takes 1 ms of CPU
time, and 0.85 times per CPU second; 6 times TorchRL; in training, 3 times RLlib and 1.4 times stable-baselines3; stalls
of at most 1 s. Prints one JSON line.
"""

import argparse
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import psutil  # type: ignore[import-untyped]  # stubs would be one more package
from peer.environments import REPLAY, installed
from training import SLUG, bake, theirs
from training import ours as our_training

GOALS = {
    "local / bare": 0.95,
    "explorers / local": 1.35,
    "explorers / local, each CPU": 0.85,
    "explorers / local, 1 ms": 1.6,
    "explorers / torchrl": 6.0,
    "ppo local / rllib": 3.0,
    "ppo explorers / rllib_workers": 3.0,
    "ppo local / sb3": 1.4,
}
GOAL_STALL_S = 1.0
ASYNC = {"runtime": {"kind": "ray"}, "sync": {"style": "fully_async"}}
PAUSE_S = 0.3
"""Pause after a turn, so that workers finish the fragments that they collect ahead."""


class Speed(NamedTuple):
    """Environment steps per second, and per CPU second of this process and its descendants."""

    per_s: float
    per_cpu_s: float


def our_samples(root: str, *, explorers: int, **env: Any) -> Iterator[int]:
    """Yield the number of environment steps so far of an engine that only collects; 0 explorers: in this process."""
    engine = our_engine(root, explorers=explorers, **env)
    try:
        while True:
            engine.advance()
            yield engine.env_steps
    finally:
        engine.cleanup()


def our_engine(root: str, *, explorers: int, **env: Any) -> Any:
    """Return an engine of the template's PPO without updates; `env` replaces keys of its environment config."""
    config_class, ppo = import_module(f"{SLUG}.config").TrainConfig, import_module(f"{SLUG}.ppo").PPO

    class Collecting(ppo):  # type: ignore[misc, valid-type]
        def step(self) -> dict[str, float]:
            self.collect()
            return {}

    config = config_class(
        agent={"kind": "ppo", "rollout_steps": 64},
        env={"id": "CartPole-v1", "num": 8, **env},
        explorer={"num": explorers},
        run_name=f"samples_{explorers}_{len(env)}",
        persistence={"root_data_dir": root},
        **(ASYNC if explorers else {"runtime": {"kind": "local"}}),
    )
    return Collecting(config)


class Side:
    """A sampler or trainer that alternates with others.

    Args:
        step_counts: Generator of the number of environment steps so far.
    """

    def __init__(self, step_counts: Iterator[int]) -> None:
        self._step_counts = step_counts
        self.count = next(step_counts)

    def turn(self, seconds: float) -> Speed:
        """Advance for some time and return the speed."""
        first_count, first_cpu = self.count, cpu_s()
        self._advance(4)  # consumes fragments that were collected ahead
        start_count, start = self.count, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self._advance(1)
        elapsed = time.perf_counter() - start
        rate = (self.count - start_count) / elapsed
        time.sleep(PAUSE_S)  # fragments collected ahead in the pause offset those consumed above
        return Speed(rate, (self.count - first_count) / (cpu_s() - first_cpu))

    def _advance(self, times: int) -> None:
        for _ in range(times):
            self.count = next(self._step_counts)

    def close(self) -> None:
        """Close the generator."""
        self._step_counts.close()  # type: ignore[attr-defined]  # a generator


def cpu_s() -> float:
    """Return the CPU time of this process and its descendants in seconds."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])  # includes children that have exited
        except psutil.Error:
            continue
    return total


def in_turns(
    makers: dict[str, Callable[[], Iterator[int]]], rounds: int, seconds: float, skipped: dict[str, str]
) -> list[dict[str, Speed]]:
    """Return the speed of each side in each round; record failing sides and their errors in `skipped`."""
    sides = {}
    for name, make in makers.items():
        try:
            side = Side(make())
            side.turn(1.0)
        except Exception as error:  # noqa: BLE001 - a peer that is not installed or fails
            skipped[name] = f"{type(error).__name__}: {error}"[:300]
        else:
            sides[name] = side
    speeds = [{name: side.turn(seconds) for name, side in sides.items()} for _ in range(rounds)]
    for side in sides.values():
        side.close()
    return speeds


def medians(rounds: list[dict[str, Speed]], field: str) -> dict[str, float]:
    """Return the median speed of each side."""
    return {name: statistics.median(getattr(speeds[name], field) for speeds in rounds) for name in rounds[0]}


def ratio_of(rounds: list[dict[str, Speed]], side: str, other: str, field: str) -> float | None:
    """Return the median ratio of two sides; None if a side was skipped."""
    if not {side, other} <= rounds[0].keys():
        return None
    return float(statistics.median(getattr(speeds[side], field) / getattr(speeds[other], field) for speeds in rounds))


def processes(actor_class: str) -> dict[int, psutil.Process]:
    """Return the processes of an actor class, by pid."""
    by_pid = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command_line = process.cmdline()
        except psutil.Error:
            continue
        if command_line and command_line[0].startswith(f"ray::{actor_class}"):
            by_pid[process.pid] = process
    return by_pid


def longest_s(advance: Callable[[], object], until: Callable[[float], bool]) -> float:
    """Advance until a condition on the elapsed seconds holds; return the maximum time between two steps."""
    times = [time.perf_counter()]
    while not until(times[-1] - times[0]):
        advance()
        times.append(time.perf_counter())
    return max(later - earlier for earlier, later in pairwise(times))


def our_stalls(root: str, kills: int) -> dict[str, float]:
    """Return the longest stalls of the learner without failures, after kills and after exceptions, in ms."""
    from peer.explorer_sides import FAILS

    flag, before = Path(root, "fail"), set(processes("ExplorerActor"))
    config_class, ppo = import_module(f"{SLUG}.config").TrainConfig, import_module(f"{SLUG}.ppo").PPO
    agent = {"kind": "ppo", "rollout_steps": 32, "batch_size": 256, "epochs": 20}
    config = config_class(
        agent=agent, env={"id": FAILS, "num": 4, "kwargs": {"flag": str(flag)}}, explorer={"num": 2},
        run_name="stalls", persistence={"root_data_dir": root}, **ASYNC,
    )  # fmt: skip
    engine, metrics = ppo(config), dict[str, float]()

    def advance() -> None:
        metrics.update(engine.advance())

    def both_alive_after(restarts: int) -> Callable[[float], bool]:
        return lambda _: metrics.get("explorer/restarts", 0) >= restarts and metrics.get("explorer/alive", 0) == 2

    longest_s(advance, lambda elapsed: elapsed > 3)  # until both explorers have started
    undisturbed, killed, raised = longest_s(advance, lambda elapsed: elapsed > 5), [], []
    for number in range(kills):
        pids = [pid for pid in processes("ExplorerActor") if pid not in before]
        os.kill(pids[number % len(pids)], signal.SIGKILL)
        killed.append(longest_s(advance, both_alive_after(number + 1)))
        longest_s(advance, lambda elapsed: elapsed > 3)  # lets both collect normally again
    for _ in range(kills):
        flag.touch()
        raised.append(longest_s(advance, lambda _: not flag.exists()))
        raised[-1] = max(raised[-1], longest_s(advance, lambda elapsed: elapsed > 1))
    restarts = metrics["explorer/restarts"]
    engine.cleanup()
    return {
        "undisturbed": 1e3 * undisturbed,
        "killed": 1e3 * statistics.median(killed),
        "killed_worst": 1e3 * max(killed),
        "raised": 1e3 * statistics.median(raised),
        "restarts": restarts,
    }


def rllib_stalls(root: str) -> dict[str, float]:
    """Return the longest iteration of RLlib without failures, after a kill and after an exception, in ms."""
    from peer.explorer_sides import FAILS, rllib_config

    flag = Path(root, "fail_rllib")
    algorithm = rllib_config(FAILS, workers=2, envs=4, steps=32, flag=str(flag)).build_algo()
    longest_s(algorithm.train, lambda elapsed: elapsed > 3)
    stalls = {"undisturbed": longest_s(algorithm.train, lambda elapsed: elapsed > 5)}
    os.kill(next(iter(processes("SingleAgentEnvRunner"))), signal.SIGKILL)
    stalls["killed"] = longest_s(algorithm.train, lambda elapsed: elapsed > 10)
    flag.touch()
    stalls["raised"] = longest_s(algorithm.train, lambda elapsed: elapsed > 10)
    algorithm.stop()
    return {name: 1e3 * elapsed for name, elapsed in stalls.items()}


def against_bare(root: str, rounds: int) -> dict[str, float]:
    """Return the sampling speeds of this process and of a hand-written loop per CPU second, and their ratio.

    Turns are very short and only CPU time counts, because other load on the machine would hide the difference.
    """
    import torch
    from peer.explorer_sides import bare

    import trieye

    engine = our_engine(root, explorers=0)
    ctx = trieye.Context(explore=True, env_steps=0, generator=torch.Generator().manual_seed(0))
    sides = {"bare": bare(engine.policy, ctx), "local": our_samples(root, explorers=0)}
    measured: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        speeds = {}
        for name, side in sides.items():
            first, start = next(side), time.process_time()
            for _ in range(8):
                last = next(side)
            speeds[name] = (last - first) / (time.process_time() - start)
        measured.append(speeds)
    ratio = statistics.median(speeds["local"] / speeds["bare"] for speeds in measured[1:])
    return {name: statistics.median(speeds[name] for speeds in measured[1:]) for name in sides} | {"ratio": ratio}


def sampling(root: str, rounds: int, skipped: dict[str, str]) -> list[dict[str, Speed]]:
    """Return the sampling speed of each side in each round."""
    from peer import explorer_sides as peers

    sides: dict[str, Callable[[], Iterator[int]]] = {
        "local": lambda: our_samples(root, explorers=0),
        "explorers": lambda: our_samples(root, explorers=2),
        "torchrl": lambda: peers.torchrl(is_async=True),
        "torchrl_sync": lambda: peers.torchrl(is_async=False),
        "rllib": peers.rllib_samples,
    }
    return in_turns(sides, rounds, 1.0, skipped)


def sampling_slow(root: str, rounds: int, skipped: dict[str, str]) -> list[dict[str, Speed]]:
    """Return the sampling speeds of this process and two explorers if a step takes 1 ms of CPU time."""
    from peer.explorer_sides import SLOW

    sides: dict[str, Callable[[], Iterator[int]]] = {
        "local": lambda: our_samples(root, explorers=0, id=SLOW, num=1),
        "explorers": lambda: our_samples(root, explorers=2, id=SLOW, num=1),
    }
    return in_turns(sides, rounds, 4.0, skipped)


def training(root: str, rounds: int, skipped: dict[str, str]) -> list[dict[str, Speed]]:
    """Return the training speed of PPO on each side in each round."""
    from peer import explorer_sides as peers

    explorers: dict[str, Any] = {**ASYNC, "explorer": {"num": 2}, "env": {"id": "CartPole-v1", "num": 4}}
    sides: dict[str, Callable[[], Iterator[int]]] = {
        "local": lambda: our_training("ppo", Path(root)),
        "explorers": lambda: our_training("ppo", Path(root), run_name="ppo_explorers", **explorers),
        "sb3": lambda: theirs("ppo", 1),
        "rllib": lambda: peers.rllib_ppo(workers=0),
        "rllib_workers": lambda: peers.rllib_ppo(workers=2),
    }
    return in_turns(sides, rounds, 3.0, skipped)


def measure(root: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    load, skipped = os.getloadavg()[0], dict[str, str]()
    alone = against_bare(root, 8 * options.rounds)
    samples = sampling(root, options.rounds, skipped)
    slow = sampling_slow(root, options.ppo_rounds, skipped)
    ppo = training(root, options.ppo_rounds, skipped)
    ours = our_stalls(root, options.kills)
    stalls = {"trieye": ours} if "rllib" in skipped else {"trieye": ours, "rllib": rllib_stalls(root)}
    speeds = medians(samples, "per_s")
    torchrl = max(("torchrl", "torchrl_sync"), key=lambda name: speeds.get(name, 0.0))
    ratio = {
        "local / bare": alone.pop("ratio"),
        "explorers / local": ratio_of(samples, "explorers", "local", "per_s"),
        "explorers / local, each CPU": ratio_of(samples, "explorers", "local", "per_cpu_s"),
        "explorers / local, 1 ms": ratio_of(slow, "explorers", "local", "per_s"),
        "explorers / torchrl": ratio_of(samples, "explorers", torchrl, "per_s"),
        "explorers / rllib": ratio_of(samples, "explorers", "rllib", "per_s"),
        "ppo local / rllib": ratio_of(ppo, "local", "rllib", "per_cpu_s"),
        "ppo local / sb3": ratio_of(ppo, "local", "sb3", "per_cpu_s"),
        "ppo explorers / rllib_workers": ratio_of(ppo, "explorers", "rllib_workers", "per_cpu_s"),
        "ppo explorers / sb3": ratio_of(ppo, "explorers", "sb3", "per_cpu_s"),
    }
    met = {name: value >= goal for name, goal in GOALS.items() if (value := ratio[name]) is not None}
    met["stall"] = ours["killed"] <= 1e3 * GOAL_STALL_S
    return {
        "benchmark": "explorers",
        "alone_per_cpu_s": alone,
        "samples_per_s": speeds,
        "samples_per_cpu_s": medians(samples, "per_cpu_s"),
        "slow_samples_per_s": medians(slow, "per_s"),
        "ppo_per_s": medians(ppo, "per_s"),
        "ppo_per_cpu_s": medians(ppo, "per_cpu_s"),
        "ratio": ratio,
        "stall_ms": stalls,
        "goal": {**GOALS, "stall_ms": 1e3 * GOAL_STALL_S},
        "skipped": skipped,
        "load": [load, os.getloadavg()[0]],
        "missed": [name for name, is_met in met.items() if not is_met],
        "met": all(met.values()),
    }


def rounded(figures: Any) -> Any:
    """Round numbers to three significant digits."""
    if isinstance(figures, dict):
        return {name: rounded(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [rounded(value) for value in figures]
    return float(f"{figures:.3g}") if isinstance(figures, float) else figures


def main() -> None:
    """Start the measurement in the environment of the peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11, help="rounds of sampling, with one second per side")
    parser.add_argument("--ppo-rounds", type=int, default=5, help="rounds of training and of slow environments")
    parser.add_argument("--kills", type=int, default=5, help="killed explorers, and raised exceptions")
    parser.add_argument("--here", action="store_true", help="measure in this environment (used by this script)")
    options = parser.parse_args()
    if not options.here:
        subprocess.run([installed("replay", REPLAY), __file__, *sys.argv[1:], "--here"], check=True)
        return
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries goes to stderr

    import ray
    import torch

    torch.set_num_threads(1)
    ray.init(  # more CPUs than the machine has, so that no actor waits for one
        address="local", num_cpus=16, include_dashboard=False, object_store_memory=256 << 20, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as root:
        bake(root)
        sys.path.insert(0, str(Path(root, SLUG)))
        print(json.dumps(rounded(measure(root, options))), file=answer, flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
