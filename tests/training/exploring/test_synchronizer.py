"""The version registry announces complete, increasing versions without delay."""

import statistics
import sys
import threading
import time

import pytest

from trieye.exceptions import ConfigurationError
from trieye.training.exploring.synchronizer import Handle, Published, Synchronizer


def test_publish_atomic_under_readers():
    registry, seen, done = Synchronizer(), [], threading.Event()

    def read():
        while not done.is_set():
            if (published := registry.wait_newer(-1, 0.0)) is not None:
                seen.append((published.version, published.handle, published.step))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for version in range(200_000):
        registry.publish(Published(version, 10 * version, f"weights {version}"))
        if len(seen) > 1000:
            break
    done.set()
    for reader in readers:
        reader.join()
    assert seen
    assert all(handle == f"weights {version}" and step == 10 * version for version, handle, step in seen)


def test_a_version_must_increase_within_a_session():
    registry = Synchronizer()
    registry.publish(Published(3, session="a"))
    for version in (3, 2):
        with pytest.raises(ConfigurationError, match=f"version {version} is not above version 3"):
            registry.publish(Published(version, session="a"))
    registry.publish(Published(1, session="b"))  # another attempt resumes from its checkpoint
    assert registry.wait_newer(0, 0.0).version == 1


def test_wait_newer_event_latency():
    registry, waiting, delays = Synchronizer(), threading.Event(), []

    def wait():
        for version in range(200):
            waiting.set()
            assert registry.wait_newer(version - 1, 10.0).version == version
            delays.append(time.perf_counter() - published_at[0])

    published_at = [0.0]
    waiter = threading.Thread(target=wait)
    waiter.start()
    for version in range(200):
        waiting.wait()
        waiting.clear()
        time.sleep(0.001)
        published_at[0] = time.perf_counter()
        registry.publish(Published(version))
    waiter.join()
    assert statistics.median(delays) < 0.03  # polling every 0.1 s would take longer


def test_a_wait_ends_at_its_timeout():
    registry = Synchronizer()
    registry.publish(Published(0))
    assert registry.wait_newer(0, 0.01) is None
    assert registry.wait_newer(-1, 0.0).version == 0


def test_a_restarted_synchronizer_in_ray_announces_the_next_version(ray_cluster):
    import ray

    from trieye.training.exploring.ray_board import RayBoard

    registry = RayBoard()
    registry.publish(Published(0, handle=Handle(serial=1, version=0)))
    assert not ray.get(registry._actor.__ray_call__.remote(lambda _: "torch" in sys.modules))  # its start takes long
    delays = []
    for version in range(1, 20):
        waiting = registry._actor.wait_newer.remote(version - 1, 10.0)  # its own
        time.sleep(0.005)
        began = time.perf_counter()
        registry.publish(Published(version))
        assert ray.get(waiting).version == version
        delays.append(time.perf_counter() - began)
    assert statistics.median(delays) < 0.5
    ray.kill(registry._actor, no_restart=False)  # its own
    time.sleep(0.5)  # its death takes a moment
    registry.publish(Published(20))
    assert ray.get(registry._actor.wait_newer.remote(19, 60.0)).version == 20  # Ray retries it after the restart
    assert registry.wait_newer(19, 5.0).version == 20
    registry.close()
