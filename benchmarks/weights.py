"""Weights from a learner to two explorers, by each transport, against a bare `ray.put`, naive torch and one memcpy.

A publish counts until both explorers, Ray actors with a module of their own, have the weights in it, in place, and have
said so. `bare` is a `ray.put` of a dict of NumPy arrays, which the same actors copy into the same module; `naive` is a
`state_dict` of tensors as an argument of each call, and `load_state_dict`. Rounds are interleaved, and ratios are
medians of the ratios of each round.

`notice` is how long an explorer waits for a version that is announced: through the synchronizer in Ray, in multiples of
the round trip of an async actor between the same two processes, and within a process in milliseconds, beside a bare
`threading.Event`. Prints one JSON line.
"""

import json
import logging
import statistics
import sys
import tempfile
import threading
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
from trieye.training.exploring.ray_board import RayBoard
from trieye.training.exploring.synchronizer import Published, Synchronizer
from trieye.training.exploring.transports import CheckpointTransport, Transport, as_arrays, load_weights

LAYERS, EXPLORERS = 10, 2
SIZES = {"1M": (312, 30), "10M": (998, 15)}
"""Width of the layers, rounds."""
WARM_UP, NAIVE_EVERY = 3, 3
NOTICES = 60
GOALS = {"of_bare": 1.1, "of_naive": 25.0, "notice": 3.0, "notice_in_process_ms": 0.05}


def module_of(width: int) -> nn.Sequential:
    """Return a module with a state of 20 tensors, some of them large."""
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))


class Explorer:
    """Has a module that takes weights."""

    def __init__(self, width: int, transports: dict[str, Transport]) -> None:
        torch.set_num_threads(1)
        self.module, self.transports = module_of(width), transports

    def take(self, name: str, handle: Any) -> None:
        """Fetch by a transport."""
        load_weights(self.module, self.transports[name].fetch(handle))

    def take_arrays(self, arrays: dict[str, Any]) -> None:
        """Copy arrays by hand, in place."""
        for name, own in self.module.state_dict().items():
            np.copyto(own.numpy(), arrays[name])

    def take_tensors(self, state: dict[str, torch.Tensor]) -> None:
        """Load a `state_dict`."""
        self.module.load_state_dict(state)


class Waiter:
    """Waits for versions."""

    def __init__(self, board: RayBoard) -> None:
        self.board = board

    def wait(self, version: int) -> float:
        """Return when a newer version was noticed; processes of one machine share the clock."""
        self.board.wait_newer(version, 60.0)
        return time.monotonic()

    def round_trips(self, actor: Any, count: int) -> list[float]:
        """Return how long calls of an async actor take."""
        return [seconds(lambda: ray.get(actor.nothing.remote())) for _ in range(count)]


class Nothing:
    """An async actor that has nothing to do."""

    async def nothing(self) -> None:
        """Do nothing."""


