"""Readers draw the rows that writers sent, even if rows are overwritten or processes die."""

import copy
import threading
import time

import numpy as np
import pytest

from tests.replay.remote.conftest import add_rows, row
from tests.waiting import wait_until
from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.hindsight import HindsightRelabeler


def add(replay, values, **options):
    values = np.asarray(values)
    obs = np.repeat(values[:, None], 3, axis=1).astype(np.float32)
    with replay.writer(**options) as writer:
        writer.extend({"obs": obs, "x": values, "terminated": np.zeros(len(values), bool)})


def check(batch, n):
    assert len(batch) == n
    assert (batch["obs"] == batch["x"][:, None]).all()


@pytest.mark.parametrize(("storage", "attach"), [("shm", True), ("shm", False), ("ram", True)])
def test_batches_contain_consistent_rows_with_and_without_shared_memory(make_replay, storage, attach):
    replay = make_replay(storage=storage, gamma=0.5)
    add(replay, np.arange(100, 1400))
    with replay.reader(attach=attach) as reader:
        batch = reader.sample(64)
        check(batch, 64)
        assert batch["discount"].tolist() == [0.5] * 64
        assert (batch["x"] == batch.ids + 100).all()
        assert batch.ids.min() >= 300
        assert batch.weights.tolist() == [1.0] * 64
        assert reader.stats()["reader_attached"] == ((storage, attach) == ("shm", True))
        memory = batch["obs"]
        again = reader.sample(64, out=batch)
        check(again, 64)
        assert np.shares_memory(again["obs"], memory)
        assert list(reader.sample(5, keys=["x"])) == ["x"]
        assert [len(each) for each in reader.sample_many(3, 8)] == [8, 8, 8]
        batch["x"][:] = 0
        with pytest.raises(ConfigurationError, match="out"):
            reader.sample(5, out=batch)


@pytest.mark.parametrize(("prefetch", "attach"), [(0, True), (2, False)])
def test_iter_batches_yields_full_batches(make_replay, prefetch, attach):
    replay = make_replay()
    add(replay, range(500))
    with replay.reader(attach=attach) as reader:
        batches = reader.iter_batches(16, prefetch=prefetch, keys=["obs", "x"])
        for _ in range(10):
            batch = next(batches)
            check(batch, 16)
            reader.update_priorities(batch.ids, np.ones(16))
        if prefetch:
            batches.close()


def test_rows_overwritten_after_planning_are_redrawn(make_replay):
    replay = make_replay(100)
    add(replay, range(100))
    with replay.reader(ahead=8) as reader:
        reader.sample_many(2, 32)
        add(replay, range(100, 160))
        batches = reader.sample_many(8, 32)
        assert min(batch.ids.min() for batch in batches) >= 60
        for batch in batches:
            check(batch, 32)
            assert (batch["x"] == batch.ids).all()
        assert reader.stats()["reader_redrawn"] > 0


def test_redrawn_rows_count_once(make_replay):
    priorities = {"beta": 0.4, "beta_draws": 100}
    limiter = {"samples_per_insert": 2.0, "min_size_to_sample": 1, "error_buffer": 322.0}
    replay = make_replay(100, sampler="prioritized", sampler_options=priorities, limiter=limiter)
    add(replay, range(100))
    with replay.reader(ahead=8, timeout_s=0.1) as reader:
        batches = reader.sample_many(2, 32)
        add(replay, range(100, 160))
        with pytest.raises(ReplayTimeoutError, match="limiter"):
            while True:
                batches.append(reader.sample(32))
        assert reader.stats()["reader_redrawn"] > 0
        assert len(batches) * 32 == replay.stats()["sampled"] == 2 * 160 + 322 - 2
        assert [batch.info["beta"] for batch in batches] == pytest.approx(0.4 + 0.6 * np.arange(20) / 100)


def test_withheld_rows_do_not_count_as_used_and_sampling_waits_for_unused_rows(make_replay):
    replay = make_replay(100, max_reuse=1)
    add(replay, range(100))
    with replay.reader(ahead=1, timeout_s=0.05) as reader:
        ids = [batch.ids[0] for batch in reader.sample_many(2, 1)]
        add(replay, range(100, 150))
        with pytest.raises(ReplayTimeoutError, match="max_reuse 1"):
            while True:
                ids.append(reader.sample(1).ids[0])
    assert len(ids) == len(set(ids))
    assert set(range(50, 150)) <= set(ids)
    threading.Timer(0.05, add, (replay, range(8))).start()
    assert replay.reader(ahead=1).sample(1).ids[0] >= 150


