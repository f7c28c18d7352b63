"""Kill writers, and optionally a replay actor, at random, with eight writers and two readers of two actors.

Every row contains the number of its writer and its own number. Replay `all` has room for all rows and shows at the end
which were lost or duplicated; the small replay `ring` is overwritten continuously. Rows of a killed writer survive a
kill of the actor `all` as soon as a snapshot contains them.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil  # type: ignore[import-untyped]  # stubs would be one more package
import ray

from trieye.replay.remote import RemoteReplay
from trieye.replay.samplers.base import SampledIds

NUM_WRITERS, NUM_READERS = 8, 2
CAPACITY, RING_CAPACITY = 4_000_000, 5_000
MAX_ROWS = 1 << 32
"""Row numbers reserved for one writer."""

SNAPSHOT_EVERY_S = 1.0
LONGEST_SNAPSHOT_S = 8.0
"""Age after which an acknowledged row must be in a snapshot; long, because several processes share a core."""

MAX_RECORD_DELAY_S = 0.5
"""Longest delay of a record after its acknowledgement; a new actor needs longer to start."""

HUNG_S = 30.0
CHUNK_ROWS = 1 << 16
SCHEMA = {"obs": (np.float32, (3,)), "x": np.int64, "terminated": np.bool_}


class Replays(NamedTuple):
    """The two actors.

    Attributes:
        all: Has room for all rows.
        ring: A small one.
    """

    all: RemoteReplay
    ring: RemoteReplay


class Producer:
    """Writes rows at a fixed rate and records the number of acknowledged rows, until it is killed or stopped."""

    def __init__(self, replays: Replays, index: int, counts: Path, rate: int) -> None:
        self.replays, self.index, self.counts, self.rate = replays, index, counts, rate
        self.is_stopped = False

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def run(self) -> None:
        """Write rows until stopped."""
        number = 0
        with self.replays.all.writer(timeout_s=120) as rows, self.replays.ring.writer(timeout_s=120) as ring:
            while not self.is_stopped:
                due = time.monotonic() + 0.1
                for _ in range(self.rate // 10):
                    x = self.index * MAX_ROWS + number
                    number += 1
                    row = {"obs": np.full(3, x % 1000, np.float32), "x": x, "terminated": number % 50 == 0}
                    rows.add(**row)
                    ring.add(**row)
                rows.flush()
                self.record(number)
                time.sleep(max(due - time.monotonic(), 0))
        self.record(number)

    def record(self, number: int) -> None:
        """Append the number of acknowledged rows in one write."""
        with self.counts.open("ab", buffering=0) as file:
            file.write(f"{self.index} {number} {time.time()}\n".encode())

    def stop(self) -> None:
        """Stop `run`."""
        self.is_stopped = True


class Consumer:
    """Samples from both replays and checks the consistency of each row."""

    def __init__(self, replays: Replays) -> None:
        self.replays, self.is_stopped = replays, False
        self.batches = self.torn = 0
        self.last, self.longest_s = time.monotonic(), 0.0
        self.redrawn = 0.0

    def run(self) -> None:
        """Sample until stopped."""
        with self.replays.all.reader(timeout_s=120) as rows, self.replays.ring.reader(timeout_s=120) as ring:
            self.last = time.monotonic()
            while not self.is_stopped:
                for reader in (rows, ring):
                    batch = reader.sample(64)
                    self.torn += int((batch["obs"] != (batch["x"] % 1000)[:, None]).any(axis=1).sum())
                    reader.update_priorities(batch.ids, np.ones(64))
                now = time.monotonic()
                self.longest_s = max(self.longest_s, now - self.last)
                self.last = now
                self.batches += 2
                time.sleep(0.002)
            self.redrawn = ring.stats()["reader_redrawn"]

    def figures(self) -> dict[str, float]:
        """Return counts, memory, and the longest time between two batches."""
        wait_s = max(self.longest_s, time.monotonic() - self.last)
        rss = psutil.Process().memory_info().rss
        return {"batches": self.batches, "torn": self.torn, "wait_s": wait_s, "rss": rss, "redrawn": self.redrawn}

    def stop(self) -> None:
        """Stop `run`."""
        self.is_stopped = True


@dataclass(frozen=True)
class RunningWriter:
    """A writer in an actor.

    Attributes:
        index: Its number.
        actor: Its actor.
        pid: Process id of the actor.
        call: Its running call of `Producer.run`.
    """

    index: int
    actor: Any
    pid: int
    call: Any


class WriterPool:
    """The writers, which can be killed and replaced."""

    def __init__(self, replays: Replays, counts: Path, rate: int) -> None:
        self.replays, self.counts, self.rate = replays, counts, rate
        self.num_started = 0
        self.killed: set[int] = set()
        self.writers = [self.start() for _ in range(NUM_WRITERS)]

    def start(self) -> RunningWriter:
        """Start a writer."""
        index, self.num_started = self.num_started, self.num_started + 1
        actor = ray.remote(num_cpus=0, max_concurrency=3)(Producer).remote(self.replays, index, self.counts, self.rate)
        return RunningWriter(index, actor, ray.get(actor.pid.remote()), actor.run.remote())

    def kill_one(self) -> None:
        """Kill a writer and start another."""
        slot = random.randrange(NUM_WRITERS)
        self.killed.add(self.writers[slot].index)
        os.kill(self.writers[slot].pid, signal.SIGKILL)
        self.writers[slot] = self.start()

    def close(self) -> None:
        """Stop all running writers."""
        for writer in self.writers:
            writer.actor.stop.remote()
        ray.get([writer.call for writer in self.writers], timeout=180)


def rows_of(replay: RemoteReplay) -> Any:
    """Return column `x`."""
    view = replay.attach()
    counters = view.counters()
    chunks = []
    for start in range(counters["low"], counters["total"], CHUNK_ROWS):
        ids = np.arange(start, min(start + CHUNK_ROWS, counters["total"]))
        batch = view.rows(SampledIds(ids, np.ones(len(ids), np.float32)), keys=["x"])
        assert batch is not None
        chunks.append(batch["x"].copy())
    return np.concatenate(chunks)


def problems_of_rows(rows: Any, counts: Path, killed: set[int], actor_deaths: list[float]) -> tuple[int, list[str]]:
    """Return the number of acknowledged rows, and the problems: lost, duplicated or reordered rows."""
    acknowledged: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in counts.read_text().splitlines():
        index, count, recorded_at = line.split()
        acknowledged[int(index)].append((int(count), float(recorded_at)))
    problems = []
    for writer, records in acknowledged.items():
        numbers = rows[rows // MAX_ROWS == writer] % MAX_ROWS
        if not np.array_equal(numbers, np.arange(len(numbers))):
            problems.append(f"writer {writer}: rows are missing, duplicated or out of order")
        num_required = records[-1][0]
        later_deaths = [death for death in actor_deaths if death > records[-1][1]]
        if writer in killed and later_deaths:  # it cannot resend rows that the last snapshot does not contain
            snapshot_at = later_deaths[0] - LONGEST_SNAPSHOT_S
            num_required = max([number for number, at in records if at < snapshot_at], default=0)
        if len(numbers) < num_required:
            problems.append(f"writer {writer}: {num_required} rows were acknowledged, {len(numbers)} are stored")
    return sum(records[-1][0] for records in acknowledged.values()), problems


def kill_processes(
    replays: Replays, writers: WriterPool, readers: list[Any], options: argparse.Namespace
) -> tuple[list[list[float]], list[float]]:
    """Kill writers and actors for `options.seconds`; return memory samples in MiB and the times of actor deaths."""
    end = time.monotonic() + options.seconds
    next_kill, next_actor = time.monotonic() + 2.0, time.monotonic() + 5.0
    next_sample = time.monotonic() + options.seconds * 0.4
    sizes: list[list[float]] = []
    deaths: list[float] = []
    while time.monotonic() < end:
        time.sleep(0.1)
        if time.monotonic() > next_kill:
            writers.kill_one()
            next_kill = time.monotonic() + random.uniform(0.5, 3.0)
        if options.kill_actor and time.monotonic() > next_actor:
            victim = random.choice(replays)
            os.kill(int(victim.stats()["pid"]), signal.SIGKILL)
            if victim is replays.all:
                deaths.append(time.time() + MAX_RECORD_DELAY_S)
            next_actor = time.monotonic() + random.uniform(6.0, 12.0)
        if time.monotonic() > next_sample:
            figures = ray.get([reader.figures.remote() for reader in readers])
            actor_rss = psutil.Process(int(replays.all.stats()["pid"])).memory_info().rss
            sizes.append([round(size / 2**20, 1) for size in (actor_rss, *(each["rss"] for each in figures))])
            next_sample = time.monotonic() + max(options.seconds / 10, 1.0)
    return sizes, deaths


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=2000, help="rows per second of each writer")
    parser.add_argument("--kill-actor", action="store_true", help="also kill the actor")
    parser.add_argument("--growth", type=float, default=48.0, help="allowed memory growth of a process in MiB")
    options = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    with tempfile.TemporaryDirectory() as root:
        counts = Path(root) / "counts"
        counts.touch()
        replays = Replays(
            *(
                RemoteReplay.start(
                    {"capacity": capacity, "schema": SCHEMA},
                    directory=Path(root) / f"snapshot-{capacity}",
                    snapshot_every_s=SNAPSHOT_EVERY_S,
                )
                for capacity in (CAPACITY, RING_CAPACITY)
            )
        )
        writers = WriterPool(replays, counts, options.rate)
        readers = [ray.remote(num_cpus=0, max_concurrency=3)(Consumer).remote(replays) for _ in range(NUM_READERS)]
        calls = [reader.run.remote() for reader in readers]
        memory_mib, actor_deaths = kill_processes(replays, writers, readers, options)
        writers.close()
        for reader in readers:
            reader.stop.remote()
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            ray.get(calls, timeout=180)
        figures = ray.get([reader.figures.remote() for reader in readers])
        events, problems = problems_of_rows(rows_of(replays.all), counts, writers.killed, actor_deaths)
        stats = replays.all.stats()
        for replay in replays:
            replay.close()  # writes no snapshot while the directory is deleted
    problems += [f"a reader got {each['torn']} torn rows" for each in figures if each["torn"]]
    problems += [f"a reader waited {each['wait_s']:.1f} s" for each in figures if each["wait_s"] > HUNG_S]
    growth = [max(sizes) - sizes[0] for sizes in zip(*memory_mib, strict=True)][0 if not options.kill_actor else 1 :]
    problems += [f"the memory of a process grew by {size:.1f} MiB" for size in growth if size > options.growth]
    figures_line = {
        "benchmark": "replay_actor_kills",
        "kills": len(writers.killed),
        "actor_kills": len(actor_deaths),
        "rows": events,
        "batches": sum(each["batches"] for each in figures),
        "redrawn": sum(each["redrawn"] for each in figures),
        "longest_wait_s": round(max(each["wait_s"] for each in figures), 2),
        "duplicate_batches": stats["duplicate_batches"],
        "growth_mib": growth,
        "problems": problems,
        "met": not problems,
    }
    print(json.dumps(figures_line))
    ray.shutdown()
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
