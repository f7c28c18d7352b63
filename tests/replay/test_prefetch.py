import threading
from contextlib import closing

import numpy as np
import pytest
import torch

from tests.forked import in_a_child
from trieye.exceptions import ConfigurationError, ReplayClosedError
from trieye.replay import ReplayBuffer
from trieye.replay.batch import Batch
from trieye.replay.prefetch import DeviceBatches, Prefetcher, TorchBatches, unpacked
from trieye.replay.samplers.base import SampledIds, ones

RECORD = np.dtype([("obs", np.float32, (2, 2)), ("n", np.int64), ("done", np.bool_), ("small", np.int16)], align=True)


class Rows:
    """Rows whose copying can be blocked; packed or not."""

    def __init__(self, size=100, *, packed=True):
        self.records = np.zeros(size, RECORD)
        self.records["n"] = np.arange(size)
        self.records["obs"] = np.arange(size)[:, None, None] / 2
        self.records["done"] = np.arange(size) % 3 == 0
        self.records["small"] = -np.arange(size)
        self.packed = packed
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.rng = np.random.default_rng(0)
        self.draws = []
        self.memory = set()

    def draw(self):
        draw = SampledIds(self.rng.integers(0, len(self.records), 8), ones(8), {"size": 100})
        self.draws.append(draw.ids)
        return draw

    def fill(self, draw, out):
        assert self.may_copy.wait(20)
        block = self.records.take(draw.ids, out=None if out is None else out.records, mode="wrap")
        data = {key: block[key] for key in RECORD.names}
        if not self.packed:
            data = {key: np.ascontiguousarray(array) for key, array in data.items()} if out is None else out.data
            for key in data:
                data[key][...] = block[key]
            block = None
        self.memory.add(data["n"].__array_interface__["data"][0])
        return Batch(data, draw.ids, draw.weights, draw.info, None, block)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "trieye-prefetch"]


PACKED = pytest.mark.parametrize("packed", [True, False], ids=["packed", "columns"])


@PACKED
@pytest.mark.parametrize("depth", [1, 5])
def test_prefetched_batches_follow_the_order_of_draws_and_reuse_memory(depth, packed):
    rows = Rows(packed=packed)
    with closing(Prefetcher(rows.draw, rows.fill, depth=depth)) as batches:
        for number in range(30):
            batch = next(batches)
            assert len(rows.draws) == number + depth + 1
            assert np.array_equal(batch.ids, rows.draws[number])
            assert np.array_equal(batch["n"], batch.ids)
            assert np.array_equal(batch["obs"][:, 1, 1], batch.ids / 2)
    assert len(rows.memory) == depth + 1
    assert threads() == []


def test_prefetching_leaves_the_current_batch_intact_and_settle_waits_for_pending_copies():
    rows = Rows()
    with closing(Prefetcher(rows.draw, rows.fill)) as batches:
        batch = next(batches)
        values = batch["n"].copy()
        batches.settle()  # the two prefetched batches have their own memory
        assert np.array_equal(batch["n"], values)
        assert len(rows.memory) == 3
        rows.may_copy.clear()
        next(batches)  # already made; the thread starts another one now
        settling = threading.Thread(target=batches.settle)
        settling.start()
        settling.join(0.2)
        assert settling.is_alive()
        rows.may_copy.set()
        settling.join(20)
        assert not settling.is_alive()
        rows.records["n"] = -1  # so no earlier draw has seen this
        assert next(batches)["n"].min() >= 0
        assert next(batches)["n"].min() >= 0
        assert next(batches)["n"].max() == -1


def test_an_error_in_the_prefetch_thread_is_raised_in_the_consumer():
    rows = Rows()

    def fill(draw, out):
        if len(draws) == 3:
            raise KeyError("broken")
        draws.append(draw)
        return rows.fill(draw, out)

    draws = []
    batches = Prefetcher(rows.draw, fill)
    for _ in range(3):
        next(batches)
    with pytest.raises(KeyError, match="broken"):
        next(batches)
    assert list(batches) == []
    assert threads() == []


def test_a_rejected_draw_raises_in_order_and_is_retried_by_the_next_call():
    rows, allowed = Rows(), [2]

    def draw():
        if len(rows.draws) >= allowed[0]:
            raise ConfigurationError("too few rows")
        return rows.draw()

    with closing(Prefetcher(draw, rows.fill)) as batches:
        next(batches)
        next(batches)
        with pytest.raises(ConfigurationError, match="too few rows"):
            next(batches)
        allowed[0] = 9
        assert [next(batches).ids.tolist() for _ in range(2)] == [ids.tolist() for ids in rows.draws[2:4]]


@pytest.mark.parametrize("how", ["close", "forget", "close while copying"])
def test_the_prefetch_thread_ends_with_its_prefetcher(how):
    rows = Rows()
    batches = Prefetcher(rows.draw, rows.fill)
    next(batches)
    if how == "close while copying":
        rows.may_copy.clear()
        threading.Timer(0.1, rows.may_copy.set).start()  # before `next`, which may wait for a copy
        next(batches)
    if how == "forget":
        del batches
    else:
        batches.close()
        batches.close()
        with pytest.raises(StopIteration):
            next(batches)
    for thread in threads():
        thread.join(20)
    assert threads() == []


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))


