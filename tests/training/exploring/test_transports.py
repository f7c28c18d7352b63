"""Transports reject unsuitable weights, and retain files; `TransportContract` tests that weights arrive unchanged."""

import pytest
import torch
from torch import nn

from tests.training.algorithms import DQN
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.training.exploring.transports import (
    CheckpointTransport,
    SupersededError,
    as_arrays,
    load_weights,
)


def module(seed=0, *, dtype=torch.float32, width=5):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    return network.to(dtype)


def test_weights_of_another_module_are_rejected_by_name_and_change_nothing():
    ours = module(0)
    before = {key: value.clone() for key, value in ours.state_dict().items()}
    with pytest.raises(ConfigurationError, match=r"0\.weight has shape \[6, 3\], expected \[5, 3\]"):
        load_weights(ours, as_arrays(module(1, width=6).state_dict()))
    with pytest.raises(ConfigurationError, match=r"2\.bias"):
        load_weights(ours, {key: value for key, value in module(1).state_dict().items() if key != "2.bias"})
    assert all(torch.equal(value, before[key]) for key, value in ours.state_dict().items())


def test_a_resumed_attempt_replaces_weight_files_of_later_versions(tmp_path):
    killed = CheckpointTransport(tmp_path)
    for version in range(7, 10):
        killed.publish(version, module(version).state_dict())
    resumed, ours = CheckpointTransport(tmp_path), module(99)
    load_weights(ours, resumed.fetch(resumed.publish(5, module(5).state_dict())))
    assert torch.equal(ours[0].weight, module(5)[0].weight)
    assert [path.name for path in resumed.paths()] == ["version_000000000005.safetensors"]


def test_only_the_newest_weight_files_remain_and_damaged_ones_are_skipped(tmp_path, capfd):
    transport = CheckpointTransport(tmp_path, keep=2)
    handles = [transport.publish(version, module(version).state_dict()) for version in range(4)]
    assert [path.name for path in transport.paths()] == [
        "version_000000000002.safetensors",
        "version_000000000003.safetensors",
    ]
    ours = module(9)
    with pytest.raises(SupersededError, match="version 3 replaced them") as newest:
        transport.fetch(handles[0])  # the file was deleted
    load_weights(ours, newest.value.weights)
    assert torch.equal(ours[0].weight, module(3)[0].weight)
    assert not capfd.readouterr().err  # a deleted file is not damaged
    transport.paths()[1].write_bytes(b"garbage")
    with pytest.raises(SupersededError, match="version 2 replaced them") as previous:
        transport.fetch(handles[3])
    load_weights(ours, previous.value.weights)
    assert torch.equal(ours[0].weight, module(2)[0].weight)
    assert "version_000000000003.safetensors: " in capfd.readouterr().err
    transport.paths()[0].unlink()
    with pytest.raises(CheckpointError, match="contains no intact weights"):
        transport.fetch(handles[3])


def test_the_weights_of_all_fragments_in_flight_remain(train_config):
    parts = {"sync": {"transport": "checkpoint", "offset": 4}, "agent": {"rollout_steps": 8}}
    engine = DQN(train_config(**parts, explorer={"num": 1, "max_in_flight": 5}))
    transport = engine._row_source._task.transport  # its private object
    handles = [transport.publish(version, engine.policy.state_dict()) for version in range(6)]
    engine.cleanup()
    assert [str(path) for path in transport.paths()] == handles


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64])
def test_weights_of_unusual_dtypes_are_delivered(dtype, tmp_path):
    ours, theirs = (nn.Module() for _ in range(2))
    for each, value in ((ours, 3.0), (theirs, 0.0)):
        each.register_buffer("scale", torch.full((2,), value).to(dtype))
    transport = CheckpointTransport(tmp_path)
    load_weights(theirs, transport.fetch(transport.publish(0, ours.state_dict())))
    assert theirs.scale.tolist() == [3, 3]


def test_weights_of_a_dtype_that_files_lack_are_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match=r"sync.transport=checkpoint .* complex128 of phase; .*=auto"):
        CheckpointTransport(tmp_path).publish(0, {"phase": torch.zeros(2, dtype=torch.complex128)})
    assert not list(tmp_path.iterdir())


class Counted(nn.Linear):
    def get_extra_state(self):
        return {"count": 1}

    def set_extra_state(self, state):
        pass


def test_a_state_other_than_tensors_is_rejected_with_its_key():
    network = nn.Sequential(nn.Linear(2, 2), Counted(2, 2))
    with pytest.raises(ConfigurationError, match=r"1\._extra_state of the state_dict is of type dict.*get_extra_state"):
        load_weights(network, network.state_dict())
