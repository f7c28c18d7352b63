"""The server: snapshots and restarts."""

from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import numpy as np
import pytest

import trieye
from tests.replay.remote.conftest import FlakyChannel, add_rows, local_replay, row
from tests.waiting import wait_until
from trieye.checkpoints.directory import load_parts
from trieye.config.replay import ReplayConfig
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.replay import ReplayBuffer
from trieye.replay.remote import FragmentServer, LocalChannel, RemoteReplay, ReplayServer
from trieye.replay.remote.channel import Group, operations_of
from trieye.replay.remote.handle import shared_arguments
from trieye.replay.remote.messages import RowBatch

BUFFER = {"capacity": 50}


@pytest.mark.parametrize("server", [ReplayServer, FragmentServer])
def test_operations_are_named_like_their_methods(server):
    operations = operations_of(server)
    assert {"snapshot", "state_parts", "load_state_dict", "restore", "set_version"} < operations.keys()
    assert [name for name in operations if getattr(server, name).__name__ != name] == []
    assert set(operations.values()) <= {None, *get_args(Group)}


def filled(server, seed=0):
    replay = RemoteReplay(LocalChannel(server))
    with replay.writer() as writer:
        for value in range(70):
            writer.add(**row(value + seed))
    return replay


def draws(replay, count=5):
    reader = replay.reader(ahead=1)
    return [reader.sample(8)["x"].tolist() for _ in range(count)]


def test_a_server_resumes_from_its_snapshot_with_its_own_capacity(tmp_path):
    filled(ReplayServer(BUFFER, directory=tmp_path / "snapshot")).snapshot()
    replay = local_replay({"capacity": 30}, directory=tmp_path / "snapshot")
    assert replay.stats()["size"] == 30
    assert min(replay.reader().sample(200)["x"]) >= 40


def test_a_snapshot_survives_a_kill_during_its_replacement(tmp_path):
    filled(ReplayServer(BUFFER, directory=tmp_path / "snapshot")).snapshot()
    (tmp_path / "snapshot").rename(tmp_path / ".old-snapshot~elsewhere~1~0a0a0a0a")
    replay = local_replay(BUFFER, directory=tmp_path / "snapshot")
    assert replay.stats()["size"] == 50


def test_snapshots_are_written_periodically(tmp_path):
    server = ReplayServer(BUFFER, directory=tmp_path / "snapshot", snapshot_every_s=0.02)
    filled(server)
    enough = server.num_written + 3
    wait_until(lambda: server.num_written >= enough)
    server.close()
    assert load_parts(tmp_path / "snapshot").state["store"]["total"] == 70


def test_a_failed_snapshot_is_reported_and_counted(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError):
        ReplayServer(BUFFER, directory=tmp_path / "file")
    server = ReplayServer(BUFFER, directory=tmp_path / "file" / "below", snapshot_every_s=0.01)
    wait_until(lambda: server.stats()["failed_snapshots"] >= 1)
    server.close()
    assert "writing a snapshot failed" in capsys.readouterr().err


def test_invalid_directories_are_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="requires a snapshot directory"):
        ReplayServer(BUFFER, snapshot_every_s=1.0)
    with pytest.raises(ConfigurationError, match="no snapshot directory"):
        ReplayServer(BUFFER).snapshot()
    with pytest.raises(CheckpointError):
        ReplayServer(BUFFER).restore(tmp_path / "nothing")


def test_a_config_describes_the_buffer():
    config = ReplayConfig(
        kind="prioritized", capacity=40, n_step=2, limiter={"samples_per_insert": 8.0}, prioritized={"alpha": 1.0}
    )
    arguments = shared_arguments(config, seed=3)
    assert arguments["storage"] == "shm"
    replay = local_replay(arguments)
    with replay.writer(flush_rows=1) as writer:
        for value in range(3):
            writer.add(**row(value), reward=1.0)
        writer.flush(30)
        assert (replay.reader(ahead=1).sample(1)["n"] <= 2).all()
    with pytest.raises(ConfigurationError, match="RemoteFragments"):
        shared_arguments(ReplayConfig(kind="fragment"))


def test_environments_keep_their_numbers_across_a_restart(tmp_path):
    options = {"capacity": 100, "sampler": "sequence", "sampler_options": {"length": 10}}
    channel = FlakyChannel(lambda: ReplayServer(options, directory=tmp_path / "snapshot"))
    replay = RemoteReplay(channel)
    with replay.writer(flush_rows=1) as writer, replay.writer(flush_rows=1) as other:
        for value in range(5):
            writer.add(**row(value))
            writer.flush()
            other.add(**row(100 + value))
            other.flush()
        replay.snapshot()
        channel.die()
        for value in range(5, 10):
            writer.add(**row(value))
            other.add(**row(100 + value))
        writer.flush()
        other.flush()
        drawn = replay.reader().sample(20)["x"]
    assert (np.diff(drawn, axis=1) == 1).all()


def test_writers_of_a_restored_buffer_continue_none_of_its_episodes(tmp_path):
    options = {"capacity": 100, "sampler": "sequence", "sampler_options": {"length": 5}}
    buffer = ReplayBuffer(**options)
    add_rows(buffer, range(5))
    buffer.save(tmp_path / "buffer")
    replay = local_replay(options)
    replay.restore(tmp_path / "buffer")
    with replay.writer() as writer:
        add_rows(writer, range(5, 10))
        writer.flush()
        drawn = replay.reader().sample(100)["x"]
    assert {tuple(window) for window in drawn.tolist()} == {(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)}


