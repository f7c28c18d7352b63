"""Writers: rows arrive exactly once and in order, even if calls are lost."""

import copy
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from tests.forked import in_a_child
from tests.replay.remote.conftest import add_rows, content, row
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError, TrieyeError
from trieye.replay.remote import LocalChannel, ReplayServer, Writer


def test_flush_returns_after_all_rows_are_stored(make_replay):
    replay = make_replay()
    with replay.writer(flush_rows=8, flush_ms=10_000) as writer:
        add_rows(writer, range(20))
        writer.flush()
        assert content(replay) == list(range(20))
        assert writer.stats()["taken"] == 20


def test_a_partial_batch_is_sent_after_flush_ms(make_replay):
    replay = make_replay()
    with replay.writer(flush_rows=1000, flush_ms=5) as writer:
        writer.add(**row(7))
        replay.reader().wait(1, timeout_s=20)
        assert replay.stats()["size"] == 1


def test_large_rows_are_sent_in_smaller_batches(make_replay):
    replay = make_replay(30)
    with replay.writer(flush_ms=60_000) as writer:
        for value in range(10):
            writer.add(obs=np.full(1 << 20, value % 256, np.uint8))
        writer.flush()
        assert writer.stats()["kept_bytes"] == 12 << 20  # three batches of 4 MiB


def test_extend_splits_rows_into_batches_in_order(make_replay):
    replay = make_replay(sampler="prioritized")
    with replay.writer(flush_rows=16) as writer:
        writer.add(**row(0))
        values = np.arange(1, 100)
        batch = {"obs": np.zeros((99, 3), np.float32), "x": values, "terminated": np.zeros(99, bool)}
        writer.extend(batch, env_ids=values % 3, priorities=np.where(values == 50, 1e9, 1e-9))
        writer.flush()
    assert content(replay) == list(range(100))
    assert (replay.reader().sample(64)["x"] == 50).mean() > 0.9


def test_rows_are_stored_with_the_model_version_of_the_writer(make_replay):
    schema = {"obs": (np.float32, (3,)), "x": np.int64, "terminated": np.bool_}
    replay = make_replay(max_staleness=1, schema=schema)
    replay.set_version(5)
    with replay.writer() as writer:
        writer.version = 3
        writer.add(**row(3))
        writer.version = 4
        writer.extend({"obs": np.zeros((2, 3), np.float32), "x": [4, 4], "terminated": [False, False]})
        writer.version = None
        writer.add(**row(5))
    assert set(replay.reader().sample(64)["x"].tolist()) == {4, 5}
    assert replay.metrics()["replay/size"] == 4


def test_an_invalid_row_is_rejected_and_not_added(make_replay):
    with make_replay().writer() as writer:
        writer.add(**row(1))
        with pytest.raises(ConfigurationError, match="'y' is unknown"):
            writer.add(**row(1), y=3)
        for env_ids in ([1, 2], [0.9], ["a"], [-1], [1 << 40]):
            with pytest.raises(ConfigurationError, match=r"env_ids are .*; expected"):
                writer.extend({"x": [1]}, env_ids=env_ids)
            with pytest.raises(ConfigurationError, match=r"env_ids are .*; expected"):
                writer.add(env_ids[-1] if len(env_ids) == 1 else env_ids, x=1)
        with pytest.raises(ConfigurationError, match="extend: priorities must be finite"):
            writer.extend({"x": [1]}, priorities=[-1.0])
        writer.flush()
        assert writer.stats()["added"] == 1


def test_rows_that_the_server_rejects_raise_in_the_writer(make_replay, capsys):
    replay = make_replay(schema={"x": np.int64})
    writer = replay.writer(flush_rows=1)
    writer.add(**row(1))
    with pytest.raises(ConfigurationError, match="is unknown"):
        writer.flush(20)
    with pytest.raises(ConfigurationError):
        writer.add(**row(1))
    with pytest.raises(ConfigurationError):
        writer.close()
    assert "accepts no more rows of this writer" in capsys.readouterr().err


def test_a_closed_writer_rejects_rows_and_can_be_closed_again(make_replay):
    replay = make_replay()
    with replay.writer() as writer:
        writer.add(**row(1))
    writer.close()
    with pytest.raises(ReplayClosedError):
        writer.add(**row(1))
    assert replay.stats()["writers"] == 0


def test_a_writer_times_out_on_a_silent_server_with_the_reason():
    class SilentChannel(LocalChannel):
        def begin(self, operation, *values):
            return Future() if operation is ReplayServer.add_batch else super().begin(operation, *values)

    writer = Writer(SilentChannel(ReplayServer({"capacity": 10})), flush_rows=2, max_inflight=2, timeout_s=0.05)
    add_rows(writer, range(6))
    with pytest.raises(ReplayTimeoutError, match="6 rows are not acknowledged: it does not answer"):
        writer.add(**row(6))
    with pytest.raises(ReplayTimeoutError):
        writer.close()


def test_a_copied_writer_is_a_separate_client(make_replay):
    replay = make_replay()
    with replay.writer(flush_rows=2, flush_ms=60_000) as writer, copy.copy(writer) as other:
        assert other.client != writer.client
        add_rows(other, (1, 2))
        replay.reader().wait(2, timeout_s=20)
        assert content(replay) == [1, 2]


