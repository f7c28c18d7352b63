"""Weights from a learner to two explorers in Ray, in place and acknowledged, and how soon a new version is noticed.

Our transports beside a bare `ray.put` of NumPy arrays that the actors copy in place, beside a torch state dict as an
argument of each actor, and beside one copy in memory; all in turns. Goals: the object store at most 1.1 times the bare
`ray.put`, and 25 times as fast as the state dict; a notice in Ray within 3 round trips of an async actor, and within
0.05 ms in one process. Prints one JSON line.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import nn

from trieye.training.exploring.in_ray import ObjectStoreTransport, RayBoard
from trieye.training.exploring.synchronizer import Published, Synchronizer
from trieye.training.exploring.transports import CheckpointTransport, Transport, as_arrays, load_weights

EXPLORERS = 2
LAYERS = 20
GOALS = {"vs_bare_put": 1.1, "vs_state_dict": 25.0, "notice_vs_round_trip": 3.0, "notice_local_ms": 0.05}


def network(parameters: int) -> nn.Module:
    """Return a module of some layers with so many parameters in all."""
    width = max(int((parameters / LAYERS) ** 0.5), 1)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)])


@ray.remote(num_cpus=0)
class Taker:
    """Has a module, and takes weights in place."""

    def __init__(self, parameters: int) -> None:
        torch.set_num_threads(1)
        self._module = network(parameters)

    def fetch(self, transport: Transport, handle: Any) -> None:
        """Take weights that a transport brings."""
        load_weights(self._module, transport.fetch(handle))

    def copy(self, references: list[Any]) -> None:
        """Take a dict of arrays from the object store."""
        found, own = ray.get(references[0]), self._module.state_dict()
        for name, array in found.items():
            np.copyto(own[name].numpy(), array)

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take a state dict."""
        self._module.load_state_dict(weights)


@ray.remote(num_cpus=0)
class Echo:
    """An async actor that answers."""

    async def answer(self) -> None:
        """Return nothing."""


def seconds(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def transfers(parameters: int, rounds: int, directory: Path) -> dict[str, float]:
    """Return medians in milliseconds, and ratios of turns."""
    module, takers = network(parameters), [Taker.remote(parameters) for _ in range(EXPLORERS)]
    weights, copy = module.state_dict(), as_arrays(network(parameters).state_dict())
    versions = iter(range(10**9))

    def by(transport: Transport) -> None:
        handle = transport.publish(next(versions), weights)
        ray.get([taker.fetch.remote(transport, handle) for taker in takers])

    def bare() -> None:
        reference = [ray.put(as_arrays(weights))]
        ray.get([taker.copy.remote(reference) for taker in takers])

    def memcpy() -> None:
        for name, tensor in weights.items():
            np.copyto(copy[name], tensor.numpy())

    sides: dict[str, Callable[[], object]] = {
        "object_store": lambda: by(ObjectStoreTransport()),
        "bare_put": bare,
        "checkpoint": lambda: by(CheckpointTransport(directory)),
        "state_dict": lambda: ray.get([taker.load.remote(weights) for taker in takers]),
        "memcpy": memcpy,
    }
    for act in (*sides.values(), *sides.values()):
        act()
    taken = [{name: seconds(act) for name, act in sides.items()} for _ in range(rounds)]
    for taker in takers:
        ray.kill(taker)

    def ratio(one: str, other: str) -> float:
        return round(statistics.median(turn[one] / turn[other] for turn in taken), 2)

    found = {f"{name}_ms": round(1e3 * statistics.median(turn[name] for turn in taken), 2) for name in sides}
    found |= {"vs_bare_put": ratio("object_store", "bare_put"), "vs_state_dict": ratio("state_dict", "object_store")}
    return found | {"object_store_vs_memcpy": ratio("object_store", "memcpy")}


def notices(rounds: int) -> dict[str, float]:
    """Return how long after a publish somebody who waits knows of it, milliseconds."""
    echo, board, in_ray, round_trips = Echo.remote(), RayBoard(), list[float](), list[float]()
    board.publish(Published(0))
    ray.get(echo.answer.remote())
    for version in range(1, rounds):
        waiting = board._actor.wait_newer.remote(version - 1, 10.0)  # noqa: SLF001 - its own: what `wait_newer` waits for
        time.sleep(0.003)
        round_trips.append(seconds(lambda: ray.get(echo.answer.remote())))
        began = time.perf_counter()
        board._actor.publish.remote(Published(version))  # noqa: SLF001 - its own
        ray.get(waiting)
        in_ray.append(time.perf_counter() - began)
    board.close()
    found = {"notice_ms": 1e3 * statistics.median(in_ray), "round_trip_ms": 1e3 * statistics.median(round_trips)}
    found["notice_vs_round_trip"] = found["notice_ms"] / found["round_trip_ms"]
    found["notice_local_ms"] = 1e3 * local_notice(rounds)
    return {name: round(value, 3) for name, value in found.items()}


def local_notice(rounds: int) -> float:
    """Return the median of seconds from a publish to the end of a wait in another thread."""
    board, took, published_at, ready = Synchronizer(), list[float](), [0.0], threading.Event()

    def wait() -> None:
        for version in range(rounds):
            ready.set()
            board.wait_newer(version - 1, 10.0)
            took.append(time.perf_counter() - published_at[0])

    waiter = threading.Thread(target=wait)
    waiter.start()
    for version in range(rounds):
        ready.wait()
        ready.clear()
        time.sleep(0.002)
        published_at[0] = time.perf_counter()
        board.publish(Published(version))
    waiter.join()
    return statistics.median(took)


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as directory:
        sizes = {f"{size // 10**6}M": transfers(size, options.rounds, Path(directory)) for size in (10**6, 10**7)}
    noticed = notices(20 * options.rounds)
    ray.shutdown()
    big = sizes["10M"]
    met = big["vs_bare_put"] <= GOALS["vs_bare_put"] and big["vs_state_dict"] >= GOALS["vs_state_dict"]
    met = met and all(noticed[name] <= GOALS[name] for name in ("notice_vs_round_trip", "notice_local_ms"))
    print(json.dumps({"benchmark": "weights", **sizes, **noticed, "goals": GOALS, "met": met}))


if __name__ == "__main__":
    main()
