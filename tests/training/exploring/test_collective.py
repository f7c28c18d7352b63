"""Broadcasts by torch.distributed to explorers that join, die and fail, and in trainings on Ray."""

import os
import pickle
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch

from tests.training.algorithms import DQN, PPO
from tests.training.exploring.test_explorers import DQN_PARTS, PPO_PARTS, same, trained
from tests.training.exploring.test_in_ray import processes
from tests.waiting import wait_until
from trieye.process.niceness import WORKER_NICENESS
from trieye.training.exploring.collective import BroadcastReceiver, CollectiveTransport
from trieye.training.exploring.explorer import Task
from trieye.training.exploring.explorers import Explorers
from trieye.training.exploring.inbox import Reports
from trieye.training.exploring.places import ThreadExplorerPool
from trieye.training.exploring.rendezvous import Rendezvous, RendezvousClient
from trieye.training.exploring.transports import SupersededError

IN_RAY = {"runtime": {"kind": "ray"}}


@pytest.fixture
def transport():
    collective = CollectiveTransport("127.0.0.1")
    yield collective
    collective.close()


def explorer_side(transport):
    """Return the explorer's side of the transport, as in another process."""
    return pickle.loads(pickle.dumps(transport))


def weights(value, size=3):
    return {"w": torch.full((size,), float(value)), "v": torch.full((2, 2), -float(value)), "n": torch.tensor(value)}


def test_late_explorers_get_the_newest_weights_and_slow_ones_their_version(transport):
    first = explorer_side(transport)
    handles = [transport.publish(0, weights(0))]
    assert torch.equal(first.fetch(handles[0])["w"], torch.zeros(3))
    handles += [transport.publish(version, weights(version)) for version in range(1, 6)]
    with pytest.raises(SupersededError) as newer:
        explorer_side(transport).fetch(handles[2])
    assert (newer.value.version, newer.value.weights["n"].item()) == (5, 5)
    assert first.fetch(handles[4])["n"].item() == 4  # the explorer was connected, and retained the weights
    assert first.fetch(handles[5])["n"].item() == 5
    assert not torch.distributed.is_initialized()  # the default process group belongs to the user


def test_a_silent_connection_delays_no_explorer(transport):
    handle = transport.publish(0, weights(0))
    with socket.create_connection(transport._receiver_args[0]):
        receiver = BroadcastReceiver(*transport._receiver_args)
        assert receiver.get(handle, timeout_s=10.0)["n"].item() == 0


def test_explorers_that_join_at_the_same_time_share_an_epoch(transport):
    sender = transport._sender
    handle = transport.publish(0, weights(0))
    with sender._lock:  # as during a broadcast
        receivers = [BroadcastReceiver(*transport._receiver_args) for _ in range(5)]
        wait_until(lambda: len(sender._joining) == 5)
    assert [receiver.get(handle, timeout_s=10.0)["n"].item() for receiver in receivers] == [0] * 5
    assert sender.epoch == 1


def test_a_silent_connection_delays_no_member_of_a_group():
    store = Rendezvous("127.0.0.1", b"key")
    with socket.create_connection(("127.0.0.1", store.port)):
        client = threading.Thread(
            target=lambda: RendezvousClient(("127.0.0.1", store.port), b"key").set("a", b"1"), daemon=True
        )
        client.start()
        store.wait(["a"], timedelta(seconds=10))
    store.close()
    assert store.get("a") == b"1"


def test_weights_of_another_shape_are_broadcast_without_a_new_epoch(transport):
    explorer = explorer_side(transport)
    for version, size in enumerate((3, 70_000, 5)):
        handle = transport.publish(version, weights(version, size))
        assert same(explorer.fetch(handle), weights(version, size))
    assert transport._sender.epoch == 1


class FailingReceiver(BroadcastReceiver):
    """Runs out of memory for received weights."""

    def take_part(self, order):
        super().take_part(order)
        raise RuntimeError("out of memory")


def test_version_not_bumped_on_failed_broadcast(train_config, transport):
    config = train_config(**DQN_PARTS, explorer={"num": 1})
    policy = DQN(config).policy
    task = Task(config, type(policy), policy.spaces, transport)
    inbox = Reports(1, policy.device, publish_version=lambda _: None)
    explorers = Explorers(task, ThreadExplorerPool(), inbox, policy)
    try:
        explorers.collect()
        newest = explorers._published
        assert newest.version == explorers.version == 0
        FailingReceiver(*transport.__getstate__())
        wait_until(lambda: len(transport._sender._members) == 2)
        with pytest.raises(ConnectionError, match=r"version 1 did not reach the explorers in 3 epochs: out of memory"):
            explorers.learned()
        assert explorers._published is newest
        assert explorers.version == 0
    finally:
        explorers.close()


@pytest.mark.long
def test_a_broadcast_trains_exactly_as_the_object_store(ray_cluster, train_config):
    parts = DQN_PARTS | {"env": {"num": 2}, "loop": {"env_steps": 200}, "explorer": {"num": 1}} | IN_RAY
    stored = trained(train_config, DQN, **parts, run_name="stored", sync={"transport": "object_store"})
    broadcast = trained(train_config, DQN, **parts, run_name="broadcast", sync={"transport": "collective"})
    assert same(stored, broadcast)


@pytest.mark.long
def test_a_killed_explorer_restarts_and_joins_a_new_epoch_without_a_missing_version(ray_cluster, train_config):
    parts = PPO_PARTS | {"explorer": {"num": 2, "fragment_steps": 16}} | IN_RAY
    sync = {"style": "fully_async", "max_staleness": 2, "transport": "collective"}
    engine = PPO(train_config(**parts, sync=sync))
    try:
        source, transport, ends = engine._row_source, engine._row_source._task.transport, time.monotonic() + 120
        while len(transport._sender._members) < 2:  # the explorer that starts first may have collected for the other
            engine.advance()
            assert time.monotonic() < ends
        assert {process.nice() for process in processes("ExplorerActor")} == {max(WORKER_NICENESS, os.nice(0))}
        epoch, versions = transport._sender.epoch, []
        processes("ExplorerActor")[0].kill()
        while source.metrics()["explorer/restarts"] == 0 or len(transport._sender._members) < 2:
            engine.advance()
            versions.append(source.version)
            assert time.monotonic() < ends
        for _ in range(5):
            engine.advance()
            versions.append(source.version)
        assert versions == list(range(versions[0], versions[-1] + 1))
        metrics = source.metrics()
        assert metrics["explorer/restarts"] == 1
        assert metrics["explorer/lost_fragments"] <= 2
        assert transport._sender.epoch > epoch
        assert all(epoch_and_version(slot) == (transport._sender.epoch, source.version) for slot in source._group.slots)
    finally:
        engine.cleanup()


def epoch_and_version(slot):
    """Return the epoch of an explorer, and the newest version that it received."""
    import ray

    def read_versions(actor):
        transport = actor._object()._task.transport
        return transport._receiver.epoch, transport._receiver.newest.version

    return ray.get(slot.worker._actor.__ray_call__.remote(read_versions))