def seconds(act: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Learner:
    """Brings the weights of a module to explorers, in each way."""

    def __init__(self, width: int, directory: Path) -> None:
        self.module = module_of(width)
        self.collective = CollectiveTransport(node_address())
        self.transports: dict[str, Transport] = {
            "object_store": ObjectStoreTransport(),
            "checkpoint": CheckpointTransport(directory),
            "collective": self.collective,
        }
        make = ray.remote(num_cpus=0)(Explorer)
        self.actors = [make.remote(width, self.transports) for _ in range(EXPLORERS)]
        self.copy = {name: array.copy() for name, array in as_arrays(self.module.state_dict()).items()}

    def by(self, name: str, version: int) -> None:
        """Publish by a transport."""
        handle = self.transports[name].publish(version, self.module.state_dict())
        ray.get([actor.take.remote(name, handle) for actor in self.actors])

    def bare(self) -> None:
        """Put arrays into the object store."""
        put = ray.put({name: tensor.numpy() for name, tensor in self.module.state_dict().items()})
        ray.get([actor.take_arrays.remote(put) for actor in self.actors])

    def naive(self) -> None:
        """Send a `state_dict` to each."""
        ray.get([actor.take_tensors.remote(self.module.state_dict()) for actor in self.actors])

    def memcpy(self) -> None:
        """Copy the weights once."""
        for name, array in as_arrays(self.module.state_dict()).items():
            np.copyto(self.copy[name], array)

    def a_round(self, version: int) -> dict[str, float]:
        """Return the milliseconds of each way; each is the first one at times."""
        ways: dict[str, Callable[[], None]] = {name: partial(self.by, name, version) for name in self.transports}
        ways |= {"bare": self.bare, "memcpy": self.memcpy}
        if version % NAIVE_EVERY == 0:
            ways["naive"] = self.naive
        names = list(ways)
        first = version % len(names)
        return {name: 1000 * seconds(ways[name]) for name in names[first:] + names[:first]}

    def close(self) -> None:
        """End the explorers."""
        for actor in self.actors:
            ray.kill(actor)
        self.collective.close()


def measure(width: int, rounds: int, directory: Path) -> dict[str, Any]:
    """Return the milliseconds of each way, and ratios."""
    learner = Learner(width, directory)
    for version in range(WARM_UP):  # the first touch of everything
        learner.a_round(version)
    taken = [learner.a_round(version) for version in range(WARM_UP, WARM_UP + rounds)]
    learner.close()
    with_naive = [each for each in taken if "naive" in each]
    found: dict[str, Any] = {
        f"{name}_ms": round(statistics.median(each[name] for each in taken if name in each), 2)
        for name in sorted(with_naive[0])
    }
    for name in learner.transports:
        found[f"{name}_of_bare"] = round(statistics.median(each[name] / each["bare"] for each in taken), 2)
    found["naive_of_object_store"] = round(
        statistics.median(each["naive"] / each["object_store"] for each in with_naive), 1
    )
    return found


def measure_notice() -> dict[str, float]:
    """Return how long a version takes to be noticed in another process, and the round trip of an async actor."""
    board = RayBoard()
    waiter = ray.remote(num_cpus=0)(Waiter).remote(board)
    idle = ray.remote(num_cpus=0)(Nothing).remote()
    ray.get(waiter.round_trips.remote(idle, 20))
    board.publish(Published(0))
    notices, trips, pause = [], [], threading.Event()
    for version in range(1, NOTICES + 1):
        waiting = waiter.wait.remote(version - 1)
        pause.wait(0.05)  # it waits by now
        began = time.monotonic()
        board.publish(Published(version))
        notices.append(ray.get(waiting) - began)
        trips += ray.get(waiter.round_trips.remote(idle, 5))
    board.close()
    notice, trip = statistics.median(notices), statistics.median(trips)
    return {
        "notice_ms": round(1000 * notice, 3),
        "async_round_trip_ms": round(1000 * trip, 3),
        "notice_of_round_trip": round(notice / trip, 2),
    }


def measure_notice_in_process() -> dict[str, float]:
    """Return the milliseconds from a publish to the end of a wait in another thread, and those of a bare `Event`."""
    board, pause = Synchronizer(), threading.Event()
    times: dict[str, list[float]] = {"notice_in_process_ms": [], "event_ms": []}
    for version in range(NOTICES * 5):
        event = threading.Event()
        ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "notice_in_process_ms": (
                partial(board.wait_newer, version - 1, 60.0),
                partial(board.publish, Published(version)),
            ),
            "event_ms": (partial(event.wait, 60.0), event.set),
        }
        for name, (wait, announce) in ways.items():
            noticed: list[float] = []
            thread = threading.Thread(target=lambda wait=wait, to=noticed: (wait(), to.append(time.perf_counter())))
            thread.start()
            pause.wait(0.005)  # it waits by now
            began = time.perf_counter()
            announce()
            thread.join()
            times[name].append(noticed[0] - began)
    return {name: round(1000 * statistics.median(values), 4) for name, values in times.items()}


def main() -> int:
    """Print one JSON line; the exit code says whether the goals are met."""
    torch.set_num_threads(1)
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=512 << 20, logging_level=logging.ERROR
    )
    figures: dict[str, Any] = {"benchmark": "weights", "unit": "ms", "explorers": EXPLORERS}
    for name, (width, rounds) in SIZES.items():
        with tempfile.TemporaryDirectory() as directory:
            figures[name] = measure(width, rounds, Path(directory))
    figures |= measure_notice() | measure_notice_in_process()
    large = figures["10M"]
    met = {
        "of_bare": large["object_store_of_bare"] <= GOALS["of_bare"],
        "of_naive": large["naive_of_object_store"] >= GOALS["of_naive"],
        "notice": figures["notice_of_round_trip"] <= GOALS["notice"],
        "notice_in_process_ms": figures["notice_in_process_ms"] <= GOALS["notice_in_process_ms"],
    }
    goal = "10M: object_store <= 1.1 x bare, >= 25 x faster than naive; notice <= 3 round trips, in process <= 0.05 ms"
    print(json.dumps({**figures, "goal": goal, "goals_met": met, "met": all(met.values())}))
    ray.shutdown()
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
