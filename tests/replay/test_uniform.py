import json
import random
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trieye.config import ReplayConfig
from trieye.exceptions import ConfigurationError, SerializationError, TrieyeError
from trieye.replay import Batch, ReplayBuffer

SCHEMA = {"obs": (np.float32, (4,)), "action": np.int64, "reward": np.float32, "done": np.bool_}


def row(number):
    return {
        "obs": np.full(4, number, np.float32),
        "action": number,
        "reward": float(number),
        "done": number % 3 == 0,
    }


def rows(start, count):
    numbers = np.arange(start, start + count)
    return {
        "obs": np.repeat(numbers[:, None], 4, axis=1).astype(np.float32),
        "action": numbers,
        "reward": numbers.astype(np.float64),
        "done": numbers % 3 == 0,
    }


def filled(count, capacity=100, **options):
    buffer = ReplayBuffer(capacity, **options)
    buffer.extend(rows(0, count))
    return buffer


def assert_same(one: Batch, other: Batch):
    assert list(one) == list(other)
    assert np.array_equal(one.ids, other.ids)
    for key in one:
        assert one[key].dtype == other[key].dtype
        assert np.array_equal(one[key], other[key])


def test_ids_count_every_row_over_the_whole_life():
    buffer = ReplayBuffer(3)
    assert [buffer.add(**row(n)) for n in range(5)] == [0, 1, 2, 3, 4]
    assert buffer.extend(rows(5, 7)).tolist() == list(range(5, 12))
    buffer.clear()
    assert buffer.add(**row(0)) == 12
    assert len(buffer) == 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_content_is_always_the_newest_rows(sizes, capacity, seed):
    buffer, model = ReplayBuffer(capacity, SCHEMA, seed=seed), deque(maxlen=capacity)
    for size in sizes:
        if size == 1:
            model.append(buffer.add(**row(buffer.stats()["added"])))
        else:
            model.extend(buffer.extend(rows(buffer.stats()["added"], size)).tolist())
    assert len(buffer) == len(model)
    if model:
        batch = buffer.sample(64)
        assert set(batch.ids.tolist()) <= set(model)
        assert np.array_equal(batch["action"], batch.ids)
        assert np.array_equal(batch["obs"][:, 3], batch.ids.astype(np.float32))
        assert np.array_equal(batch["done"], batch.ids % 3 == 0)


@pytest.mark.parametrize("width", [4, 4096], ids=["packed", "columns"])
def test_every_row_is_drawn_equally_often(width):
    buffer = ReplayBuffer(50, seed=3)
    buffer.extend({"obs": np.zeros((80, width), np.float32), "number": np.arange(80)})
    counts = np.bincount(buffer.sample(100_000)["number"], minlength=80)
    assert counts[:30].sum() == 0
    expected = 100_000 / 50
    chi_square = (((counts[30:] - expected) ** 2) / expected).sum()
    assert chi_square < 85  # 49 degrees of freedom: p = 0.001


def test_values_are_copied_in_and_out():
    buffer, obs = ReplayBuffer(10), np.ones(4, np.float32)
    buffer.add(obs=obs)
    obs[:] = 7
    batch = buffer.sample(5)
    batch["obs"][:] = 9
    assert np.array_equal(buffer.sample(5)["obs"], np.ones((5, 4)))


@pytest.mark.parametrize("width", [4, 4096], ids=["packed", "columns"])
def test_a_reused_batch_is_written_in_place(width):
    buffer, twin = (ReplayBuffer(50, seed=1) for _ in range(2))
    for one in (buffer, twin):
        one.extend({"obs": np.random.default_rng(0).normal(size=(70, width)), "n": np.arange(70)})
    first = buffer.sample(16)
    memory = first["obs"]
    again = buffer.sample(16, out=first)
    twin.sample(16)
    fresh = twin.sample(16)
    assert np.shares_memory(again["obs"], memory)
    assert_same(again, fresh)
    with pytest.raises(ConfigurationError, match="holds 16 rows of obs, n; reuse a batch of the same size"):
        buffer.sample(17, out=first)