def test_frame_stacks_overwritten_after_planning_are_redrawn(make_replay):
    replay = make_replay(20, frame_stack={"x": 3})
    with replay.writer() as writer, replay.reader(ahead=64, timeout_s=5) as reader:
        for value in range(25):
            if value == 20:
                writer.flush()
                reader.sample_many(2, 1)
            writer.add(**row(value))
        writer.flush()
        stacks = np.concatenate([reader.sample(1)["x"] for _ in range(63)])
        assert (np.diff(stacks, axis=1) == 1).all()
        assert stacks.min() == 5


def test_the_oldest_rows_are_withheld_during_fast_inserts(make_replay):
    replay = make_replay(1000)
    add(replay, range(1000))
    with replay.reader(ahead=1) as reader:
        reader.sample_many(2, 1)
        add(replay, range(500))
        assert min(reader.sample(64).ids.min() for _ in range(2)) >= 600


def test_rows_stay_consistent_during_continuous_overwriting(make_flaky):
    (replay, _), is_over = make_flaky(300), threading.Event()

    def write():
        with replay.writer(flush_rows=50) as writer:
            value = 0
            while not is_over.is_set():
                writer.add(**row(value))
                value += 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        with replay.reader(timeout_s=float("inf")) as reader:
            reader.wait(300)
            while replay.stats()["added"] < 900:  # each row is overwritten twice
                batch = reader.sample(16)
                check(batch, 16)
                assert (batch["x"] == batch.ids).all()
    finally:
        is_over.set()
    thread.join()


def test_a_reader_survives_server_crashes_and_lost_calls(make_flaky):
    replay, channel = make_flaky(loss=0.2, seed=5)
    with replay.reader(ahead=2) as reader:
        for first in (0, 50, 100):
            add(replay, range(first, first + 50))
            replay.snapshot()
            wait_until(lambda first=first: reader.sample(8)["x"].max() >= first)
            channel.die()
            for _ in range(6):
                check(reader.sample(8), 8)


def test_sampling_waits_for_rows_and_the_timeout_states_the_reason(make_replay):
    replay = make_replay()
    reader = replay.reader(timeout_s=0.05)
    with pytest.raises(
        ReplayTimeoutError, match=r"nothing to draw for sample\(4\) in 0.05 s \(the replay buffer is empty; add rows"
    ):
        reader.sample(4)
    with pytest.raises(ReplayTimeoutError, match=r"reached 0 of 10 rows in 0.05 s \(10 rows are missing\)"):
        reader.wait(10, timeout_s=0.05)
    with pytest.raises(ConfigurationError, match="cannot attach to replay 'replay': it has no rows yet"):
        replay.attach()
    threading.Timer(0.05, add, (replay, range(10))).start()
    check(replay.reader().sample(4), 4)


def test_priority_updates_reach_the_server_and_late_ones_are_counted(make_replay):
    replay = make_replay(100, sampler="prioritized", sampler_options={"epsilon": 0.0})
    add(replay, range(100))
    with replay.reader(ahead=1) as reader:
        reader.update_priorities([1], [1.0])
        reader.flush()
        assert reader.stats()["late_updates"] == 1
        ids = reader.sample(8).ids
        every = np.arange(100)
        reader.update_priorities(every, every == ids[0])
        reader.flush()
        reader.sample_many(2, 8)
        assert set(reader.sample(8).ids.tolist()) == {int(ids[0])}
        add(replay, range(100))
        reader.update_priorities(ids, np.ones(8))
        reader.flush()
        assert reader.stats()["late_updates"] == 9
        reader.update_priorities(ids, np.full(8, -1.0))
        with pytest.raises(ConfigurationError, match="at least 0"):
            reader.flush()
        with pytest.raises(ConfigurationError, match="both must be"):
            reader.update_priorities(ids, [1.0])


@pytest.mark.parametrize("attach", [True, False])
def test_priorities_of_batches_from_before_a_server_crash_are_ignored_and_counted(make_flaky, attach):
    replay, channel = make_flaky(sampler="prioritized")
    add(replay, range(50))
    replay.snapshot()
    add(replay, range(50, 100))
    with replay.reader(ahead=1, attach=attach) as reader:
        ids = reader.sample(8).ids
        channel.die()
        add(replay, range(200, 250))  # reuses the ids of the lost rows
        new_ids = reader.sample(8).ids
        assert not set(ids.tolist()) & set(new_ids.tolist())
        reader.update_priorities(np.concatenate((ids, new_ids)), [9.0] * 8 + [5.0] * 8)
        reader.flush()
        assert reader.stats()["late_updates"] == 8


