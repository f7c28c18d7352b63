import json
import logging
from collections import Counter, UserDict, defaultdict, deque
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trieye.compat.serializer import BufferData, CheckpointData, Serializer
from trieye.config import TrieyeConfig
from trieye.exceptions import CheckpointError, SerializationError, UntrustedPickleError

DATA = Path(__file__).parents[1] / "checkpoints" / "data"


@pytest.fixture
def trained():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def checkpoint(model, optimizer, **changes):
    fields = {
        "run_name": "r",
        "global_step": 9,
        "episodes_played": 3,
        "total_simulations_run": 40,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "user_data": {"of worker": {1: (2, None)}},
    }
    return CheckpointData(**{**fields, **changes})


def test_a_checkpoint_survives_a_round_trip(tmp_path, trained):
    path = tmp_path / "new" / "checkpoint_step_9.pkl"
    Serializer().save_checkpoint(checkpoint(*trained), path)
    loaded = Serializer().load_checkpoint(path)
    assert isinstance(loaded, CheckpointData)
    assert (loaded.run_name, loaded.global_step, loaded.user_data) == ("r", 9, {"of worker": {1: (2, None)}})
    model = torch.nn.Linear(3, 2)
    model.load_state_dict(loaded.model_state_dict)
    assert torch.equal(model.weight, trained[0].weight)
    torch.optim.Adam(model.parameters()).load_state_dict(loaded.optimizer_state_dict)
    assert path.is_dir()
    assert not (path / "objects.bin").exists()


def test_a_buffer_survives_a_round_trip(tmp_path):
    items = [(np.arange(3.0), 1, 0.5, None), {"obs": torch.ones(2)}, "x"]
    Serializer().save_buffer(BufferData(buffer_list=items), tmp_path / "b")
    loaded = Serializer().load_buffer(tmp_path / "b").buffer_list
    assert np.array_equal(loaded[0][0], items[0][0])
    assert loaded[0][1:] == (1, 0.5, None)
    assert torch.equal(loaded[1]["obs"], torch.ones(2))
    assert loaded[2] == "x"


def test_files_of_0_1_5_are_read_when_pickles_are_allowed(monkeypatch):
    with pytest.raises(UntrustedPickleError, match="TRIEYE_ALLOW_PICKLE=1"):
        Serializer().load_checkpoint(DATA / "checkpoint_0_1_5.pkl")
    loaded = Serializer(allow_pickle=True).load_checkpoint(DATA / "checkpoint_0_1_5.pkl")
    assert isinstance(loaded, CheckpointData)
    assert (loaded.run_name, loaded.global_step, loaded.episodes_played) == ("run_20250102_030405", 9, 3)
    assert (loaded.total_simulations_run, loaded.user_data) == (40, {"lr": 0.1})
    model = torch.nn.Linear(2, 1)
    model.load_state_dict(loaded.model_state_dict)
    torch.optim.Adam(model.parameters()).load_state_dict(loaded.optimizer_state_dict)
    monkeypatch.setenv("TRIEYE_ALLOW_PICKLE", "1")
    buffer = Serializer().load_buffer(DATA / "buffer_0_1_5.pkl").buffer_list
    assert [item[1:] for item in buffer] == [(1, 0.5), (0, -0.5)]


def test_a_missing_file_or_another_type_returns_none_with_a_message(tmp_path, caplog):
    assert Serializer().load_checkpoint(tmp_path / "missing") is None
    Serializer().save_buffer(BufferData(buffer_list=[]), tmp_path / "b")
    assert Serializer().load_checkpoint(tmp_path / "b") is None
    assert Serializer(allow_pickle=True).load_buffer(DATA / "checkpoint_0_1_5.pkl") is None
    assert "missing does not exist" in caplog.text
    assert "b holds no CheckpointData" in caplog.text


def test_a_damaged_file_raises(tmp_path, trained):
    Serializer().save_checkpoint(checkpoint(*trained), tmp_path / "c")
    file = tmp_path / "c" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="damaged"):
        Serializer().load_checkpoint(tmp_path / "c")
    (tmp_path / "old.pkl").write_bytes((DATA / "buffer_0_1_5.pkl").read_bytes()[:100])
    with pytest.raises(SerializationError, match="not a complete pickle"):
        Serializer(allow_pickle=True).load_buffer(tmp_path / "old.pkl")


