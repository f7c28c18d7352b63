"""Insert and sample throughput of a replay actor on one machine, against RLlib.

Two Ray processes insert 64 rows per call, while a third process samples 64 rows fifty times per second. Our writers
merge calls, which is their default; the peer is an actor around RLlib's `EpisodeReplayBuffer`, which receives each call
as an episode chunk, with four calls in flight. Without RLlib and its dependencies (dm_tree, lz4, scipy), only our
figures are measured.

The reference for sampling is `np.take` of the same number of rows, from memory of the same kind and size, into reused
memory. `take_private` reads private memory, which NumPy backs with huge pages; shared memory gets them only if
/sys/kernel/mm/transparent_hugepage/shmem_enabled permits. Figures are thousand rows per second, medians of
interleaved rounds. Prints one JSON line.
"""

import json
import logging
import mmap
import os
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

from trieye.replay.remote import RemoteReplay

BATCH, INFLIGHT, NUM_WRITERS = 64, 4, 2
CONSUMER_PAUSE_S = 0.02
ROUNDS, SECONDS = 3, 2.0
SAMPLE, AHEAD, SAMPLE_ROUNDS, SAMPLE_SECONDS = 256, 32, 21, 0.15
SHAPES = {"cartpole": ((4,), np.float32, 100_000), "atari": ((84, 84, 4), np.uint8, 3_000)}
GOALS = {"insert_cartpole": 5.0, "insert_atari": 1.5, "sample_atari": 0.8}


def rows_of(shape: tuple[int, ...], dtype: Any, count: int) -> dict[str, Any]:
    """Return rows of random observations."""
    obs = np.random.default_rng(0).integers(0, 255, (count + 1, *shape)).astype(dtype)
    return {
        "obs": obs[:-1],
        "next_obs": obs[1:],
        "action": np.zeros(count, np.int64),
        "reward": np.ones(count, np.float32),
        "terminated": np.zeros(count, np.bool_),
    }


class OurWriter:
    """Inserts through a `Writer`."""

    def __init__(self, replay: RemoteReplay, shape: tuple[int, ...], dtype: Any) -> None:
        self.writer = replay.writer(max_inflight=INFLIGHT)
        self.rows = rows_of(shape, dtype, BATCH)

    def insert(self, seconds: float) -> float:
        """Return the acknowledged rows per second."""
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.writer.extend(self.rows)
            count += BATCH
        self.writer.flush()
        return count / (time.perf_counter() - start)