def test_only_the_asked_keys_are_handed_out():
    batch = filled(20).sample(8, keys=["reward", "obs"])
    assert list(batch) == ["reward", "obs"]
    with pytest.raises(ConfigurationError, match=r"'rewards' is unknown; did you mean 'reward'\?"):
        filled(20).sample(8, keys=["rewards"])


def test_a_batch_reads_like_a_mapping():
    batch = filled(20).sample(8)
    assert len(batch) == 8
    assert "obs" in batch
    assert "weight" not in batch
    assert set(dict(batch)) == set(SCHEMA)
    assert batch.weights.dtype == np.float32
    assert batch.weights.tolist() == [1.0] * 8
    assert batch.info["size"] == 20


def test_torch_takes_the_arrays_without_a_copy():
    batch = filled(20).sample(8)
    for key in batch:
        assert np.shares_memory(torch.from_numpy(batch[key]).numpy(), batch[key])


def test_many_batches_are_the_rows_of_as_many_single_draws():
    one, other = filled(90, seed=5), filled(90, seed=5)
    for many, single in zip(one.sample_many(6, 32), [other.sample(32) for _ in range(6)], strict=True):
        assert_same(many, single)
    assert_same(one.sample(7), other.sample(7))


def test_iterated_batches_keep_their_own_memory():
    batches, twin = filled(90, seed=5).iter_batches(16), filled(90, seed=5)
    for batch in [next(batches) for _ in range(4)]:
        assert_same(batch, twin.sample(16))


def test_the_schema_comes_from_the_first_row():
    buffer = ReplayBuffer(10)
    buffer.add(obs=np.zeros((2, 3), np.uint8), action=3, reward=0.5, done=True, q=np.float64(0.1))
    batch = buffer.sample(1)
    assert {key: (str(batch[key].dtype), batch[key].shape[1:]) for key in batch} == {
        "obs": ("uint8", (2, 3)),
        "action": ("int64", ()),
        "reward": ("float32", ()),
        "done": ("bool", ()),
        "q": ("float64", ()),
    }