def test_saving_to_an_unwritable_path_raises(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SerializationError, match="file"):
        Serializer().save_buffer(BufferData(buffer_list=[1]), tmp_path / "file" / "b")
    with pytest.raises(SerializationError, match="file"):
        Serializer().save_config_json({}, tmp_path / "file" / "c.json")


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


class Layers(list):
    pass


def test_an_optimizer_or_its_state_can_be_passed(trained):
    optimizer = trained[1]
    by_object = Serializer().prepare_optimizer_state(optimizer)
    by_state = Serializer().prepare_optimizer_state(optimizer.state_dict())
    assert by_object["state"].keys() == by_state["state"].keys() == {0, 1}
    assert torch.equal(by_object["state"][0]["exp_avg"], by_state["state"][0]["exp_avg"])
    with pytest.raises(SerializationError, match="a list"):
        Serializer().prepare_optimizer_state([1])


def test_tensors_inside_lists_and_tuples_of_any_class_are_detached_and_moved_to_the_cpu():
    tensor = torch.ones(2, requires_grad=True) * 2
    values = {"a": (tensor, [tensor]), "b": Pair(tensor, 1), "c": Layers([tensor]), "d": Pair, 3: "x"}
    state = Serializer().prepare_optimizer_state(values)
    stored = [state["a"][0], state["a"][1][0], state["b"].left, state["c"][0]]
    assert all(not one.requires_grad and one.device.type == "cpu" for one in stored)
    assert (type(state["b"]), type(state["c"]), state["d"], state[3]) == (Pair, Layers, Pair, "x")


MAPPINGS = {"Counter": Counter, "defaultdict": partial(defaultdict, list), "proxy": MappingProxyType, "own": UserDict}


@pytest.mark.parametrize("kind", MAPPINGS.values(), ids=MAPPINGS)
def test_mappings_in_a_state_become_dicts(kind):
    tensor = torch.ones(2, requires_grad=True) * 2
    state = Serializer().prepare_optimizer_state({"a": kind({"b": tensor}), "c": kind({"d": 1})})
    assert (type(state["a"]), type(state["c"])) == (dict, dict)
    assert torch.equal(state["a"]["b"], tensor)
    assert not state["a"]["b"].requires_grad


@pytest.mark.parametrize(
    "content",
    [[1, 2], (1, 2), deque([1, 2]), np.array([1, 2]), {1: "a", 2: "b"}.keys(), BufferData(buffer_list=[1, 2])],
    ids=lambda items: type(items).__name__,
)
def test_any_iterable_of_items_is_a_buffer(content):
    assert Serializer().prepare_buffer_data(content).buffer_list == [1, 2]


@pytest.mark.parametrize("content", [None, 3, "text", b"bytes", {"a": 1}], ids=repr)
def test_other_values_are_rejected_as_buffers_with_a_message(content, caplog):
    with caplog.at_level(logging.ERROR):
        assert Serializer().prepare_buffer_data(content) is None
    assert type(content).__name__ in caplog.text


def test_a_config_is_written_as_readable_json(tmp_path):
    class Own:
        def __init__(self):
            self.x = 1

    config = {
        "t": torch.ones(1),
        "a": np.ones(1),
        "p": Path("x/y"),
        "d": deque([1, (2, 3)]),
        "m": TrieyeConfig(app_name="app", run_name="r"),
        "o": Own(),
        "n": np.float32(0.5),
        "c": complex(1, 2),
        "k": Own,
    }
    Serializer().save_config_json(config, tmp_path / "new" / "c.json")
    text = (tmp_path / "new" / "c.json").read_text()
    stored = json.loads(text)
    assert (stored["t"], stored["a"], stored["p"]) == ("<tensor/array>", "<tensor/array>", "x/y")
    assert (stored["d"], stored["m"]["app_name"], stored["o"], stored["n"]) == ([1, [2, 3]], "app", {"x": 1}, 0.5)
    assert stored["c"] == "(1+2j)"
    assert "Own" in stored["k"]
    assert text.startswith('{\n    "t"')
