"""Fragments in another process: they are fetched here, and survive the death of the actor."""

import asyncio
import copy
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import torch

from tests.replay.remote.conftest import FlakyChannel
from tests.waiting import wait_until
from trieye.checkpoints.directory import load_parts, save_parts
from trieye.exceptions import ConfigurationError, LeaseExpiredError, ReplayTimeoutError
from trieye.replay.fragments import FragmentMeta
from trieye.replay.remote import FragmentServer, LocalChannel, RemoteFragments, RemoteReplay

RULES = {"max_chunks": 8, "fragments_per_chunk": 2, "max_reuse": 2}


def fragments(worker, count, first=0):
    return [
        ({"obs": np.full((4, 2), fid, np.float32)}, FragmentMeta(worker, fid, model_version=0, session="s"))
        for fid in range(first, first + count)
    ]


def filled(replay):
    replay.set_version("s", 0)
    assert {result.status for result in replay.add_batch(fragments("a", 4))} == {"accepted"}
    assert replay.add(*fragments("b", 1)[0]).status == "accepted"
    return replay


def test_a_remote_buffer_stores_fetches_and_saves_fragments(tmp_path):
    replay = filled(RemoteFragments(LocalChannel(FragmentServer(RULES))))
    lease = replay.fetch(2)
    assert sorted(replay.read(lease, 0, 2)[0].fragments[0]["obs"][0].tolist()) in ([0.0, 0.0], [2.0, 2.0])
    assert replay.update_priorities([chunk.id for chunk in lease.chunks], [1.0, 2.0]) == 2
    with pytest.raises(ConfigurationError, match=r"priorities\.detach\(\)"):
        replay.update_priorities([lease.chunks[0].id], torch.ones(1, requires_grad=True))
    assert replay.release(lease)
    with pytest.raises(LeaseExpiredError):
        replay.read(lease)
    assert asyncio.run(replay.afetch(1)).chunks
    assert replay.metrics()["replay/size"] >= 1
    save_parts(tmp_path / "checkpoint", replay)
    other = RemoteFragments(LocalChannel(FragmentServer(RULES)))
    other.load_state_dict(load_parts(tmp_path / "checkpoint"))
    assert other.add(*fragments("b", 1, first=1)[0]).status == "accepted"
    assert other.fetch(1, timeout_s=0).chunks
    other.close()
    with pytest.raises(ConfigurationError, match="no snapshot directory"):
        replay.snapshot()


def test_a_restarted_server_restores_its_fragments_from_the_snapshot(tmp_path):
    channel = FlakyChannel(lambda: FragmentServer(RULES, directory=tmp_path / "snapshot"))
    replay = filled(RemoteFragments(channel))
    replay.snapshot()
    channel.die()
    assert replay.add(*fragments("a", 1, first=3)[0]).status == "duplicate"
    assert len(replay.fetch(2, timeout_s=1).chunks) == 2
    with pytest.raises(ReplayTimeoutError):
        replay.fetch(3, timeout_s=0.01)
    channel.loss = 2.0
    with pytest.raises(ReplayTimeoutError, match="lost on the way"):
        replay.fetch(1, timeout_s=0.1)


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_waiting_reader_repeats_the_version_that_a_restarted_server_lost(tmp_path, has_snapshot):
    directory = tmp_path / "snapshot" if has_snapshot else None
    channel = FlakyChannel(lambda: FragmentServer({"max_chunks": 8}, directory=directory))
    replay, other = RemoteFragments(channel), RemoteFragments(channel)
    replay.set_version("earlier", 5)
    if has_snapshot:
        replay.snapshot()
    replay.set_version("s", 0)
    with ThreadPoolExecutor(1) as thread, closing(replay):
        reading = thread.submit(replay.fetch, 1, 10.0)
        wait_until(lambda: replay.metrics()["replay/waiting_readers"] == 1)
        channel.die()
        assert other.add(*fragments("a", 2)[1]).is_kept
        assert len(reading.result().chunks) == 1
        other.set_version("s", 1)
        other.set_version("later", 0)
        with pytest.raises(ReplayTimeoutError):
            replay.fetch(1, timeout_s=0)  # repeats version 0 of a session that has ended
        assert channel.server.buffer.session == "later"


def test_a_handle_with_an_older_session_does_not_switch_a_restored_server_back(tmp_path):
    learner = RemoteFragments(LocalChannel(FragmentServer({"max_chunks": 8})))
    learner.set_version("warmup", 0)
    learner.snapshot(tmp_path / "saved")
    learner.set_version("later", 0)
    reader = copy.copy(learner)
    learner.restore(tmp_path / "saved")
    filled(learner)
    assert len(reader.fetch(1, timeout_s=0).chunks) == 1
    assert learner.metrics()["replay/size"] == 5