BAD_ROWS = {
    "missing": ({"reward": 1.0}, r"row without 'obs', 'action', 'done'; every row needs: obs, action, reward, done"),
    "unknown": (
        {**row(1), "rewrd": 1},
        r"'rewrd' is unknown; did you mean 'reward'\? \(known: obs, action, reward, done\)",
    ),
    "shape": ({**row(1), "obs": np.zeros(3, np.float32)}, r"'obs': shape \(4,\) is expected, found \(3,\)"),
    "scalar for an array": ({**row(1), "obs": 1.0}, r"'obs': shape \(4,\) is expected, found \(\)"),
    "array for a scalar": ({**row(1), "reward": np.zeros(1)}, r"'reward': shape \(\) is expected, found \(1,\)"),
    "kind": ({**row(1), "action": 1.5}, "'action': int64 is expected, found float64"),
    "number for a bool": ({**row(1), "done": 1}, "'done': bool is expected, found int64"),
    "text": ({**row(1), "action": "left"}, "'action': int64 is expected, found <U4"),
    "range": (
        {**row(1), "action": np.uint64(2**63)},
        "'action': a value of 9223372036854775808 is out of range of int64",
    ),
    "huge": ({**row(1), "action": 2**80}, "'action': int64 is expected, found object"),
    "none": ({**row(1), "obs": None}, r"'obs': shape \(4,\) is expected, found \(\)"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("count", [2, 5], ids=["not full", "full"])
def test_a_refused_row_is_named_and_changes_nothing(case, count):
    bad, message = BAD_ROWS[case]
    buffer, twin = (ReplayBuffer(3, SCHEMA) for _ in range(2))
    for one in (buffer, twin):
        one.extend(rows(0, count))
    with pytest.raises(ConfigurationError, match=message):
        buffer.add(**bad)
    with pytest.raises(ConfigurationError):
        buffer.extend({key: np.asarray([value]) for key, value in bad.items()})
    assert buffer.stats()["added"] == count
    assert_same(buffer.sample(32), twin.sample(32))


def test_arrays_of_different_lengths_are_refused():
    uneven = {**rows(0, 5), "reward": np.zeros(4)}
    with pytest.raises(ConfigurationError, match=r"same number of rows, found obs \[5\], action \[5\], reward \[4\]"):
        ReplayBuffer(9, SCHEMA).extend(uneven)


def test_a_refused_first_row_leaves_no_schema_behind():
    buffer = ReplayBuffer(9)
    with pytest.raises(ConfigurationError, match="dtype <U4 cannot be kept"):
        buffer.add(action="left")
    with pytest.raises(ConfigurationError, match="same number of rows"):
        buffer.extend({"a": np.zeros(3), "b": np.zeros(2)})
    buffer.add(action=1)
    assert buffer.sample(1)["action"].tolist() == [1]


def test_numbers_are_widened_but_never_cut():
    buffer = ReplayBuffer(4, {"small": np.int8, "x": np.float32})
    buffer.add(small=np.int64(-128), x=np.int32(3))
    buffer.add(small=True, x=np.float64(0.25))
    assert min(buffer.sample(20)["small"].tolist()) == -128
    with pytest.raises(ConfigurationError, match="a value of 128 is out of range of int8"):
        buffer.add(small=128, x=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ReplayBuffer(0), "capacity is 0"),
        (lambda: ReplayBuffer(1.5), "capacity is 1.5"),
        (lambda: ReplayBuffer(9, sampler="unifrom"), r"'unifrom' is unknown; did you mean 'uniform'\?"),
        (lambda: ReplayBuffer(9, {}), "schema is empty"),
        (lambda: ReplayBuffer(9, {"a": "flot32"}), "'a': 'flot32' is no dtype"),
        (lambda: ReplayBuffer(9, {"a": object}), "dtype object cannot be kept"),
        (lambda: ReplayBuffer(1 << 45, SCHEMA), r"needs \d+\.\d GiB, more than there is; lower replay.capacity"),
        (lambda: ReplayBuffer(9).sample(4), "the replay buffer is empty"),
        (lambda: filled(9).sample(0), "at least 1 row"),
        (lambda: filled(9).sample_many(0, 4), "at least 1 batch"),
    ],
)
def test_mistakes_are_named(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_priorities_are_checked_and_ignored():
    buffer, twin = filled(130), filled(130)
    assert buffer.update_priorities([0, 29, 30, 129], [1.0, 2.0, 3.0, 0.0]) == 2
    assert_same(buffer.sample(32), twin.sample(32))
    for ids, priorities in (
        [[130], [1.0]],
        [[-1], [1.0]],
        [[0.5], [1.0]],
        [[1], [-1.0]],
        [[1], [np.nan]],
        [[1, 2], [1.0]],
    ):
        with pytest.raises(ConfigurationError, match="update_priorities"):
            buffer.update_priorities(ids, priorities)


@pytest.mark.parametrize("width", [4, 4096], ids=["packed", "columns"])
@pytest.mark.parametrize("count", [0, 3, 10, 37])
def test_a_restored_buffer_goes_on_with_the_same_draws(tmp_path, width, count):
    def batch(start, size):
        return {"obs": np.arange(start, start + size)[:, None] * np.ones(width), "n": np.arange(start, start + size)}

    original = ReplayBuffer(10, seed=11)
    if count:
        original.extend(batch(0, count))
        original.sample(5)
    original.save(tmp_path / "replay.npz")
    restored = ReplayBuffer(10, seed=99)
    restored.load(tmp_path / "replay.npz")
    for buffer in (original, restored):
        buffer.extend(batch(count, 4))
    assert len(original) == len(restored)
    assert original.stats() == restored.stats()
    assert_same(original.sample(64), restored.sample(64))


def test_a_state_holds_only_the_rows_kept_and_plain_data():
    state = filled(7, capacity=100_000).state_dict()
    assert {array.shape[0] for array in state["rows"].values()} == {7}
    json.dumps({key: value for key, value in state.items() if key != "rows"})


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 40))
def test_another_capacity_keeps_the_newest_rows(old, new, count):
    state = filled(count, capacity=old, schema=SCHEMA).state_dict()
    buffer = ReplayBuffer(new)
    buffer.load_state_dict(state)
    assert len(buffer) == min(old, new, count)
    assert buffer.stats()["added"] == count
    if count:
        batch = buffer.sample(64)
        assert np.array_equal(batch["action"], batch.ids)
        assert batch.ids.min() >= count - min(old, new)
    buffer.extend(rows(count, 20))
    again = buffer.sample(64)
    assert np.array_equal(again["action"], again.ids)