def test_rows_after_lost_rows_are_drawn_with_complete_frame_stacks_only():
    channel = FlakyChannel(lambda: ReplayServer({"capacity": 100, "frame_stack": {"x": 3}}))
    replay = RemoteReplay(channel)
    with replay.writer(flush_rows=1, keep_bytes=0) as writer:
        for value in range(4):
            writer.add(0, **row(value))
            writer.add(1, **row(100 + value))
        writer.flush()
        channel.die()
        for value in range(4, 9):
            writer.add(0, **row(value))
        for value in range(4, 9):
            writer.add(1, **row(100 + value))
        writer.flush()
        drawn = replay.reader().sample(200)["x"]
    assert sorted(set(drawn[:, -1])) == [6, 7, 8, 106, 107, 108]
    assert (np.diff(drawn, axis=1) == 1).all()


def test_a_run_checkpoint_contains_the_replay(make_config):
    replay = filled(ReplayServer(BUFFER))
    with trieye.Run(make_config()) as run:
        run.step = 1
        run.save(rows=replay).wait(60)
        with replay.writer() as writer:
            writer.add(**row(70))
        run.step = 2
        path = run.save(rows=replay).wait(60)
        after = draws(replay)
    links = [file.stat().st_nlink for file in (path / "parts").iterdir()]
    assert sorted(links) == [1, 2]
    other = local_replay(BUFFER)
    with trieye.Run(make_config()) as run:
        assert run.restore(rows=other)
        assert run.step == 2
    assert draws(other) == after


def test_a_restore_and_a_later_restart_continue_with_the_restored_rows_and_draws(tmp_path):
    server = ReplayServer(BUFFER, directory=tmp_path / "snapshot")
    replay = filled(server)
    draws(replay)
    replay.snapshot(tmp_path / "checkpoint")
    after = draws(replay)
    filled(server, seed=1000)
    replay.snapshot()
    replay.restore(tmp_path / "checkpoint")
    again = local_replay(BUFFER, directory=tmp_path / "snapshot")
    assert draws(again) == draws(replay) == after
    assert (again.stats()["size"], again.stats()["added"]) == (50, 70)


def test_redrawn_rows_get_the_weights_of_a_single_draw():
    options = {"sampler": "prioritized", "sampler_options": {"alpha": 1.0, "beta": 1.0, "epsilon": 0.0}}
    server = ReplayServer({"capacity": 200, **options})
    replay = RemoteReplay(LocalChannel(server))
    priorities = np.arange(1, 2000) % 50 + 1.0
    num_held_back = 0
    for first in range(0, 1000, 40):
        with replay.writer() as writer:
            writer.extend({"x": np.arange(first, first + 40)}, priorities=priorities[first : first + 40])
        _, (draw,) = server.plan(1, 64, 0.0)
        expected = 1 / priorities[draw.ids]
        assert draw.weights == pytest.approx(expected / expected.max(), rel=1e-5)
        assert draw.weights.dtype == np.float32
        num_held_back += first >= 400 and draw.ids.min() >= first + 40 - 180
    assert num_held_back > 10


def test_episodes_of_closed_writers_are_forgotten():
    server = ReplayServer({"capacity": 100, "n_step": 3})
    replay = RemoteReplay(LocalChannel(server))
    for _ in range(20):
        with replay.writer() as writer:
            for env_id in range(5):
                writer.add(env_id, reward=1.0, done=False)
    state = server.state_parts(()).state
    assert len(state["store"]["links"]["last"]) == 0
    assert state["server"]["envs"] == []


def rows_of(count, **more):
    return RowBatch({"x": np.arange(count)}, **more)


def test_inserts_wake_waiting_readers_and_draws_wake_waiting_writers():
    limiter = {"samples_per_insert": 1.0, "error_buffer": 2.0}
    server = ReplayServer({"capacity": 9, "limiter": limiter})

    def start_waiting(operation, *values):
        call = threads.submit(operation, *values, 60.0)
        wait_until(call.running)
        for _ in range(100):
            server.stats()  # alternates with the waiting thread in taking the lock
        return call

    with ThreadPoolExecutor(1) as threads:
        reader = start_waiting(server.plan, 1, 1)
        server.add_batch("w", 0, 0, rows_of(3))
        assert len(reader.result(20)[1]) == 1
        server.add_batch("w", 3, 0, rows_of(1))
        writer = start_waiting(server.await_insert, "w")
        server.plan(1, 1, 0.0)
        assert writer.result(20).refused == ""


def test_a_restored_server_keeps_its_version_and_limiter_in_a_new_generation(tmp_path):
    limiter = {"samples_per_insert": 1.0, "min_size_to_sample": 2, "error_buffer": 100.0}
    arguments = {"capacity": 50, "max_staleness": 0, "limiter": limiter}
    server, other = ReplayServer(arguments), ReplayServer(arguments)
    server.set_version(3)
    server.add_batch("w", 0, 0, rows_of(102))
    server.snapshot(tmp_path / "snapshot")
    before = server.memory()[0]
    for one in (server, other):
        one.restore(tmp_path / "snapshot")
        assert "requires more draws first" in one.await_insert("w", 0.0).refused
    assert server.memory()[0] != before
    other.plan(1, 50, 0.0)
    other.add_batch("w", 102, 102, rows_of(1, versions=np.array([-1])))
    assert 102 in other.plan(1, 100, 0.0)[1][0].ids  # as new as the others


def test_only_snapshots_in_the_server_directory_acknowledge_rows_as_saved(tmp_path):
    server = ReplayServer(BUFFER, directory=tmp_path / "own")
    server.add_batch("w", 0, 0, rows_of(3))
    for directory, saved in ((tmp_path / "elsewhere", 0), (None, 3)):
        server.snapshot(directory)
        assert server.await_insert("w", 0.0).saved == saved
