"""The version registry announces complete, increasing versions without delay."""

import statistics
import sys
import threading
import time

import pytest

from trieye.exceptions import ConfigurationError
from trieye.training.exploring.synchronizer import Handle, Published, Synchronizer


def test_publish_atomic_under_readers():
    board, seen, done = Synchronizer(), [], threading.Event()

    def read():
        while not done.is_set():
            if (found := board.latest()) is not None:
                seen.append((found.version, found.handle, found.step))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for version in range(200_000):
        board.publish(Published(version, 10 * version, f"weights {version}"))
        if len(seen) > 1000:
            break
    done.set()
    for reader in readers:
        reader.join()
    assert seen
    assert all(handle == f"weights {version}" and step == 10 * version for version, handle, step in seen)


def test_versions_grow():
    board = Synchronizer()
    board.publish(Published(3, session="a"))
    for version in (3, 2):
        with pytest.raises(ConfigurationError, match=f"version {version} is not above version 3"):
            board.publish(Published(version, session="a"))
    board.publish(Published(1, session="b"))  # another attempt resumes from its checkpoint
    assert board.latest().version == 1


def test_wait_newer_event_latency():
    board, told, took = Synchronizer(), threading.Event(), []

    def wait():
        for version in range(200):
            told.set()
            assert board.wait_newer(version - 1, 10.0).version == version
            took.append(time.perf_counter() - published_at[0])

    published_at = [0.0]
    waiter = threading.Thread(target=wait)
    waiter.start()
    for version in range(200):
        told.wait()
        told.clear()
        time.sleep(0.001)
        published_at[0] = time.perf_counter()
        board.publish(Published(version))
    waiter.join()
    assert statistics.median(took) < 0.03  # polling every 0.1 s would take longer


def test_a_wait_is_over_when_its_time_is():
    board = Synchronizer()
    board.publish(Published(0))
    assert board.wait_newer(0, 0.01) is None
    assert board.wait_newer(-1, 0.0).version == 0


def test_wait_newer_in_ray_is_woken_and_a_killed_synchronizer_knows_the_next_version(ray_cluster):
    import ray

    from trieye.training.exploring.ray_board import RayBoard

    board = RayBoard()
    board.publish(Published(0, handle=Handle(serial=1, version=0)))
    assert not ray.get(board._actor.__ray_call__.remote(lambda _: "torch" in sys.modules))  # its start takes long
    took = []
    for version in range(1, 20):
        waiting = board._actor.wait_newer.remote(version - 1, 10.0)  # its own
        time.sleep(0.005)
        began = time.perf_counter()
        board.publish(Published(version))
        assert ray.get(waiting).version == version
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.5
    ray.kill(board._actor, no_restart=False)  # its own
    time.sleep(0.5)  # its death takes a moment
    board.publish(Published(20))
    assert board.latest().version == 20
    assert board.wait_newer(19, 5.0).version == 20
    board.close()
