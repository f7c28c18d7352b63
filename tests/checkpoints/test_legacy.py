import io
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest

from trieye.checkpoints.legacy import is_whole_pickle, newest_pickle
from trieye.compat.pickles import load_pickle
from trieye.exceptions import SerializationError

DATA = Path(__file__).parent / "data"
INTACT = pickle.dumps("x")


def test_gpu_tensors_are_read_on_a_machine_without_a_gpu(tmp_path):
    torch = pytest.importorskip("torch")
    content = io.BytesIO()
    torch.save(torch.arange(5.0)._typed_storage(), content, _use_new_zipfile_serialization=False)
    on_gpu = content.getvalue().replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    assert on_gpu != content.getvalue()

    class Storage:
        def __reduce__(self):
            return torch.storage._load_from_bytes, (on_gpu,)

    class Tensor:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Storage(), 0, (5,), (1,), False, OrderedDict())

    (tmp_path / "f").write_bytes(pickle.dumps({"weight": Tensor()}))
    assert load_pickle(tmp_path / "f", allow_pickle=True)["weight"].tolist() == [0, 1, 2, 3, 4]


def test_truncated_pickles_are_not_intact(tmp_path):
    content = (DATA / "checkpoint_0_1_5.pkl").read_bytes()
    assert is_whole_pickle(DATA / "checkpoint_0_1_5.pkl")
    path = tmp_path / "f"
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        # a truncation right after a byte equal to the end opcode is only detected when the file is read
        if is_whole_pickle(path):
            assert content[size - 1 : size] == b"."
        with pytest.raises(SerializationError):
            load_pickle(path, allow_pickle=True)


def test_newest_pickle_prefers_intact_numbered_files_to_the_link(tmp_path):
    (tmp_path / "latest.pkl").write_bytes(INTACT)
    assert newest_pickle(tmp_path, "step_", "latest.pkl") == (tmp_path / "latest.pkl", None)
    for step, content in ((2, INTACT), (9, INTACT), (10, INTACT[:-1]), (30, b"")):
        (tmp_path / f"step_{step}.pkl").write_bytes(content)
    assert newest_pickle(tmp_path, "step_", "latest.pkl") == (tmp_path / "step_9.pkl", 9)
    assert newest_pickle(tmp_path, "step_", "latest.pkl", max_step=8) == (tmp_path / "step_2.pkl", 2)
    assert newest_pickle(tmp_path, "step_", "latest.pkl", max_step=1) is None
    assert newest_pickle(tmp_path / "missing", "step_", "latest.pkl") is None
