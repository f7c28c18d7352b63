"""Rows in a ring: in blocks, and one by one as bytes."""

import pickle

import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer
from trieye.replay.rows.ring import RowPacker
from trieye.replay.rows.schema import Column

SHAPES = {"packed": (3,), "columns": (30, 30)}


def block(count, shape, *, seed):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(count, *shape)).astype(np.float32), "action": rng.integers(0, 9, count)}


def stored_rows(buffer):
    rows, _ = next(buffer.iter_rows(10_000))
    return rows


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_blocks_of_varying_lengths_are_stored_in_order(shape):
    buffer = ReplayBuffer(20)
    lengths = [6, 6, 6, 6, 1, 6, 6, 20, 20, 3, 25, 25, 6, 6]
    blocks = [block(length, shape, seed=number) for number, length in enumerate(lengths)]
    for number, rows in enumerate(blocks):
        first_id = sum(lengths[:number])
        ids = buffer.extend(rows if number % 3 else dict(reversed(rows.items())))
        assert ids.tolist() == list(range(first_id, first_id + lengths[number]))
        expected = {key: np.concatenate([each[key] for each in blocks[: number + 1]])[-20:] for key in rows}
        stored = stored_rows(buffer)
        assert all(np.array_equal(stored[key], expected[key]) for key in expected)


def test_a_block_from_another_process_is_stored_without_conversion(monkeypatch):
    buffer = ReplayBuffer(20)
    buffer.extend(block(6, (3,), seed=0))
    monkeypatch.setattr(Column, "conform", None)
    received = pickle.loads(pickle.dumps(block(6, (3,), seed=1)))
    buffer.extend(received)
    assert np.array_equal(stored_rows(buffer)["obs"][6:], received["obs"])


def after_two_blocks():
    buffer = ReplayBuffer(20)
    for number in range(2):
        buffer.extend(block(4, (3,), seed=number))
    return buffer


FITTING = block(4, (3,), seed=9)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({**FITTING, "obs": np.zeros((4, 4), np.float32)}, "obs"),
        ({**FITTING, "obs": np.zeros((5, 3), np.float32)}, "same number of rows"),
        ({**FITTING, "action": np.zeros(4)}, "action"),
        ({**FITTING, "more": np.zeros(4)}, "more"),
        ({"obs": FITTING["obs"], "another": np.zeros(4, np.int64)}, "another"),
    ],
    ids=["shape", "length", "kind", "more", "another"],
)
def test_a_mismatched_block_is_rejected_without_changing_the_buffer(rows, complaint):
    buffer = after_two_blocks()
    before = stored_rows(buffer)
    with pytest.raises(ConfigurationError, match=complaint):
        buffer.extend(rows)
    assert len(buffer) == 8
    assert all(np.array_equal(stored_rows(buffer)[key], before[key]) for key in before)


def test_a_later_block_is_converted_to_the_dtypes_of_the_schema():
    buffer = after_two_blocks()
    buffer.extend({"obs": np.ones((4, 3), np.int16), "action": np.arange(4, dtype=np.uint8)})
    assert stored_rows(buffer)["obs"].dtype == np.float32
    assert stored_rows(buffer)["action"][-4:].tolist() == [0, 1, 2, 3]


SINGLES = ["b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


def packer_of(columns, rows=4):
    records = np.zeros(rows, np.dtype([(c.name, c.dtype, c.shape) for c in columns], align=True))
    return RowPacker(columns, records), records


def column(name, dtype, shape=()):
    return Column(name, shape, np.dtype(dtype))


def test_packed_rows_equal_rows_written_by_numpy():
    arrays = [column("obs", "f4", (3,)), column("mask", "u1", (5,))]
    packer, records = packer_of([*arrays, *(column(single, single) for single in SINGLES), column("last", "i2")])
    expected = records.copy()
    for slot in range(4):
        row = {"obs": np.arange(3, dtype="f4") + slot, "mask": np.full(5, slot, "u1")}
        row |= {single: np.dtype(single).type(slot) for single in SINGLES} | {"last": -slot}
        expected[slot] = tuple(row.values())
        assert packer.write(slot, row)
    assert np.array_equal(records, expected)


def test_python_numbers_are_packed_like_numpy_scalars():
    columns = [column("reward", "f4"), column("action", "i8"), column("done", "b1")]
    packer, records = packer_of(columns)
    rng = np.random.default_rng(3)
    for reward in [*rng.normal(size=50).tolist(), 0.1, -0.0, 1e-42, float("inf"), 3, True]:
        assert packer.write(1, {"done": True, "action": -7, "reward": reward})
        assert records["reward"][1].tobytes() == np.float32(reward).tobytes()
    assert records[1].tolist()[1:] == (-7, True)


@pytest.mark.parametrize(
    "change",
    [
        {"action": 300},
        {"action": -1},
        {"action": np.int64(3)},
        {"action": True},
        {"action": 1.0},
        {"reward": 1e300},
        {"reward": "1"},
        {"done": 1},
        {"obs": np.zeros(3)},
        {"obs": np.zeros(4, np.float32)},
        {"obs": np.zeros((1, 3), np.float32)},
        {"obs": [0.0, 0.0, 0.0]},
        {"more": 1},
    ],
    ids=str,
)
def test_the_packer_declines_unusual_values_and_leaves_the_slot_unchanged(change):
    columns = [column("obs", "f4", (3,)), column("reward", "f4"), column("done", "b1"), column("action", "u1")]
    packer, records = packer_of(columns)
    row = {"obs": np.ones(3, np.float32), "reward": 2.0, "done": True, "action": 9}
    assert packer.write(2, row)
    before = records.copy()
    assert not packer.write(2, {**row, "obs": np.zeros(3, np.float32), "reward": 0.0, **change})
    assert not packer.write(2, {"obs": row["obs"], "reward": 2.0, "done": True, "another": 9})
    assert np.array_equal(records, before)


def test_non_contiguous_arrays_are_packed():
    packer, records = packer_of([column("obs", "i4", (2, 3))])
    obs = np.arange(6, dtype="i4").reshape(3, 2).T
    assert packer.write(0, {"obs": obs})
    assert np.array_equal(records["obs"][0], obs)