def test_after_a_restore_a_crash_does_not_bring_back_the_later_version(tmp_path):
    rules = {"max_chunks": 8, "max_staleness": 0}
    channel = FlakyChannel(lambda: FragmentServer(rules, directory=tmp_path / "own"))
    replay = RemoteFragments(channel)
    replay.set_version("s", 0)
    replay.add(*fragments("a", 1)[0])
    replay.snapshot(tmp_path / "saved")
    replay.set_version("s", 2)
    replay.restore(tmp_path / "saved")
    channel.die()
    assert len(replay.fetch(1, timeout_s=0).chunks) == 1


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_priorities_of_a_chunk_that_was_lost_in_a_crash_are_ignored(tmp_path, has_snapshot):
    directory = tmp_path / "snapshot" if has_snapshot else None
    channel = FlakyChannel(lambda: FragmentServer({"max_chunks": 8, "sampler": "prioritized"}, directory=directory))
    replay = RemoteFragments(channel)
    replay.set_version("s", 0)
    replay.add(*fragments("a", 1)[0])
    if has_snapshot:
        replay.snapshot()
    replay.add(*fragments("a", 2)[1])
    ids = sorted(chunk.id for chunk in replay.fetch(2, timeout_s=0).chunks)
    channel.die()
    replay.set_version("s", 0)
    replay.add_batch(fragments("b", 2))
    assert replay.update_priorities(ids, [1.0, 1000.0]) == has_snapshot
    assert set(ids[1:]).isdisjoint(chunk.id for chunk in replay.fetch(2, timeout_s=0).chunks)


@pytest.mark.slow
def test_an_actor_serves_waiting_readers_and_survives_a_kill(ray_cluster, tmp_path):
    import ray

    name, rules = f"fragments_{os.getpid()}", {"max_chunks": 8, "fragments_per_chunk": 2}
    replay = RemoteFragments.start(rules, name=name, directory=tmp_path / "snapshot", timeout_s=120)
    with pytest.raises(ConfigurationError, match=f"'{name}' belongs to a FragmentActor; choose another name"):
        RemoteReplay.start({"capacity": 10}, name=name)
    with ThreadPoolExecutor(12) as threads:
        waiting = [threads.submit(replay.fetch, 2, 60.0) for _ in range(12)]
        while replay.metrics()["replay/waiting_readers"] < 12:
            replay.snapshot()
        filled(replay)
        assert [len(fetch.result(60).chunks) for fetch in waiting] == [2] * 12
    replay.snapshot()
    actor = ray.get_actor(name, namespace="trieye")
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    assert replay.fetch(2, timeout_s=60).stack()["obs"].shape == (2, 2, 4, 2)
    replay.close()


class DyingReaderChannel:
    """Connection of a reader whose process dies: later calls are never made, and calls in progress continue."""

    def __init__(self, channel):
        self.name, self._channel, self.is_dead = channel.name, channel, False

    def begin(self, *call, **options):
        if self.is_dead:
            raise SystemExit
        return self._channel.begin(*call, **options)


def test_a_reader_that_died_while_it_waited_takes_no_chunks_and_blocks_no_other_reader():
    channel = FlakyChannel(lambda: FragmentServer({"max_chunks": 8, "max_reuse": 1}))
    replay, dying = RemoteFragments(channel), DyingReaderChannel(channel)
    replay.set_version("s", 0)
    with ThreadPoolExecutor(1) as thread, closing(replay):
        thread.submit(RemoteFragments(dying).fetch, 2)
        wait_until(lambda: replay.metrics()["replay/waiting_readers"] == 1)
        dying.is_dead = True
        replay.add_batch(fragments("a", 1))
        assert len(replay.fetch(1, timeout_s=5).chunks) == 1
        replay.add_batch(fragments("a", 2, first=1))
        assert (replay.metrics()["replay/size"], replay.metrics()["replay/leases"]) == (2, 1)
        with pytest.raises(ReplayTimeoutError, match=r"fetch\(3\): 2 of 3 chunks are available after 1\.[1-9]"):
            replay.fetch(3, timeout_s=1.1)


@pytest.mark.parametrize("channel", [LocalChannel, lambda server: FlakyChannel(lambda: server)])
def test_a_cancelled_fetch_takes_no_chunks_and_does_not_delay_the_end_of_the_loop(channel):
    replay = RemoteFragments(channel(FragmentServer({"max_chunks": 8, "max_reuse": 1})))
    replay.set_version("s", 0)

    async def cancel():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(replay.afetch(1), 0.05)

    with closing(replay):
        asyncio.run(cancel())
        wait_until(lambda: replay.metrics()["replay/waiting_readers"] == 0)
        replay.add_batch(fragments("a", 1))
        assert replay.metrics()["replay/size"] == 1
        assert len(asyncio.run(replay.afetch(1, timeout_s=5)).chunks) == 1


def test_a_lease_that_arrives_after_the_cancellation_is_released():
    server = FragmentServer(RULES)
    channel = LateChannel(server)
    replay = filled(RemoteFragments(channel))

    async def cancel():
        task = asyncio.create_task(replay.afetch(1))
        await asyncio.sleep(0)  # the task waits for the answer
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    channel.deliver()
    assert replay.metrics()["replay/leases"] == 0


class LateChannel(LocalChannel):
    """Delivers the answer of the first fetch on request."""

    late = None

    def begin(self, operation, *values, **options):
        call = super().begin(operation, *values, **options)
        if operation is not FragmentServer.fetch or self.late is not None:
            return call
        late = Future()
        late.set_running_or_notify_cancel()
        self.late = late, call.result()
        return late

    def deliver(self):
        call, lease = self.late
        call.set_result(lease)


class SilentChannel(LocalChannel):
    def begin(self, operation, *values, **options):
        return Future()


def test_a_fetch_from_a_silent_server_times_out_with_its_name():
    replay = RemoteFragments(SilentChannel(FragmentServer(RULES, name="rollouts")), timeout_s=0.05)
    with pytest.raises(ReplayTimeoutError, match=r"fetch\(2\): 'rollouts' did not answer in 0.05 s"):
        replay.fetch(2, timeout_s=0)
