import pickle

import numpy as np
import pytest
import torch

from trieye.checkpoints.directory import load_state, save_state
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.tensors import TensorPacker

WIDTH, WORDS = 32, 500
EMBEDDING_BYTES = WIDTH * WORDS * 4


class Tied(torch.nn.Module):
    """A minimal language model whose output layer is tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.out = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.embedding.weight


def through_disk(state, directory):
    return decode(load_state(save_state(directory / "saved", encode(state))))


def test_tied_weights_are_stored_once_and_loaded_tied(tmp_path):
    model = Tied()
    loaded = through_disk({"model": model}, tmp_path)["model"]
    size = (tmp_path / "saved" / "state.safetensors").stat().st_size
    assert EMBEDDING_BYTES < size < 1.1 * EMBEDDING_BYTES
    one, other = loaded["embedding.weight"], loaded["out.weight"]
    assert one.data_ptr() == other.data_ptr()
    assert torch.equal(other, model.out.weight)
    one[3, 3] = 7.0
    assert other[3, 3] == 7.0


def test_equal_or_overlapping_tensors_are_stored_separately(tmp_path):
    base = torch.arange(12.0)
    state = {"base": base, "equal": base.clone(), "part": base[:6], "other": base[6:]}
    state |= {"turned": base.reshape(3, 4).T, "bits": base.view(torch.int32)}
    state["empty"] = [torch.empty(0), torch.empty(0, 3)]
    loaded = through_disk(state, tmp_path)
    assert len({loaded[name].data_ptr() for name in state if name != "empty"}) == 6
    assert all(torch.equal(loaded[name], state[name]) for name in state if name != "empty")
    assert [tensor.shape for tensor in loaded["empty"]] == [(0,), (0, 3)]


def test_temporary_tensors_with_reused_memory_stay_distinct():
    class Fleeting:
        """Creates temporary tensors, so that one may reuse the memory of another."""

        def state_dict(self):
            return {"parts": [Part(float(number)) for number in range(50)]}

    class Part:
        def __init__(self, value):
            self.value = value

        def state_dict(self):
            return {"tensor": torch.full((1000,), self.value, dtype=torch.complex64)}

    loaded = decode(encode(Fleeting()))
    assert [part["tensor"][0].real.item() for part in loaded["parts"]] == list(range(50))


def test_a_conjugated_view_does_not_share_memory_with_its_base():
    base = torch.view_as_complex(torch.arange(6.0).reshape(3, 2))
    loaded = decode(encode({"a": base, "b": base, "c": base.conj()}))
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr() != loaded["c"].data_ptr()
    assert torch.equal(loaded["c"], base.conj())


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e8m0fnu], ids=str
)
def test_packed_tensors_are_pickled_without_copies_and_encoded_like_the_originals(dtype, tmp_path, assert_same):
    base = torch.arange(24).reshape(4, 6).to(torch.float32).to(dtype)
    state = {"whole": base, "turned": base.T, "same": base, "scalar": base[0, 0], "none": base[:0]}
    state["other"] = base.clone()
    packer, buffers = TensorPacker(), []
    packed = {name: packer.packed(tensor) for name, tensor in state.items()}
    sent = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 5
    received = pickle.loads(sent, buffers=[bytes(buffer) for buffer in buffers])
    assert encode(received, copy=False).tree == encode(state, copy=False).tree
    loaded = through_disk(received, tmp_path)
    assert_same(loaded, state)
    assert loaded["whole"].data_ptr() == loaded["same"].data_ptr() != loaded["other"].data_ptr()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_packer_returns_other_values_unchanged():
    packer, nested = TensorPacker(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for value in (1, np.ones(2), torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.Size([2]), nested):
        assert packer.packed(value) is value