@PACKED
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_batches_are_tensors_on_a_device_and_views_on_the_cpu(packed, device):
    rows = Rows(packed=packed)
    with closing(Prefetcher(rows.draw, rows.fill, device=device)) as batches:
        for number in range(50):
            batch = next(batches)
            assert batch["n"].device.type == batch.weights.device.type == device
            assert batch["n"].tolist() == batch.ids.tolist() == rows.draws[number].tolist()
            assert torch.equal(batch["obs"][:, 0, 1], batch["n"] / 2)
            assert (batch["done"].dtype, batch.weights.dtype) == (torch.bool, torch.float32)
            assert isinstance(batch.ids, np.ndarray)
            assert device != "cpu" or batch["n"].data_ptr() in rows.memory


@PACKED
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_batches_sampled_to_a_device_equal_the_numpy_batches_and_stay_valid(packed, device):
    shape = (2,) if packed else (300,)
    buffer, twin = (ReplayBuffer(100, seed=1, sampler="prioritized") for _ in range(2))
    for one in (buffer, twin):
        one.extend({"obs": np.random.default_rng(0).normal(size=(100, *shape)), "done": np.arange(100) % 3 == 0})
    batches = [buffer.sample(n, keys=keys, device=device) for n in (8, 8, 5) for keys in (None, ["discount", "obs"])]
    expected = [twin.sample(n, keys=keys) for n in (8, 8, 5) for keys in (None, ["discount", "obs"])]
    for batch, numpy_batch in zip(batches, expected, strict=True):
        assert list(batch) == list(numpy_batch)
        assert batch.ids.tolist() == numpy_batch.ids.tolist()
        assert batch["obs"].device.type == batch.weights.device.type == device
        assert torch.equal(batch.weights.cpu(), torch.from_numpy(numpy_batch.weights))
        for key in batch:
            assert torch.equal(batch[key].cpu(), torch.from_numpy(numpy_batch[key]))
    for prefetch in (0, 2):
        iterated = buffer.iter_batches(4, prefetch=prefetch, device=device)
        assert torch.equal(next(iterated)["obs"].cpu(), torch.from_numpy(twin.sample(4)["obs"]))
    sampled = buffer.stats()["sampled"]
    with pytest.raises(ConfigurationError, match="device 'nonsense' cannot be used"):
        buffer.sample(4, device="nonsense")
    with pytest.raises(ConfigurationError, match="omit `out`, or use iter_batches"):
        buffer.sample(5, out=expected[-2], device=device)
    assert buffer.stats()["sampled"] == sampled


def test_a_block_of_records_becomes_tensors_of_its_fields():
    records = Rows().records
    fields = unpacked(torch.from_numpy(records.view(np.uint8).reshape(100, -1)), RECORD, ["small", "obs", "n", "done"])
    assert list(fields) == ["small", "obs", "n", "done"]
    for key, tensor in fields.items():
        assert np.array_equal(tensor.numpy(), records[key])
        assert tensor.numpy().dtype == records[key].dtype
    assert fields["n"].data_ptr() == records["n"].__array_interface__["data"][0]


class OtherMemory(TorchBatches):
    """Takes the CUDA code path without CUDA: page-locked memory is ordinary memory, and copies are synchronous."""

    def __init__(self):
        super().__init__("meta")
        self._stream = "a stream"

    def _pinned(self, array):
        return array.copy()


class Copying(TorchBatches):
    """Simulates a device with separate memory by copies, and counts the waits for it."""

    waited = 0

    def copied(self, batch):
        moved, _ = super().copied(batch)
        moved.data = {key: tensor.clone() for key, tensor in moved.data.items()}
        return moved, self

    def received(self, batch, event):
        return batch

    def synchronize(self):
        self.waited += 1


def test_successive_device_batches_reuse_one_staging_buffer():
    rows, device_batches, device = Rows(), DeviceBatches(), Copying("cpu")
    device_batches._devices["other"] = device
    batches = [device_batches.make("other", None, (8,), rows.draw, rows.fill) for _ in range(4)]
    assert (len(rows.memory), device.waited) == (1, 3)
    for batch, ids in zip(batches, rows.draws, strict=True):
        assert batch["n"].tolist() == batch.ids.tolist() == ids.tolist()
    device_batches.make("other", None, (9,), rows.draw, rows.fill)
    assert device.waited == 3


def test_computed_columns_are_staged_separately_from_columns_in_records():
    rows = Rows()
    batch = rows.fill(rows.draw(), None)
    batch.data["small"] = np.full(8, 7, np.int16)  # like n-step returns, which have the name of a field
    batch.data["extra"] = np.arange(8.0)
    staged = OtherMemory().staged(batch)
    assert staged.records is not batch.records
    for key in batch:
        assert np.array_equal(staged[key], batch[key])
        assert np.may_share_memory(staged[key], staged.records) == (key in {"obs", "n", "done"})
    tensors, event = TorchBatches("meta").copied(staged)
    assert event is None
    assert {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.data.items()} == {
        "obs": (torch.float32, (8, 2, 2)),
        "n": (torch.int64, (8,)),
        "done": (torch.bool, (8,)),
        "small": (torch.int16, (8,)),
        "extra": (torch.float64, (8,)),
    }


def test_a_forked_child_gets_an_error_instead_of_waiting_for_the_prefetch_thread():
    rows = Rows()
    prefetcher = Prefetcher(rows.draw, rows.fill, depth=2)
    next(prefetcher)
    prefetcher.settle()
    rows.may_copy.clear()
    next(prefetcher)  # the thread is about to copy another batch

    def read_in_child():
        prefetcher.settle()
        with pytest.raises(ReplayClosedError, match=r"forked.*iter_batches"):
            next(prefetcher)
        return 7

    assert in_a_child(read_in_child) == 7
    rows.may_copy.set()
    prefetcher.close()
