"""Servers that lose calls and die, in one process."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer
from trieye.replay.remote.channel import group_of
from trieye.replay.samplers.base import Draw


class FlakyChannel:
    """Makes each call in a thread of the server, loses some of them and some answers, and can kill the server."""

    def __init__(self, make_server, *, seed=0, loss=0.0):
        self.server = make_server()
        self.name = self.server.name
        self.loss, self._make_server, self._dice = loss, make_server, random.Random(seed)
        self._ingest, self._others = ThreadPoolExecutor(1), ThreadPoolExecutor(8)
        self._lock = threading.Lock()

    def begin(self, operation, *values, **options):
        server, call, fate = self.server, Future(), self._dice.random()

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
                call.set_exception(ConnectionError("nobody heard the answer"))
            elif done.exception() is not None:
                call.set_exception(done.exception())
            else:
                call.set_result(done.result())

        (self._ingest if group_of(operation) == "ingest" else self._others).submit(act)
        return call

    def die(self):
        """Let the server vanish, with all that it has in memory, and another one take its place."""
        with self._lock:
            old, self.server = self.server, None
        old.stop_snapshots()  # a process that died writes nothing more
        self.server = self._make_server()

    def kill(self):
        self.server.close()


@pytest.fixture
def make_replay():
    """Return a function that makes a replay of one table in this process."""
    made = []

    def make(capacity=1000, **table):
        made.append(local_replay({"default": {"capacity": capacity, "storage": "shm", **table}}))
        return made[-1]

    yield make
    for replay in made:
        replay.close()


@pytest.fixture
def make_flaky(tmp_path):
    """Return a function that makes a replay of one table, and the channel at which its server can die."""
    made = []

    def make(capacity=100, *, loss=0.0, seed=0, options=None, **table):
        tables = {"default": {"capacity": capacity, "storage": "shm", **table}}
        own = {"directory": tmp_path / "snapshot"} if options is None else options
        made.append(FlakyChannel(lambda: ReplayServer(tables, **own), loss=loss, seed=seed))
        return RemoteReplay(made[-1]), made[-1]

    yield make
    for channel in made:
        channel.kill()


def local_replay(tables, **options):
    """Return a replay in this process."""
    return RemoteReplay(LocalChannel(ReplayServer(tables, **options)))


def content(replay):
    """Return the column `x` of the rows of a table in shared memory, in the order of their ids."""
    view = replay.attach()
    ids = np.arange(view.counters()["low"], view.counters()["total"])
    return view.rows(Draw(ids, np.ones(len(ids), np.float32)))["x"].tolist()


def row(value, *, terminated=False):
    """Return a row that shows where it comes from."""
    return {"obs": np.full(3, value, np.float32), "x": value, "terminated": terminated}
