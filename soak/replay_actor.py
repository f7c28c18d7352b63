"""Eight writers and two readers at a replay actor, while writers, or the actor too, are killed at random.

Every row says which life of which writer it comes from and which number it has there. Table `all` is large enough to
hold all of them and shows at the end what was lost or doubled; table `ring` is small and is overwritten all the time.
A killed writer's rows are safe from the death of the actor, too, once a snapshot holds them.
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
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import ray

from trieye.replay.remote import RemoteReplay
from trieye.replay.samplers.base import SampledIds

NUM_WRITERS, NUM_READERS = 8, 2
CAPACITY, RING = 4_000_000, 5_000
LIFE = 1 << 32
SNAPSHOT_EVERY_S = 1.0
LONGEST_SNAPSHOT_S = 8.0
"""Rows that were acknowledged so long before the actor died are in a snapshot; several processes share a core."""

LAST_ANSWER_S = 0.5
"""So long after its death an actor's last acknowledgement may be noted; the next actor needs longer to start."""

HUNG_S = 30.0
CHUNK_ROWS = 1 << 16
SCHEMA = {"obs": (np.float32, (3,)), "x": np.int64, "terminated": np.bool_}


class Producer:
    """Writes rows at a steady rate and notes what was acknowledged, until it is killed or told to stop."""

    def __init__(self, replay: RemoteReplay, life: int, notes: Path, rate: int) -> None:
        self.replay, self.life, self.notes, self.rate = replay, life, notes, rate
        self.is_told = False

    def pid(self) -> int:
        """Return the process."""
        return os.getpid()

    def run(self) -> None:
        """Write."""
        number = 0
        with self.replay.writer("all", timeout_s=120) as rows, self.replay.writer("ring", timeout_s=120) as ring:
            while not self.is_told:
                due = time.monotonic() + 0.1
                for _ in range(self.rate // 10):
                    x = self.life * LIFE + number
                    number += 1
                    row = {"obs": np.full(3, x % 1000, np.float32), "x": x, "terminated": number % 50 == 0}
                    rows.add(**row)
                    ring.add(**row)
                rows.flush()
                self.note(number)
                time.sleep(max(due - time.monotonic(), 0))
        self.note(number)

    def note(self, number: int) -> None:
        """Write down in one piece what is acknowledged."""
        with self.notes.open("ab", buffering=0) as file:
            file.write(f"{self.life} {number} {time.time()}\n".encode())

    def stop(self) -> None:
        """Let `run` end."""
        self.is_told = True


class Consumer:
    """Samples from both tables and checks that each row is whole."""

    def __init__(self, replay: RemoteReplay) -> None:
        self.replay, self.is_told = replay, False
        self.batches = self.torn = 0
        self.last, self.longest_s = time.monotonic(), 0.0
        self.redrawn = 0.0

    def run(self) -> None:
        """Sample."""
        with self.replay.reader("all", timeout_s=120) as rows, self.replay.reader("ring", timeout_s=120) as ring:
            self.last = time.monotonic()
            while not self.is_told:
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
        """Return counts, and how long nothing has come."""
        waiting = max(self.longest_s, time.monotonic() - self.last)
        rss = psutil.Process().memory_info().rss
        return {"batches": self.batches, "torn": self.torn, "wait_s": waiting, "rss": rss, "redrawn": self.redrawn}

    def stop(self) -> None:
        """Let `run` end."""
        self.is_told = True


class Crew:
    """The writers, of which one is killed and replaced from time to time."""

    def __init__(self, replay: RemoteReplay, notes: Path, rate: int) -> None:
        self.replay, self.notes, self.rate = replay, notes, rate
        self.num_lives = 0
        self.dead: set[int] = set()
        self.members: list[tuple[int, Any, int, Any]] = [self.hire() for _ in range(NUM_WRITERS)]

    def hire(self) -> tuple[int, Any, int, Any]:
        """Start a writer."""
        life, self.num_lives = self.num_lives, self.num_lives + 1
        actor = ray.remote(num_cpus=0, max_concurrency=3)(Producer).remote(self.replay, life, self.notes, self.rate)
        return life, actor, ray.get(actor.pid.remote()), actor.run.remote()

    def kill_one(self) -> None:
        """Kill a writer, whatever it is doing, and start another one."""
        place = random.randrange(NUM_WRITERS)
        life, _, pid, _ = self.members[place]
        self.dead.add(life)
        os.kill(pid, signal.SIGKILL)
        self.members[place] = self.hire()

    def end(self) -> None:
        """Let all that live close their writers."""
        for _, actor, _, _ in self.members:
            actor.stop.remote()
        ray.get([run for _, _, _, run in self.members], timeout=180)


def rows_of(replay: RemoteReplay) -> Any:
    """Return what the rows of table `all` say."""
    view = replay.attach("all")
    counters = view.counters()
    found = []
    for start in range(counters["low"], counters["total"], CHUNK_ROWS):
        ids = np.arange(start, min(start + CHUNK_ROWS, counters["total"]))
        batch = view.rows(SampledIds(ids, np.ones(len(ids), np.float32)), keys=["x"])
        assert batch is not None
        found.append(batch["x"].copy())
    return np.concatenate(found)


def problems_of_rows(rows: Any, notes: Path, dead: set[int], actor_deaths: list[float]) -> tuple[int, list[str]]:
    """Return how many rows were acknowledged, and which of them are lost, doubled or out of order."""
    acknowledged: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in notes.read_text().splitlines():
        life, number, at = line.split()
        acknowledged[int(life)].append((int(number), float(at)))
    problems = []
    for life, told in acknowledged.items():
        numbers = rows[rows // LIFE == life] % LIFE
        if not np.array_equal(numbers, np.arange(len(numbers))):
            problems.append(f"writer {life}: rows are missing in between, doubled or out of order")
        needed = told[-1][0]
        later = [death for death in actor_deaths if death > told[-1][1]]
        if life in dead and later:  # nobody is left to send again what the last snapshot did not hold
            needed = max([number for number, at in told if at < later[0] - LONGEST_SNAPSHOT_S], default=0)
        if len(numbers) < needed:
            problems.append(f"writer {life}: {needed} rows were acknowledged, {len(numbers)} are there")
    return sum(told[-1][0] for told in acknowledged.values()), problems


def watch(replay: RemoteReplay, crew: Crew, readers: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Kill for some time, and return what the memory did and when the actor died."""
    end = time.monotonic() + options.seconds
    next_kill, next_actor = time.monotonic() + 2.0, time.monotonic() + 5.0
    next_look = time.monotonic() + options.seconds * 0.4
    sizes: list[list[float]] = []
    deaths: list[float] = []
    while time.monotonic() < end:
        time.sleep(0.1)
        if time.monotonic() > next_kill:
            crew.kill_one()
            next_kill = time.monotonic() + random.uniform(0.5, 3.0)
        if options.kill_actor and time.monotonic() > next_actor:
            victim = int(replay.stats("all")["pid"])
            os.kill(victim, signal.SIGKILL)
            deaths.append(time.time() + LAST_ANSWER_S)
            next_actor = time.monotonic() + random.uniform(6.0, 12.0)
        if time.monotonic() > next_look:
            figures = ray.get([reader.figures.remote() for reader in readers])
            own = psutil.Process(int(replay.stats("all")["pid"])).memory_info().rss
            sizes.append([round(size / 2**20, 1) for size in (own, *(each["rss"] for each in figures))])
            next_look = time.monotonic() + max(options.seconds / 10, 1.0)
    return {"mib": sizes, "actor_deaths": deaths}


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=2000, help="rows a second of each writer")
    parser.add_argument("--kill-actor", action="store_true", help="kill the actor, too")
    parser.add_argument("--growth", type=float, default=48.0, help="MiB that a process may grow by")
    options = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    with tempfile.TemporaryDirectory() as root:
        notes = Path(root) / "notes"
        notes.touch()
        replay = RemoteReplay.start(
            {"all": {"capacity": CAPACITY, "schema": SCHEMA}, "ring": {"capacity": RING, "schema": SCHEMA}},
            directory=Path(root) / "snapshot",
            snapshot_every_s=SNAPSHOT_EVERY_S,
        )
        crew = Crew(replay, notes, options.rate)
        readers = [ray.remote(num_cpus=0, max_concurrency=3)(Consumer).remote(replay) for _ in range(NUM_READERS)]
        runs = [reader.run.remote() for reader in readers]
        seen = watch(replay, crew, readers, options)
        crew.end()
        for reader in readers:
            reader.stop.remote()
        with contextlib.suppress(ray.exceptions.GetTimeoutError):
            ray.get(runs, timeout=180)
        figures = ray.get([reader.figures.remote() for reader in readers])
        events, problems = problems_of_rows(rows_of(replay), notes, crew.dead, seen["actor_deaths"])
        stats = replay.stats("all")
    problems += [f"a reader got {each['torn']} torn rows" for each in figures if each["torn"]]
    problems += [f"a reader waited {each['wait_s']:.1f} s" for each in figures if each["wait_s"] > HUNG_S]
    growth = [max(sizes) - sizes[0] for sizes in zip(*seen["mib"], strict=True)][0 if not options.kill_actor else 1 :]
    problems += [f"a process grew by {size:.1f} MiB" for size in growth if size > options.growth]
    result = {
        "benchmark": "replay_actor_kills",
        "kills": len(crew.dead),
        "actor_kills": len(seen["actor_deaths"]),
        "rows": events,
        "batches": sum(each["batches"] for each in figures),
        "redrawn": sum(each["redrawn"] for each in figures),
        "longest_wait_s": round(max(each["wait_s"] for each in figures), 2),
        "duplicate_batches": stats["duplicate_batches"],
        "growth_mib": growth,
        "problems": problems,
        "met": not problems,
    }
    print(json.dumps(result))
    ray.shutdown()
    return 0 if not problems else 1


if __name__ == "__main__":
    sys.exit(main())
