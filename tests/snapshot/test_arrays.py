import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from trieye.exceptions import SerializationError
from trieye.files.checksum import ChecksumFile, ChecksumReader, sums_of
from trieye.snapshot.arrays import read_tensors, write_tensors
from trieye.snapshot.encode import decode, encode


def write(path, state):
    encoded = encode(state)
    with ChecksumFile(path) as file:
        write_tensors(file, encoded.arrays, encoded.formats)
    assert (file.size_bytes, file.crc32) == (path.stat().st_size, sums_of(path)[1])
    return encoded


def read(path):
    with ChecksumReader(path) as file:
        return read_tensors(file, path)


def test_safetensors_reads_our_files(tmp_path):
    state = {
        "b": torch.tensor([True, False, True]),
        "w": torch.randn(3, 5),
        "h": torch.randn(7).bfloat16(),
        "f8": torch.randn(4).to(torch.float8_e4m3fn),
        "i": torch.arange(3),
        "none": torch.empty(0, 2),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
    }
    write(tmp_path / "f", state)
    loaded = safetensors.torch.load_file(tmp_path / "f")
    assert set(loaded) == set(state)
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].float(), tensor.float())


def test_files_of_safetensors_are_readable(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False]), "c": np.arange(3, dtype=np.uint16)}
    safetensors.numpy.save_file(arrays, tmp_path / "f")
    loaded, formats = read(tmp_path / "f")
    assert formats == {}
    assert set(loaded) == set(arrays)
    assert all(np.array_equal(loaded[name], array) for name, array in arrays.items())


def test_dtypes_missing_in_numpy_keep_their_format_across_a_round_trip(tmp_path):
    encoded = write(tmp_path / "f", {"h": torch.arange(4.0).bfloat16()})
    arrays, formats = read(tmp_path / "f")
    assert formats == {"h": "BF16"}
    assert torch.equal(decode(type(encoded)(encoded.tree, arrays, {}, formats))["h"], torch.arange(4.0).bfloat16())


def test_colliding_names_stay_distinct(tmp_path):
    state = {"a": {"b": np.zeros(1)}, "a/b": np.ones(1), "__metadata__": np.full(1, 2.0)}
    encoded = write(tmp_path / "f", state)
    arrays, formats = read(tmp_path / "f")
    loaded = decode(type(encoded)(encoded.tree, arrays, {}, formats))
    assert (loaded["a"]["b"][0], loaded["a/b"][0], loaded["__metadata__"][0]) == (0, 1, 2)


def test_truncated_files_are_rejected(tmp_path):
    write(tmp_path / "f", {"a": np.arange(5.0), "b": np.arange(3, dtype=np.int8)})
    content = (tmp_path / "f").read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(SerializationError):
            read(tmp_path / "cut")


def test_a_header_that_claims_a_huge_tensor_is_rejected(tmp_path):
    header = b'{"a":{"dtype":"F64","shape":[1000000000000],"data_offsets":[0,8000000000000]}}  '
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    with pytest.raises(SerializationError):
        read(tmp_path / "f")