def test_a_reader_without_shared_memory_discards_batches_drawn_before_a_restore(make_replay, tmp_path):
    replay = make_replay()
    add(replay, range(50))
    replay.snapshot(tmp_path / "snapshot")
    add(replay, range(50, 100))
    with replay.reader(ahead=8, attach=False) as reader:
        for n in (32, 16):
            assert reader.sample(n)["x"].max() >= 50
        replay.restore(tmp_path / "snapshot")
        reader.sample_many(3, 32)  # the third one starts the next call
        for n in (32, 16, 32):
            assert reader.sample(n)["x"].max() < 50


def test_lost_priority_updates_are_counted_and_do_not_block(make_flaky):
    replay, channel = make_flaky(sampler="prioritized")
    add(replay, range(100))
    with replay.reader() as reader:
        ids = reader.sample(8).ids
        channel.loss = 1.0
        reader.update_priorities(ids, np.ones(8))
        reader.flush()
        channel.loss = 0.0
        assert reader.stats()["reader_lost_updates"] == 8


def test_a_rate_limiter_blocks_writers_and_readers_in_turn(make_replay):
    limiter = {"samples_per_insert": 2.0, "min_size_to_sample": 32, "error_buffer": 32.0}
    replay = make_replay(limiter=limiter)
    with replay.writer(flush_rows=8, max_inflight=1) as writer, replay.reader(ahead=2, timeout_s=0.2) as reader:
        with pytest.raises(ReplayTimeoutError, match="empty"):
            reader.sample(8)
        add_rows(writer, range(48))
        writer.flush()
        writer.add(**row(48))
        with pytest.raises(ReplayTimeoutError, match="the limiter of replay 'replay' requires more draws first"):
            writer.flush(0.2)
        for _ in range(6):
            check(reader.sample(8), 8)
        writer.flush(20)
        with pytest.raises(ReplayTimeoutError, match="the limiter requires more inserts first"):
            for _ in range(100):
                reader.sample(8)
        stats = replay.stats()
        assert stats["sampled"] <= 2 * stats["added"] + 32


def test_a_writer_waits_for_the_limiter_with_batches_above_its_error_buffer(make_replay):
    replay = make_replay(limiter={"samples_per_insert": 8.0, "error_buffer": 1024.0})
    with replay.writer() as writer, replay.reader(timeout_s=5) as reader:
        writer.extend({"x": np.arange(600), "terminated": np.zeros(600, bool)})
        with pytest.raises(ReplayTimeoutError, match="the limiter of replay 'replay' requires more draws first"):
            writer.flush(0.2)
        while replay.stats()["added"] < 600:
            assert len(reader.sample(256)) == 256


def no_reward(achieved, desired, info):
    return np.zeros(len(achieved))


def test_hindsight_goals_are_relabelled_on_the_server(make_replay):
    replay = make_replay(her=HindsightRelabeler(no_reward))
    with replay.writer() as writer:
        for value in range(20):
            goals = {"next_achieved_goal": float(value), "desired_goal": 100.0}
            writer.add(**row(value, terminated=value == 19), reward=1.0, **goals)
    batch = replay.reader().sample(64)
    assert (batch["desired_goal"] < 20).any()
    with pytest.raises(ConfigurationError, match="cannot attach to replay"):
        replay.attach()


def test_a_copied_reader_draws_independently(make_replay):
    replay = make_replay()
    add(replay, range(10))
    with replay.reader(ahead=3) as reader:
        with copy.copy(reader) as other:
            for batch in other.sample_many(2, 4):  # a single draw first, then three per call
                check(batch, 4)
        check(reader.sample(4), 4)
        assert replay.stats()["sampled"] == 4 * (1 + 3 + 1)


def test_a_closed_reader_rejects_calls(make_replay):
    replay = make_replay()
    add(replay, range(10))
    reader = replay.reader()
    reader.close()
    reader.close()
    for use in (lambda: reader.sample(1), lambda: reader.update_priorities([1], [1.0])):
        with pytest.raises(ReplayClosedError):
            use()


def test_out_of_range_arguments_are_rejected(make_replay):
    replay = make_replay()
    with pytest.raises(ConfigurationError, match="ahead is 0"):
        replay.reader(ahead=0)
    with pytest.raises(ConfigurationError, match="must be at least 1"):
        replay.reader().sample(0)
    with pytest.raises(ConfigurationError, match="flush_rows is 0"):
        replay.writer(flush_rows=0)


def test_a_reader_times_out_on_an_unreachable_server(make_flaky):
    (replay, _), began = make_flaky(loss=2.0), time.monotonic()
    with pytest.raises(ReplayTimeoutError, match="lost on the way"):
        replay.reader(timeout_s=0.3).sample(1)
    assert time.monotonic() - began < 5
