import dataclasses
import math
from collections import deque

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _own_key(own_key_home):
    """Every test signs with a key of its own."""


def _assert_same(found, expected, path="state"):
    """Equal in type, dtype, shape and every bit of every value."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), path
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        found_bytes, expected_bytes = (_bytes_of(tensor) for tensor in (found, expected))
        assert found_bytes == expected_bytes, path
        return
    assert type(found) is type(expected), path
    if isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, np.shape(found)) == (expected.dtype, np.shape(expected)), path
        assert np.asarray(found).tobytes() == np.asarray(expected).tobytes(), path
    elif isinstance(expected, dict):
        _assert_same(list(found.items()), list(expected.items()), path + ".items()")
    elif isinstance(expected, list | tuple | deque):
        assert len(found) == len(expected), path
        assert getattr(found, "maxlen", None) == getattr(expected, "maxlen", None), path
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            _assert_same(one, other, f"{path}[{index}]")
    elif isinstance(expected, float):
        assert math.copysign(1, found) == math.copysign(1, expected) or math.isnan(expected), path
        assert found == expected or (math.isnan(found) and math.isnan(expected)), path
    elif isinstance(expected, complex):
        _assert_same((found.real, found.imag), (expected.real, expected.imag), path)
    elif dataclasses.is_dataclass(expected):
        _assert_same(vars(found), vars(expected), path)
    else:
        assert found == expected, path


def _bytes_of(tensor):
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="session")
def assert_same():
    return _assert_same
