"""Latency of publishing weights to two explorers by each transport, against a bare `ray.put`, naive torch and a memcpy.

The latency of a publish ends when both explorers, which are Ray actors, have loaded the weights into their modules in
place and have returned. `bare` is a `ray.put` of a dict of NumPy arrays, which the same actors copy into the same
modules; `naive` passes a `state_dict` of tensors to each call, followed by `load_state_dict`. Rounds are interleaved;
ratios are medians of the ratios of each round. Prints one JSON line.
"""

import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import nn

from trieye.training.exploring.collective import CollectiveTransport
from trieye.training.exploring.in_ray import ObjectStoreTransport, node_address
from trieye.training.exploring.transports import CheckpointTransport, Transport, as_arrays, load_weights

LAYERS, EXPLORERS = 10, 2
SIZES = {"1M": (312, 30), "10M": (998, 15)}
"""Width of the layers, and number of rounds."""
WARM_UP, NAIVE_EVERY = 3, 3
GOALS = {"of_bare": 1.1, "of_naive": 25.0}


def module_of(width: int) -> nn.Sequential:
    """Return a module with 10 large weights and 10 small biases."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))


class Explorer:
    """Actor with a module that receives weights."""

    def __init__(self, width: int, transports: dict[str, Transport]) -> None:
        torch.set_num_threads(1)
        self.module, self.transports = module_of(width), transports

    def fetch(self, name: str, handle: Any) -> None:
        """Fetch weights through a transport."""
        load_weights(self.module, self.transports[name].fetch(handle))

    def copy_arrays(self, arrays: dict[str, Any]) -> None:
        """Copy arrays into the module in place."""
        for name, tensor in self.module.state_dict().items():
            np.copyto(tensor.numpy(), arrays[name])

    def load_tensors(self, state: dict[str, torch.Tensor]) -> None:
        """Load a `state_dict`."""
        self.module.load_state_dict(state)


def seconds(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Learner:
    """Publishes the weights of a module to explorers by each method."""

    def __init__(self, width: int, directory: Path) -> None:
        self.module = module_of(width)
        self.collective = CollectiveTransport(node_address())
        self.transports: dict[str, Transport] = {
            "object_store": ObjectStoreTransport(),
            "checkpoint": CheckpointTransport(directory),
            "collective": self.collective,
        }
        actor_class = ray.remote(num_cpus=0)(Explorer)
        self.actors = [actor_class.remote(width, self.transports) for _ in range(EXPLORERS)]
        self.copy = {name: array.copy() for name, array in as_arrays(self.module.state_dict()).items()}

    def publish(self, name: str, version: int) -> None:
        """Publish through a transport."""
        handle = self.transports[name].publish(version, self.module.state_dict())
        ray.get([actor.fetch.remote(name, handle) for actor in self.actors])

    def bare(self) -> None:
        """Publish arrays through the object store."""
        reference = ray.put({name: tensor.numpy() for name, tensor in self.module.state_dict().items()})
        ray.get([actor.copy_arrays.remote(reference) for actor in self.actors])

    def naive(self) -> None:
        """Send a `state_dict` to each explorer."""
        ray.get([actor.load_tensors.remote(self.module.state_dict()) for actor in self.actors])

    def memcpy(self) -> None:
        """Copy the weights once."""
        for name, array in as_arrays(self.module.state_dict()).items():
            np.copyto(self.copy[name], array)

    def measure_round(self, version: int) -> dict[str, float]:
        """Return the latency of each method in ms; the order of the methods rotates."""
        methods: dict[str, Callable[[], None]] = {
            name: partial(self.publish, name, version) for name in self.transports
        }
        methods |= {"bare": self.bare, "memcpy": self.memcpy}
        if version % NAIVE_EVERY == 0:
            methods["naive"] = self.naive
        names = list(methods)
        first = version % len(names)
        return {name: 1000 * seconds(methods[name]) for name in names[first:] + names[:first]}

    def close(self) -> None:
        """Stop the explorers."""
        for actor in self.actors:
            ray.kill(actor)
        self.collective.close()


def measure(width: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Return the median latency of each method in ms, and ratios."""
    learner = Learner(width, directory)
    for version in range(WARM_UP):
        learner.measure_round(version)
    latencies = [learner.measure_round(version) for version in range(WARM_UP, WARM_UP + rounds)]
    learner.close()
    with_naive = [by_name for by_name in latencies if "naive" in by_name]
    figures: dict[str, Any] = {
        f"{name}_ms": round(statistics.median(by_name[name] for by_name in latencies if name in by_name), 2)
        for name in sorted(with_naive[0])
    }
    for name in learner.transports:
        ratio = statistics.median(by_name[name] / by_name["bare"] for by_name in latencies)
        figures[f"{name}_of_bare"] = round(ratio, 2)
    ratio = statistics.median(by_name["naive"] / by_name["object_store"] for by_name in with_naive)
    return {**figures, "naive_of_object_store": round(ratio, 1)}


def main() -> int:
    """Print one JSON line; exit with 1 if a goal is missed."""
    torch.set_num_threads(1)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=512 << 20, logging_level=logging.ERROR
    )
    figures: dict[str, Any] = {"benchmark": "weights", "unit": "ms", "explorers": EXPLORERS}
    for name, (width, rounds) in SIZES.items():
        with tempfile.TemporaryDirectory() as directory:
            figures[name] = measure(width, rounds, Path(directory))
    large = figures["10M"]
    met = {
        "of_bare": large["object_store_of_bare"] <= GOALS["of_bare"],
        "of_naive": large["naive_of_object_store"] >= GOALS["of_naive"],
    }
    goal = "10M: object_store <= 1.1 x bare, >= 25 x faster than naive"
    print(json.dumps({**figures, "goal": goal, "goals_met": met, "met": all(met.values())}))
    ray.shutdown()
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
