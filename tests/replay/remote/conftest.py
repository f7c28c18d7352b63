"""In-process servers that lose calls and die."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer
from trieye.replay.samplers.base import SampledIds


class FlakyChannel:
    """Makes each call in a server thread, loses some calls and answers, and can kill the server."""

    def __init__(self, make_server, *, seed=0, loss=0.0):
        self.server = make_server()
        self.name = self.server.name
        self.loss, self._make_server, self._dice = loss, make_server, random.Random(seed)
        self._ingest, self._others = ThreadPoolExecutor(1), ThreadPoolExecutor(8)
        self._lock = threading.Lock()

    def begin(self, operation, *values, **options):
        server, call, fate = self.server, Future(), self._dice.random()
        call.set_running_or_notify_cancel()

        def act():
            with self._lock:
                is_gone = server is None or server is not self.server
            if is_gone or fate < self.loss / 2:
                call.set_exception(ConnectionError("lost on the way"))
                return
            done = LocalChannel(server).begin(operation, *values, **options)
            with self._lock:
                is_gone = server is not self.server
            if is_gone or fate < self.loss:
                call.set_exception(ConnectionError("the answer was lost"))
            elif done.exception() is not None:
                call.set_exception(done.exception())
            else:
                call.set_result(done.result())

        (self._ingest if vars(operation)["group"] == "ingest" else self._others).submit(act)
        return call

    def die(self):
        """Replace the server by a new one, losing everything in its memory."""
        with self._lock:
            old, self.server = self.server, None
        old.stop_snapshots()  # a dead process writes nothing
        self.server = self._make_server()

    def kill(self):
        self.server.close()


@pytest.fixture
def make_replay():
    """Return a function that creates a replay in this process."""
    replays = []

    def make(capacity=1000, **buffer):
        replays.append(local_replay({"capacity": capacity, "storage": "shm", **buffer}))
        return replays[-1]

    yield make
    for replay in replays:
        replay.close()


@pytest.fixture
def make_flaky(tmp_path):
    """Return a function that creates a replay, and a channel that can kill its server."""
    channels = []

    def make(capacity=100, *, loss=0.0, seed=0, options=None, **buffer):
        arguments = {"capacity": capacity, "storage": "shm", **buffer}
        server_options = {"directory": tmp_path / "snapshot"} if options is None else options
        channels.append(FlakyChannel(lambda: ReplayServer(arguments, **server_options), loss=loss, seed=seed))
        return RemoteReplay(channels[-1]), channels[-1]

    yield make
    for channel in channels:
        channel.kill()


def local_replay(buffer, **options):
    """Return a replay in this process."""
    return RemoteReplay(LocalChannel(ReplayServer(buffer, **options)))


def content(replay):
    """Return the column `x` of the rows in shared memory, in id order."""
    view = replay.attach()
    ids = np.arange(view.counters()["low"], view.counters()["total"])
    return view.rows(SampledIds(ids, np.ones(len(ids), np.float32)))["x"].tolist()


def row(value, *, terminated=False):
    """Return a row that encodes its origin."""
    return {"obs": np.full(3, value, np.float32), "x": value, "terminated": terminated}


def add_rows(writer, values):
    """Add a row of the first environment for each value."""
    for value in values:
        writer.add(**row(value))
