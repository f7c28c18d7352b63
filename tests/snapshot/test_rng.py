import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from trieye.checkpoints.directory import load_state, save_state
from trieye.exceptions import SerializationError
from trieye.snapshot.encode import decode, encode
from trieye.snapshot.generators import capture_all, restore_all, seed_all


def draws():
    numpy_draws = [*np.random.random(3), np.random.normal()]  # noqa: NPY002 - the global generator is the subject
    return [random.random(), random.gauss(0, 1), *numpy_draws, *torch.rand(3).tolist()]


def test_restored_generators_continue_the_same_streams(tmp_path):
    random.gauss(0, 1)  # leaves the second value of the pair inside the generator
    np.random.normal()  # noqa: NPY002 - likewise
    encoded = encode(capture_all())
    assert not encoded.objects
    expected = draws()
    draws()
    restore_all(decode(load_state(save_state(tmp_path / "s", encoded))))
    assert draws() == expected


def test_capturing_does_not_load_torch():
    program = (
        "import sys; from trieye.snapshot.generators import capture_all, restore_all; state = capture_all(); "
        "assert 'torch' not in sys.modules, 1; "
    )
    program += "assert set(state) == {'python', 'numpy'}; restore_all(state); assert 'torch' not in sys.modules, 2"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_state_that_is_none_is_refused():
    with pytest.raises(SerializationError, match="random generators"):
        restore_all({"python": (3, (1, 2), None)})


def test_the_same_seed_gives_the_same_draws():
    seed_all(7)
    expected = draws()
    draws()
    seed_all(7)
    assert draws() == expected
    seed_all(8)
    assert draws() != expected