class PeerWriter:
    """Inserts episode chunks into the peer's actor."""

    def __init__(self, actor: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.actor = actor
        self.rows = rows_of(shape, dtype, BATCH)

    def insert(self, seconds: float) -> float:
        """Return the acknowledged rows per second."""
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode

        count, start, in_flight = 0, time.perf_counter(), deque[Any]()
        observations = [*self.rows["obs"], self.rows["next_obs"][-1]]
        while time.perf_counter() - start < seconds:
            chunk = SingleAgentEpisode(
                observations=observations,
                actions=list(self.rows["action"]),
                rewards=list(self.rows["reward"]),
                terminated=True,
                len_lookback_buffer=0,
            )
            in_flight.append(self.actor.add.remote(chunk))
            if len(in_flight) > INFLIGHT:
                ray.get(in_flight.popleft())
            count += BATCH
        ray.get(list(in_flight))
        return count / (time.perf_counter() - start)


class Consumer:
    """Samples batches at a learner's rate."""

    def __init__(self, replay: RemoteReplay | None, actor: Any) -> None:
        self.reader = None if replay is None else replay.reader()
        self.actor = actor

    def draw(self, seconds: float) -> int:
        """Return the number of batches."""
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            if self.reader is not None:
                self.reader.sample(BATCH)
            else:
                ray.get(self.actor.sample.remote(num_items=BATCH))
            count += 1
            time.sleep(CONSUMER_PAUSE_S)
        return count


def start_peer(capacity: int) -> Any:
    """Return the peer's actor; None if RLlib is not installed."""
    try:
        from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
    except ImportError:
        return None
    return ray.remote(num_cpus=0)(EpisodeReplayBuffer).remote(capacity=capacity)


def measure_inserts(name: str) -> dict[str, list[float]]:
    """Return the inserted thousand rows per second of each side, by round."""
    shape, dtype, capacity = SHAPES[name]
    replay = RemoteReplay.start({"capacity": capacity})
    sides: dict[str, tuple[type, Any]] = {"ours": (OurWriter, replay)}
    if (peer := start_peer(capacity)) is not None:
        sides["rllib"] = (PeerWriter, peer)
    clients = {}
    for side, (writer_class, target) in sides.items():
        writers = [ray.remote(num_cpus=0)(writer_class).remote(target, shape, dtype) for _ in range(NUM_WRITERS)]
        ours, theirs = (target, None) if side == "ours" else (None, target)
        clients[side] = (writers, ray.remote(num_cpus=0)(Consumer).remote(ours, theirs))
        ray.get([writer.insert.remote(0.3) for writer in writers])
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, (writers, consumer) in clients.items():
            sampling = consumer.draw.remote(SECONDS)
            speeds[side].append(sum(ray.get([writer.insert.remote(SECONDS) for writer in writers])) / 1000)
            ray.get(sampling)
    replay.close()
    if peer is not None:
        ray.kill(peer)
    return speeds


def rows_per_ms(call: Callable[[], object]) -> float:
    """Repeat a call for `SAMPLE_SECONDS` and return thousand rows per second."""
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < SAMPLE_SECONDS:
        call()
        calls += 1
    return calls * SAMPLE / elapsed / 1000


def shared(array: Any) -> Any:
    """Return a copy in shared memory."""
    descriptor = os.memfd_create("benchmark")
    os.ftruncate(descriptor, array.nbytes)
    memory = mmap.mmap(descriptor, array.nbytes)
    os.close(descriptor)
    copy = np.frombuffer(memory, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def measure_samples(name: str) -> dict[str, float]:
    """Return the throughput of a reader in this process and of `np.take`."""
    shape, dtype, capacity = SHAPES[name]
    replay = RemoteReplay.start({"capacity": capacity})
    rows = rows_of(shape, dtype, 500)
    with replay.writer() as writer:
        for _ in range(capacity // 500):
            writer.extend(rows)
    reader = replay.reader(ahead=AHEAD)
    batch = reader.sample(SAMPLE)
    private = {key: np.repeat(array[:1], capacity, axis=0) for key, array in rows.items()}
    in_shared_memory = {key: shared(array) for key, array in private.items()}
    out = {key: np.empty((SAMPLE, *array.shape[1:]), array.dtype) for key, array in private.items()}
    rng = np.random.default_rng(0)

    def take(cells: dict[str, Any]) -> None:
        slots = rng.integers(0, capacity, SAMPLE)
        for key, array in cells.items():
            array.take(slots, axis=0, out=out[key], mode="wrap")

    sides: dict[str, Callable[[], object]] = {
        "sample": lambda: reader.sample(SAMPLE, out=batch),
        "take": lambda: take(in_shared_memory),
        "take_private": lambda: take(private),
    }
    for call in sides.values():  # touches each page once
        rows_per_ms(call)
    rounds = [{side: rows_per_ms(call) for side, call in sides.items()} for _ in range(SAMPLE_ROUNDS)]
    reader.close()
    replay.close()
    figures = {side: round(statistics.median(rates[side] for rates in rounds), 1) for side in sides}
    for limit in ("take", "take_private"):
        figures[f"of_{limit}"] = round(statistics.median(rates["sample"] / rates[limit] for rates in rounds), 2)
    return figures


def main() -> None:
    """Measure and print one JSON line."""
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=256 << 20, logging_level=logging.ERROR
    )
    figures: dict[str, Any] = {"benchmark": "replay_actor", "unit": "thousand rows/s"}
    ratio: dict[str, float] = {}
    for name in SHAPES:
        speeds = measure_inserts(name)
        figures[f"insert_{name}"] = {side: round(statistics.median(values), 1) for side, values in speeds.items()}
        if "rllib" in speeds:
            pairs = zip(speeds["ours"], speeds["rllib"], strict=True)
            ratio[f"insert_{name}"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 2)
        figures[f"sample_{name}"] = measure_samples(name)
        ratio[f"sample_{name}"] = figures[f"sample_{name}"]["of_take"]
    goal = {key: f"ratio >= {least}" for key, least in GOALS.items() if key in ratio}
    met = all(ratio[key] >= GOALS[key] for key in goal)
    print(json.dumps({**figures, "ratio": ratio, "goal": goal, "met": met}))
    ray.shutdown()


if __name__ == "__main__":
    main()
