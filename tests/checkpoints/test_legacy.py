import io
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest

from trieye.checkpoints.legacy import is_whole_pickle, load_pickle, newest_pickle, unreadable
from trieye.exceptions import SerializationError, UntrustedPickleError

DATA = Path(__file__).parent / "data"
WHOLE = pickle.dumps("x")


def test_a_file_of_0_1_5_is_read_only_when_pickles_are_allowed(monkeypatch):
    path = DATA / "checkpoint_0_1_5.pkl"
    with pytest.raises(UntrustedPickleError, match="TRIEYE_ALLOW_PICKLE=1"):
        load_pickle(path)
    assert load_pickle(path, allow_pickle=True).global_step == 9
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    assert load_pickle(path).run_name == "run_20250102_030405"


def test_a_planted_pickle_runs_nothing(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    (tmp_path / "f").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(UntrustedPickleError):
        load_pickle(tmp_path / "f")
    assert not (tmp_path / "pwned").exists()
    load_pickle(tmp_path / "f", allow_pickle=True)
    assert (tmp_path / "pwned").exists()


def test_tensors_of_a_gpu_are_read_where_there_is_none(tmp_path):
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


def test_the_message_says_how_to_load_what_one_trusts(tmp_path):
    (tmp_path / "f").write_bytes(WHOLE)
    with pytest.raises(UntrustedPickleError) as caught:
        load_pickle(tmp_path / "f")
    for error in (caught.value, unreadable(tmp_path / "f")):
        assert f"trieye convert {tmp_path / 'f'} --allow-pickle" in str(error)
        assert "TRIEYE_ALLOW_PICKLE=1" in str(error)


def test_no_cut_file_passes_for_a_whole_one(tmp_path):
    content = (DATA / "checkpoint_0_1_5.pkl").read_bytes()
    assert is_whole_pickle(DATA / "checkpoint_0_1_5.pkl")
    path = tmp_path / "f"
    for size in range(0, len(content), 7):
        path.write_bytes(content[:size])
        # a byte inside that happens to be the end mark is found when the file is read
        if is_whole_pickle(path):
            assert content[size - 1 : size] == b"."
        with pytest.raises(SerializationError):
            load_pickle(path, allow_pickle=True)


def test_the_newest_whole_numbered_file_is_found_and_the_link_only_without_any(tmp_path):
    (tmp_path / "latest.pkl").write_bytes(WHOLE)
    assert newest_pickle(tmp_path, "step_", "latest.pkl") == (tmp_path / "latest.pkl", None)
    for step, content in ((2, WHOLE), (9, WHOLE), (10, WHOLE[:-1]), (30, b"")):
        (tmp_path / f"step_{step}.pkl").write_bytes(content)
    assert newest_pickle(tmp_path, "step_", "latest.pkl") == (tmp_path / "step_9.pkl", 9)
    assert newest_pickle(tmp_path, "step_", "latest.pkl", max_step=8) == (tmp_path / "step_2.pkl", 2)
    assert newest_pickle(tmp_path, "step_", "latest.pkl", max_step=1) is None
    assert newest_pickle(tmp_path / "missing", "step_", "latest.pkl") is None