def test_forgotten_rows_stay_forgotten_after_a_restore():
    buffer = filled(7)
    buffer.clear()
    buffer.extend(rows(7, 2))
    restored = ReplayBuffer(100)
    restored.load_state_dict(buffer.state_dict())
    assert set(restored.sample(50).ids.tolist()) == {7, 8}


def test_a_state_of_other_rows_is_refused():
    buffer = ReplayBuffer(5, {"obs": (np.float32, (3,))})
    with pytest.raises(ConfigurationError, match=r"rows of obs float32\[4\], .*, this buffer of obs float32\[3\]"):
        buffer.load_state_dict(filled(3, schema=SCHEMA).state_dict())
    with pytest.raises(ConfigurationError, match="has format 99"):
        buffer.load_state_dict({**filled(3).state_dict(), "format": 99})


def test_a_damaged_file_is_never_loaded_as_a_whole_one(tmp_path):
    path, seed = tmp_path / "replay.npz", random.randrange(2**32)
    filled(50).save(path)
    whole = path.read_bytes()
    expected = filled(50).sample(32)
    for position in [*range(0, len(whole), 41), *random.Random(seed).sample(range(len(whole)), 20)]:
        for damaged in (whole[:position], whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :]):
            path.write_bytes(damaged)
            buffer = ReplayBuffer(100)
            try:
                buffer.load(path)
            except TrieyeError:
                assert len(buffer) == 0
            else:  # a flipped byte of the container that carries no content, such as a time stamp
                assert_same(buffer.sample(32), expected)


def test_a_missing_file_and_a_foreign_file_are_told_apart(tmp_path):
    with pytest.raises(FileNotFoundError):
        ReplayBuffer(5).load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(SerializationError, match="is no whole replay snapshot"):
        ReplayBuffer(5).load(tmp_path / "text.npz")


def test_saving_leaves_no_partial_file_behind(tmp_path):
    buffer = filled(5)
    buffer.save(tmp_path / "replay.npz")
    buffer.save(str(tmp_path / "replay.npz"))
    assert [path.name for path in tmp_path.iterdir()] == ["replay.npz"]


def test_a_closed_buffer_takes_and_gives_nothing():
    buffer = filled(5)
    buffer.close()
    assert len(buffer) == 0
    for use in (lambda: buffer.add(**row(1)), lambda: buffer.sample(1), buffer.state_dict, buffer.clear):
        with pytest.raises(ConfigurationError, match="is closed"):
            use()


def test_the_config_group_decides():
    buffer = ReplayBuffer.from_config(ReplayConfig(capacity=12), seed=4)
    twin = ReplayBuffer(12, seed=4)
    for one in (buffer, twin):
        one.extend(rows(0, 30))
    assert buffer.stats()["capacity"] == 12
    assert_same(buffer.sample(16), twin.sample(16))


def test_stats_are_plain_numbers():
    buffer = filled(130)
    buffer.sample(7)
    stats = buffer.stats()
    assert stats == {"size": 100, "capacity": 100, "added": 130, "sampled": 7, "size_bytes": stats["size_bytes"]}
    assert stats["size_bytes"] >= 100 * (16 + 8 + 4 + 1)
