"""Kill a replay actor that takes rows, draws and writes snapshots, again and again, and look at its newest snapshot.

Rows and draws come one after the other, so the counts in a snapshot say how far it is. Its next 10 batches have to be
those of a server that did the same and was never interrupted. The next actor goes on from there.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray

from trieye.exceptions import TrieyeError
from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer

ROWS, DRAWN, BATCHES = 32, 16, 10
DEADLINE_S = 60.0
SNAPSHOT_EVERY_S = 0.1
TABLES: dict[str, dict[str, Any]] = {"default": {"capacity": 2_000, "sampler": "prioritized", "storage": "shm"}}


class Client:
    """Adds the rows of a step and draws a batch in turn, from wherever the server is."""

    def __init__(self, replay: RemoteReplay) -> None:
        stats = replay.stats()
        self.replay, self.done = replay, int(stats["added"]) // ROWS + int(stats["sampled"]) // DRAWN
        self._writer = replay.writer(timeout_s=DEADLINE_S)

    def advance(self) -> None:
        """Do the next thing: add for the even ones, draw for the odd ones."""
        if self.done % 2:
            self.draw(DRAWN)
        else:
            numbers = np.arange(self.done // 2 * ROWS, (self.done // 2 + 1) * ROWS)
            rows = {"x": numbers, "terminated": numbers % 23 == 0}
            self._writer.extend(rows, priorities=(numbers % 97 + 1) / 10)
            self._writer.flush()
        self.done += 1

    def draw(self, n: int) -> Any:
        """Return a batch that the server copied."""
        ((_, batch),) = self.replay.ask(ReplayServer.batches, "default", 1, n, None, 5.0)  # a reader draws ahead
        return batch

    def work(self) -> None:
        """Go on until the server is dead."""
        with contextlib.suppress(TrieyeError, ConnectionError):
            while True:
                self.advance()

    def leave(self) -> None:
        """End the writer; its server may be dead."""
        with contextlib.suppress(TrieyeError, ConnectionError):
            self._writer.close()


@contextlib.contextmanager
def local(directory: Path | None = None) -> Iterator[Client]:
    """Give a client of a server in this process."""
    server = ReplayServer(TABLES, directory=directory)
    client = Client(RemoteReplay(LocalChannel(server)))
    yield client
    client.leave()
    server.close()


def kill_once(directory: Path, calm_s: float) -> None:
    """Start an actor, let it work, and kill it some time after its first snapshot."""
    replay = RemoteReplay.start(TABLES, directory=directory, snapshot_every_s=SNAPSHOT_EVERY_S, max_restarts=0)
    client = Client(replay)
    worker = threading.Thread(target=client.work)
    worker.start()
    until = time.monotonic() + DEADLINE_S
    while (stats := replay.stats())["snapshots"] < 1:
        if time.monotonic() > until:
            raise RuntimeError("the actor wrote no snapshot")
        time.sleep(0.01)
    time.sleep(random.uniform(0, calm_s))
    os.kill(int(stats["pid"]), signal.SIGKILL)
    worker.join(DEADLINE_S)
    if worker.is_alive():
        raise RuntimeError("the client of a dead actor hangs")
    client.leave()


def problems_of(directory: Path, before: int) -> tuple[int, list[str]]:
    """Return how far a snapshot is, and where its next batches differ from those of an uninterrupted server."""
    found = []
    with local(directory) as saved, local() as expected:
        if saved.done <= before:
            found.append(f"{saved.done} after {before}: the snapshots did not get on")
        while expected.done < saved.done:
            expected.advance()
        for number in range(BATCHES):
            one, other = saved.draw(64), expected.draw(64)
            same = [np.array_equal(one[key], other[key]) for key in other]
            if not (all(same) and np.array_equal(one.ids, other.ids) and np.array_equal(one.weights, other.weights)):
                found.append(f"after {saved.done}: batch {number} differs")
        return saved.done, found


def main() -> int:
    """Print one JSON line; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--calm", type=float, default=0.5, help="an actor is killed within so many seconds of a snapshot"
    )
    options = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    problems, done = [], 0
    with tempfile.TemporaryDirectory() as root:
        for number in range(options.kills):
            kill_once(Path(root) / "replay", options.calm)
            looked_at = Path(root) / "copy"
            shutil.copytree(Path(root) / "replay", looked_at)
            done, found = problems_of(looked_at, done)
            shutil.rmtree(looked_at)
            problems += [f"kill {number}: {text}" for text in found]
            print(f"{number + 1} of {options.kills} kills, {done} done", file=sys.stderr)
    ray.shutdown()
    met = not problems
    print(
        json.dumps(
            {"benchmark": "replay_server_kills", "kills": options.kills, "done": done, "problems": problems, "met": met}
        )
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
