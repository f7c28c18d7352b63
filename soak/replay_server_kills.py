"""Kill a replay actor that receives rows, samples and writes snapshots repeatedly, and check its newest snapshot.

Additions and samples alternate, so the counts in a snapshot determine the number of completed operations. Its next 10
batches must equal the batches of an uninterrupted server after the same operations. The next actor resumes from it.
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

ROWS, BATCH_SIZE, BATCHES = 32, 16, 10
DEADLINE_S = 60.0
SNAPSHOT_EVERY_S = 0.1
BUFFER: dict[str, Any] = {"capacity": 2_000, "sampler": "prioritized", "storage": "shm"}


class Client:
    """Adds rows and samples a batch in turn, and continues from the state of its server."""

    def __init__(self, replay: RemoteReplay) -> None:
        stats = replay.stats()
        self.replay, self.num_done = replay, int(stats["added"]) // ROWS + int(stats["sampled"]) // BATCH_SIZE
        self._writer = replay.writer(timeout_s=DEADLINE_S)

    def advance(self) -> None:
        """Do the next operation: even numbers add rows, odd numbers sample."""
        if self.num_done % 2:
            self.sample(BATCH_SIZE)
        else:
            numbers = np.arange(self.num_done // 2 * ROWS, (self.num_done // 2 + 1) * ROWS)
            rows = {"x": numbers, "terminated": numbers % 23 == 0}
            self._writer.extend(rows, priorities=(numbers % 97 + 1) / 10)
            self._writer.flush()
        self.num_done += 1

    def sample(self, num_rows: int) -> Any:
        """Return a batch from the server; a reader would prefetch further batches."""
        reply = self.replay.ask(ReplayServer.batches, 1, num_rows, None, 5.0)
        assert not isinstance(reply, str), reply
        _, (batch,) = reply
        return batch

    def work(self) -> None:
        """Do operations until the server is killed."""
        with contextlib.suppress(TrieyeError, ConnectionError):
            while True:
                self.advance()

    def close(self) -> None:
        """Close the writer, even if its server was killed."""
        with contextlib.suppress(TrieyeError, ConnectionError):
            self._writer.close()


@contextlib.contextmanager
def local(directory: Path | None = None) -> Iterator[Client]:
    """Yield a client of a server in this process."""
    server = ReplayServer(BUFFER, directory=directory)
    client = Client(RemoteReplay(LocalChannel(server)))
    yield client
    client.close()
    server.close()


def kill_once(directory: Path, calm_s: float) -> None:
    """Start an actor and a client, and kill the actor at a random time after its first snapshot."""
    replay = RemoteReplay.start(BUFFER, directory=directory, snapshot_every_s=SNAPSHOT_EVERY_S, max_restarts=0)
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
        raise RuntimeError("the client of a killed actor hangs")
    client.close()


def problems_of(directory: Path, before: int) -> tuple[int, list[str]]:
    """Return the number of operations in a snapshot, and the differences from an uninterrupted server."""
    problems = []
    with local(directory) as saved, local() as expected:
        if saved.num_done <= before:
            problems.append(f"{saved.num_done} operations after {before}: the snapshot is not newer")
        while expected.num_done < saved.num_done:
            expected.advance()
        for number in range(BATCHES):
            one, other = saved.sample(64), expected.sample(64)
            equal_columns = [np.array_equal(one[key], other[key]) for key in other]
            if not (
                all(equal_columns) and np.array_equal(one.ids, other.ids) and np.array_equal(one.weights, other.weights)
            ):
                problems.append(f"after {saved.num_done} operations: batch {number} differs")
        return saved.num_done, problems


def main() -> int:
    """Print one JSON line; exit with 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--calm", type=float, default=0.5, help="longest time in seconds from the first snapshot to the kill"
    )
    options = parser.parse_args()
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20, log_to_driver=False)
    problems: list[str] = []
    num_done = 0
    with tempfile.TemporaryDirectory() as root:
        for number in range(options.kills):
            kill_once(Path(root) / "live" / "replay", options.calm)
            copy = Path(root) / "copy"
            shutil.copytree(
                Path(root) / "live", copy
            )  # a kill while a snapshot is replaced leaves it under another name
            num_done, own_problems = problems_of(copy / "replay", num_done)
            shutil.rmtree(copy)
            problems += [f"kill {number}: {problem}" for problem in own_problems]
            print(f"{number + 1} of {options.kills} kills, {num_done} operations", file=sys.stderr)
    ray.shutdown()
    met = not problems
    print(
        json.dumps(
            {
                "benchmark": "replay_server_kills",
                "kills": options.kills,
                "done": num_done,
                "problems": problems,
                "met": met,
            }
        )
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
