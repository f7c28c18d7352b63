"""Servers that lose calls and die, in one process."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer


class FlakyChannel(LocalChannel):
    """Makes each call in a thread of the server, loses some of them and some answers, and can kill the server."""

    def __init__(self, make_server, *, seed=0, loss=0.0):
        super().__init__(make_server())
        self.loss, self._make_server, self._dice = loss, make_server, random.Random(seed)
        self._ingest, self._others = ThreadPoolExecutor(1), ThreadPoolExecutor(8)
        self._lock = threading.Lock()

    @property
    def server(self):
        return self._server

    def begin(self, method, *values):
        server, call, fate = self._server, Future(), self._dice.random()

        def act():
            with self._lock:
                is_gone = server is None or server is not self._server
            if is_gone or fate < self.loss / 2:
                call.set_exception(ConnectionError("lost on the way"))
                return
            done = LocalChannel(server).begin(method, *values)
            with self._lock:
                is_gone = server is not self._server
            if is_gone or fate < self.loss:
                call.set_exception(ConnectionError("nobody heard the answer"))
            elif done.exception() is not None:
                call.set_exception(done.exception())
            else:
                call.set_result(done.result())

        (self._ingest if method == "add_batch" else self._others).submit(act)
        return call

    def die(self):
        """Let the server vanish, with all that it has in memory, and another one take its place."""
        with self._lock:
            old = self._server
            self._server = None
        old._snapshots.close()  # a process that died writes nothing more
        self._server = self._make_server()


@pytest.fixture
def make_replay():
    """Return a function that makes a replay of one table in this process."""
    made = []

    def make(capacity=1000, *, options=None, **table):
        server = ReplayServer({"default": {"capacity": capacity, **table}}, **(options or {}))
        made.append(RemoteReplay(LocalChannel(server)))
        return made[-1]

    yield make
    for replay in made:
        replay.close()


def row(value, *, terminated=False):
    """Return a row that shows where it comes from."""
    return {"obs": np.full(3, value, np.float32), "x": value, "terminated": terminated}
