"""The actor: tasks write, a reader copies from shared memory, and processes die."""

import os
import signal
import sys

import numpy as np
import pytest

from tests.replay.plain_replay import assert_fit_for_torch
from tests.replay.remote.conftest import content
from tests.waiting import wait_until
from trieye.checkpoints.directory import load_parts, save_parts
from trieye.exceptions import TrieyeError
from trieye.replay.remote import RemoteReplay


@pytest.fixture
def ray(ray_cluster):
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker can import a test
    yield ray
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def start(ray):
    """Return a function that starts a replay actor."""
    started = []

    def make(**options):
        buffer = {"capacity": 4000, "schema": {"obs": (np.float32, (3,)), "x": np.int64, "terminated": np.bool_}}
        started.append(RemoteReplay.start(buffer, **options))
        return started[-1]

    yield make
    for replay in started:
        replay.close()


def add_rows(writer, number, values):
    """Add rows that encode their origin."""
    for value in values:
        x = 10_000 * number + value
        writer.add(obs=np.full(3, x, np.float32), x=x, terminated=False)


def write(replay, number):
    with replay.writer(flush_rows=64) as writer:
        for first in range(1, 601, 100):
            add_rows(writer, number, range(first, first + 100))
            writer.flush()


def check(batch):
    assert (batch["obs"] == batch["x"][:, None]).all()


@pytest.mark.slow
def test_no_row_is_lost_or_duplicated_after_kills_of_a_writer_and_the_actor(ray, start, tmp_path):
    replay = start(directory=tmp_path / "snapshot", snapshot_every_s=0.2)
    task = ray.remote(num_cpus=0, max_retries=0)(write)
    done = [task.remote(replay, number) for number in (1, 2)]
    victim = ray.remote(num_cpus=0)(Victim).remote()
    ray.get(victim.add.remote(replay, 3))
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(victim.die.remote())
    with replay.reader() as reader, replay.writer(flush_rows=64) as writer:
        check(batch := reader.sample(32))
        assert_fit_for_torch(batch)
        assert reader.stats()["reader_attached"]
        add_rows(writer, 4, range(1, 301))
        writer.flush()
        ray.get(done)
        saved = replay.stats()["snapshots"] + 2
        wait_until(lambda: replay.stats()["snapshots"] >= saved)
        add_rows(writer, 4, range(301, 401))
        writer.flush()
        pid = int(replay.stats()["pid"])
        os.kill(pid, signal.SIGKILL)
        for _ in range(30):  # more than the reader has drawn ahead
            check(reader.sample(32))
        reader.wait(2 * 600 + 500 + 400)
        assert replay.stats()["pid"] != pid
        assert reader.stats()["reader_attached"]
        assert writer.stats()["lost_rows"] == 0
    values = np.array(content(replay))
    for number, count in ((1, 600), (2, 600), (3, 500), (4, 400)):
        assert (values[values // 10_000 == number] - 10_000 * number).tolist() == list(range(1, count + 1))


class Victim:
    """A worker that is killed with rows in flight."""

    def add(self, replay, number):
        self.writer = replay.writer(flush_rows=1000, flush_ms=60_000)
        add_rows(self.writer, number, range(1, 501))
        self.writer.flush()
        add_rows(self.writer, number, range(501, 601))

    def die(self):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_named_actor_is_reused_until_it_is_closed_and_unattached_readers_receive_copies(ray, start, tmp_path):
    replay = start(name=f"replay_{os.getpid()}")
    again = RemoteReplay.start({"capacity": 1}, name=f"replay_{os.getpid()}")
    with replay.writer() as writer:
        writer.extend({"obs": np.zeros((10, 3), np.float32), "x": np.zeros(10, int), "terminated": np.zeros(10, bool)})
    assert again.stats()["size"] == 10
    save_parts(tmp_path / "checkpoint", again)
    again.load_state_dict(load_parts(tmp_path / "checkpoint"))
    assert replay.stats()["added"] == 10
    with again.reader(attach=False) as reader:
        batch = reader.sample(4)
        batch["x"][:] = 1
        assert_fit_for_torch(batch)
        assert reader.sample(4, device="cpu")["x"].tolist() == [0] * 4
        reader.update_priorities(batch.ids, np.ones(4))
    writer, reader = again.writer(timeout_s=30), again.reader(timeout_s=30)
    replay.close()
    writer.add(x=1)
    for call in (writer.flush, lambda: reader.sample(1), writer.close):
        with pytest.raises(TrieyeError, match="permanently gone"):
            call()


@pytest.mark.long
def test_an_actor_that_cannot_start_reports_the_cause(start, tmp_path):
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "something").touch()
    with pytest.raises(TrieyeError, match=r"permanently gone: .*CheckpointError.*snapshot"):
        start(directory=tmp_path / "snapshot").stats()