def test_a_writer_does_not_work_in_a_forked_process(make_replay):
    def add():
        with pytest.raises(ReplayClosedError, match="does not survive a fork"):
            writer.add(**row(2))

    with make_replay().writer(flush_ms=60_000) as writer:
        assert in_a_child(add) == 0
        writer.add(**row(1))  # starts a batch
        with writer._lock:  # as if another thread added a row at this moment
            assert in_a_child(add) == 0


def fill(replay, number, count, writers, together):
    with replay.writer(flush_rows=7, flush_ms=2, max_inflight=3) as writer:
        writers.append(writer)
        for value in range(count):
            writer.add(**row(10_000 * number + value))
            if value % 50 == 0:
                writer.flush()
                together.wait(60)  # no writer finishes before the last death: its rows could not be resent


def test_every_row_arrives_exactly_once_despite_lost_calls_and_server_crashes(make_flaky, tmp_path):
    options = {"directory": tmp_path / "snapshot", "snapshot_every_s": 0.05}
    (replay, channel), writers = make_flaky(10_000, loss=0.1, seed=3, options=options), []
    together = threading.Barrier(3)
    fillings = [(replay, number, 200, writers, together) for number in range(3)]
    threads = [threading.Thread(target=fill, args=filling, daemon=True) for filling in fillings]
    for thread in threads:
        thread.start()
    for num_rows in (100, 200, 300):
        wait_until(lambda num_rows=num_rows: channel.server.stats()["added"] >= num_rows)
        channel.die()
    for thread in threads:
        thread.join()
    values = content(replay)
    for number in range(3):
        assert [value - 10_000 * number for value in values if value // 10_000 == number] == list(range(200))
    assert sum(writer.stats()["lost_rows"] for writer in writers) == 0


def test_a_lost_call_is_retried_promptly_despite_a_long_flush_interval(make_flaky):
    replay, _ = make_flaky(loss=0.4, seed=2)
    with replay.writer(flush_rows=2, flush_ms=3_600_000, timeout_s=20) as writer:
        add_rows(writer, range(21))
        writer.flush()
        assert content(replay) == list(range(21))


def test_a_garbage_collected_writer_ends_its_thread(make_replay):
    replay, before = make_replay(), set(threading.enumerate())
    writer = replay.writer(flush_rows=1, flush_ms=5)
    writer.add(**row(1))
    (thread,) = set(threading.enumerate()) - before
    del writer
    thread.join(20)
    assert not thread.is_alive()
    assert content(replay) == [1]


def test_an_idle_writer_resends_rows_lost_in_a_server_restart(make_flaky, monkeypatch):
    monkeypatch.setattr("trieye.replay.remote.courier.HEARTBEAT_S", 0.02)
    replay, channel = make_flaky()
    with replay.writer(flush_rows=2) as writer:
        add_rows(writer, range(6))
        writer.flush()
        replay.snapshot()
        add_rows(writer, range(6, 10))
        writer.flush()
        channel.die()
        replay.reader().wait(10, timeout_s=20)
        assert content(replay) == list(range(10))
        assert writer.stats()["resent_batches"] == 2


def numbered(value):
    """Return a row that encodes its own and the next position in an endless episode."""
    obs = np.full(1, value, np.float32)
    return row(value) | {"obs": obs, "next_obs": obs + 1, "reward": 1.0}


def longest(replay, draws=200):
    """Return the largest number of steps between the observations of an n-step row."""
    batch = replay.reader().sample(draws)
    return (batch["next_obs"] - batch["obs"]).max()


def test_permanently_lost_rows_are_reported_and_end_the_episode(make_flaky, capsys):
    replay, channel = make_flaky(n_step=3)
    with replay.writer(flush_rows=2, keep_bytes=0) as writer:
        for value in range(4):
            writer.add(**numbered(value))
        writer.flush()
        replay.snapshot()
        for value in range(4, 8):
            writer.add(**numbered(value))
        writer.flush()
        channel.die()
        for value in range(8, 12):
            writer.add(**numbered(value))
        writer.flush()
        assert content(replay) == [0, 1, 2, 3, 8, 9, 10, 11]
        assert longest(replay) == 3
        assert writer.stats()["lost_rows"] == replay.stats()["lost_rows"] == 4
    assert "lost 4 rows of this writer" in capsys.readouterr().err


def test_interrupt_starts_a_new_episode_in_each_environment_of_the_writer(make_replay):
    replay = make_replay(n_step=3)
    with replay.writer() as writer, replay.writer() as other:
        for first in (0, 100, 200):
            for value in range(first, first + 5):
                for env_id in (0, 1):
                    writer.add(env_id, **numbered(value))
                writer.extend({name: [item] for name, item in numbered(value).items()}, env_ids=[2])
                other.add(**numbered(first // 20 + value % 5))
            other.flush()
            if first:  # rows before and after an interruption may arrive together
                writer.flush()
            writer.interrupt()
        writer.flush()
        assert longest(replay, 500) == 3
        server = replay.channel._server
        assert len(server._env_codes[writer.client]) == 3


def test_an_error_while_closing_is_added_as_a_note_to_the_user_error(make_replay):
    replay = make_replay(schema={"x": np.int64})

    def use():
        with replay.writer(flush_rows=1) as writer:
            writer.add(**row(1))
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError) as caught:
        use()
    assert "is unknown" in caught.value.__notes__[0]
    assert not isinstance(caught.value, TrieyeError)
