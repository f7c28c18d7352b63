import dataclasses
import math
from collections import deque

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _own_key(own_key_home):
    """Give every test its own signing key."""


def _assert_same(actual, expected, path="state"):
    """Assert equal types, dtypes and shapes, and bit-identical values."""
    import torch

    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), path
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), path
        actual_bytes, expected_bytes = (_bytes_of(tensor) for tensor in (actual, expected))
        assert actual_bytes == expected_bytes, path
        return
    assert type(actual) is type(expected), path
    if isinstance(expected, np.ndarray | np.generic):
        assert (actual.dtype, np.shape(actual)) == (expected.dtype, np.shape(expected)), path
        assert np.asarray(actual).tobytes() == np.asarray(expected).tobytes(), path
    elif isinstance(expected, dict):
        _assert_same(list(actual.items()), list(expected.items()), path + ".items()")
    elif isinstance(expected, list | tuple | deque):
        assert len(actual) == len(expected), path
        assert getattr(actual, "maxlen", None) == getattr(expected, "maxlen", None), path
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            _assert_same(one, other, f"{path}[{index}]")
    elif isinstance(expected, float):
        assert math.copysign(1, actual) == math.copysign(1, expected) or math.isnan(expected), path
        assert actual == expected or (math.isnan(actual) and math.isnan(expected)), path
    elif isinstance(expected, complex):
        _assert_same((actual.real, actual.imag), (expected.real, expected.imag), path)
    elif dataclasses.is_dataclass(expected):
        _assert_same(vars(actual), vars(expected), path)
    else:
        assert actual == expected, path


def _bytes_of(tensor):
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="session")
def assert_same():
    return _assert_same
