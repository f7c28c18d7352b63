"""Blocks of rows in a ring."""

import numpy as np
import pytest

from trieye.exceptions import ConfigurationError
from trieye.replay import ReplayBuffer

SHAPES = {"packed": (3,), "columns": (30, 30)}


def block(count, shape, *, seed):
    rng = np.random.default_rng(seed)
    return {"obs": rng.normal(size=(count, *shape)).astype(np.float32), "action": rng.integers(0, 9, count)}


def held(buffer):
    rows, _ = next(buffer.iter_rows(10_000))
    return rows


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_blocks_of_equal_and_of_other_lengths_are_kept_in_order(shape):
    buffer = ReplayBuffer(20)
    lengths = [6, 6, 6, 6, 1, 6, 6, 20, 20, 3, 25, 25, 6, 6]
    blocks = [block(length, shape, seed=number) for number, length in enumerate(lengths)]
    for number, rows in enumerate(blocks):
        buffer.extend(rows if number % 3 else dict(reversed(rows.items())))
        expected = {key: np.concatenate([each[key] for each in blocks[: number + 1]])[-20:] for key in rows}
        found = held(buffer)
        assert all(np.array_equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_single_rows_and_blocks_take_turns(shape):
    buffer, expected = ReplayBuffer(20), []
    for number in range(12):
        rows = block(4, shape, seed=number)
        buffer.extend(rows)
        buffer.add(obs=rows["obs"][0], action=int(rows["action"][0]))
        expected += [*rows["obs"], rows["obs"][0]]
    assert np.array_equal(held(buffer)["obs"], np.stack(expected[-20:]))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"obs": np.zeros((4, 4), np.float32)}, "obs"),
        ({"obs": np.zeros((5, 3), np.float32)}, "same number of rows"),
        ({"action": np.zeros(4)}, "action"),
        ({"more": np.zeros(4)}, "more"),
    ],
    ids=["shape", "length", "kind", "key"],
)
def test_a_block_that_does_not_fit_changes_nothing_after_one_that_does(change, complaint):
    buffer = ReplayBuffer(20)
    for number in range(2):
        buffer.extend(block(4, (3,), seed=number))
    before = held(buffer)
    with pytest.raises(ConfigurationError, match=complaint):
        buffer.extend({**block(4, (3,), seed=9), **change})
    assert len(buffer) == 8
    assert all(np.array_equal(held(buffer)[key], before[key]) for key in before)


def test_a_block_without_a_key_changes_nothing():
    buffer = ReplayBuffer(20)
    for number in range(2):
        buffer.extend(block(4, (3,), seed=number))
    with pytest.raises(ConfigurationError, match="action"):
        buffer.extend({"obs": np.zeros((4, 3), np.float32)})
    with pytest.raises(ConfigurationError, match="another"):
        buffer.extend({"obs": np.zeros((4, 3), np.float32), "another": np.zeros(4, np.int64)})
    assert len(buffer) == 8


def test_a_block_of_another_dtype_is_converted_after_one_that_fits():
    buffer = ReplayBuffer(20)
    for number in range(2):
        buffer.extend(block(4, (3,), seed=number))
    buffer.extend({"obs": np.ones((4, 3), np.int16), "action": np.arange(4, dtype=np.uint8)})
    assert held(buffer)["obs"].dtype == np.float32
    assert held(buffer)["action"][-4:].tolist() == [0, 1, 2, 3]
