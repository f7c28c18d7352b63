"""Batches reuse the memory of released batches."""

import threading

import numpy as np
import pytest
import torch

from trieye.replay import ReplayBuffer
from trieye.replay.batch import MAX_POOLED, MIN_BYTES, BatchMemory

SHAPE = (84, 84)
ROWS = -(-MIN_BYTES // (84 * 84))


@pytest.fixture
def memory():
    memory = BatchMemory()
    memory.learn(("batch",), {"obs": np.zeros((ROWS, *SHAPE), np.uint8), "done": np.zeros(ROWS, np.bool_)})
    return memory


@pytest.fixture
def images():
    buffer = ReplayBuffer(50, seed=1)
    numbers = np.arange(50, dtype=np.uint8)
    obs = np.broadcast_to(numbers[:, None, None], (50, *SHAPE))
    buffer.extend({"obs": obs, "number": numbers})
    return buffer


def address(batch):
    return batch["obs"].ctypes.data


def test_the_memory_of_a_released_batch_is_reused(images):
    images.sample(ROWS)  # the first batch determines the size
    addresses = {address(images.sample(ROWS)) for _ in range(10)}
    assert len(addresses) == 1


def test_a_referenced_batch_keeps_its_rows(images):
    batches = [images.sample(ROWS) for _ in range(3 * MAX_POOLED)]
    assert len({address(batch) for batch in batches}) == len(batches)
    for batch in batches:
        assert np.array_equal(batch["obs"][:, 3, 5], batch["number"])
        assert np.array_equal(batch["number"], batch.ids)


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch["obs"][3:, ::2][0],
        lambda batch: batch["obs"].reshape(ROWS, -1).view(np.int8).T,
        lambda batch: memoryview(batch["obs"]),
        lambda batch: torch.from_numpy(batch["obs"]),
    ],
    ids=["view of a view", "other dtype", "memoryview", "tensor"],
)
def test_a_reference_to_part_of_a_batch_keeps_its_rows(images, part):
    images.sample(ROWS)
    array = part(images.sample(ROWS))
    before = np.asarray(array).copy()
    for _ in range(2 * MAX_POOLED):
        images.sample(ROWS)
    assert np.array_equal(array, before)


def test_batches_in_reused_memory_equal_batches_in_new_memory():
    def draws(keep):
        buffer = ReplayBuffer(50, n_step=3, frame_stack={"obs": 4}, seed=1)
        rng = np.random.default_rng(0)
        obs = rng.integers(0, 255, (50, *SHAPE), np.uint8)
        done = rng.random(50) < 0.1
        buffer.extend({"obs": obs, "next_obs": obs, "reward": np.ones(50, np.float32), "done": done})
        batches = []
        for _ in range(6):
            batch = buffer.sample(40)
            yield {key: batch[key].copy() for key in batch}
            batches.append(batch if keep else None)

    for kept_batch, dropped in zip(draws(keep=True), draws(keep=False), strict=True):
        assert kept_batch.keys() == dropped.keys()
        assert all(np.array_equal(kept_batch[key], dropped[key]) for key in kept_batch)


def test_batches_of_another_size_or_other_keys_use_separate_memory(memory, images):
    assert memory.arrays(("other",)) is None
    images.sample(ROWS)
    assert len(images.sample(ROWS + 1)["obs"]) == ROWS + 1
    assert list(images.sample(ROWS, keys=["number"])) == ["number"]


def test_small_batches_are_not_pooled(memory):
    memory.learn(("small",), {"obs": np.zeros(MIN_BYTES - 1, np.uint8)})
    assert memory.arrays(("small",)) is None
    assert memory.arrays(("batch",)) is not None


def test_threads_never_share_memory(memory):
    is_exclusive, start = [], threading.Barrier(4)

    def fill_batches(number):
        start.wait(20)
        for _ in range(300):
            done = memory.arrays(("batch",))["done"].view(np.uint8)
            done[:] = number
            is_exclusive.append(bool((done == number).all()))

    threads = [threading.Thread(target=fill_batches, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(is_exclusive) == 1200
    assert all(is_exclusive)
