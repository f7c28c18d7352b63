"""The state in an engine's attributes is saved and restored automatically."""

from collections import Counter, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn

from trieye.exceptions import ConfigurationError
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.attributes import Attributes
from trieye.training.policy import Moments


class Holder:
    """Replaces an engine after its `setup`."""

    def __init__(self, lr=0.1, *, schedule=False):
        torch.manual_seed(0)
        self.policy = nn.ModuleDict({"body": nn.Linear(2, 2)})
        self.body = self.policy["body"]
        self.target = nn.Linear(2, 2)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.optimizer = torch.optim.Adam([*self.target.parameters(), self.log_alpha], lr=lr)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5) if schedule else None
        self.rng = np.random.default_rng(3)
        self.count, self.batch_size, self.best = 0, 64 if lr == 0.1 else 128, {"score": None}
        self.recent = deque(maxlen=3)
        self.mean = torch.zeros(2)
        self.baseline = nn.Parameter(torch.zeros(1), requires_grad=False)
        self._scratch = 1
        self.loss = nn.functional.mse_loss
        self.losses, self.layers = (self.loss, nn.functional.l1_loss), {"relu": nn.ReLU}
        self.shape = self.mean.shape

    def learn(self):
        self.optimizer.zero_grad()
        (self.target(torch.ones(2)).sum() * self.log_alpha.exp()).backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.count += 1
        self.recent.append(self.count)
        self.best["score"] = float(self.rng.random())
        self.mean += 1
        self.baseline += 1
        self._scratch += 1


def encoded_state(attributes):
    return decode(encode(attributes.state_dict()))


@pytest.fixture
def learned():
    holder = Holder()
    attributes = Attributes(holder, {"policy"})
    for _ in range(3):
        holder.learn()
    return holder, encoded_state(attributes)


def test_attributes_changed_since_setup_are_state_and_configured_ones_are_not(learned):
    _, state = learned
    changed = {"target", "log_alpha", "optimizer", "rng", "count", "best", "recent", "mean", "baseline"}
    assert state.keys() == changed


def test_a_resume_is_bit_exact_with_the_current_hyperparameters(learned):
    holder, state = learned
    other = Holder(lr=0.05)
    Attributes(other, {"policy"}).load_state_dict(state)
    assert (other.count, other.recent, other.best, other.batch_size) == (3, deque([1, 2, 3], 3), holder.best, 128)
    assert other.optimizer.param_groups[0]["lr"] == 0.05
    holder.optimizer.param_groups[0]["lr"] = 0.05
    holder.learn()
    other.learn()
    assert torch.equal(holder.target.weight, other.target.weight)
    assert torch.equal(holder.log_alpha, other.log_alpha)
    assert holder.best == other.best
    assert torch.equal(holder.mean, other.mean)
    assert torch.equal(holder.baseline, other.baseline)


def test_a_learning_rate_changed_by_a_scheduler_is_restored():
    holder = Holder(schedule=True)
    attributes = Attributes(holder, {"policy"})
    holder.learn()
    other = Holder(schedule=True)
    Attributes(other, {"policy"}).load_state_dict(encoded_state(attributes))
    assert other.optimizer.param_groups[0]["lr"] == holder.optimizer.param_groups[0]["lr"] == 0.05
    holder.learn()
    other.learn()
    assert torch.equal(holder.target.weight, other.target.weight)


@pytest.mark.parametrize("is_trainable", [True, False])
def test_a_list_of_weights_is_accepted_only_if_they_are_saved_elsewhere(is_trainable):
    holder = Holder()
    holder.target.requires_grad_(is_trainable)
    holder.weights = [*holder.target.parameters(), *holder.policy.parameters(), holder.log_alpha]
    assert "weights" not in Attributes(holder, {"policy"}).state_dict()
    holder.weights = [nn.Parameter(torch.zeros(2), requires_grad=is_trainable)]
    with pytest.raises(ConfigurationError, match=r"Holder.weights is a list of stateful objects"):
        Attributes(holder, {"policy"})


@pytest.mark.parametrize(
    "make", [list, tuple, lambda pair: dict(enumerate(pair)), lambda pair: {"nets": pair, "num": 2}]
)
def test_a_container_of_stateful_objects_is_rejected(make):
    holder = Holder()
    holder.nets = make([nn.Linear(1, 1), nn.Linear(1, 1)])
    with pytest.raises(ConfigurationError, match=r"Holder.nets is a \w+ of stateful objects, .*ModuleDict"):
        Attributes(holder, {"policy"})


@pytest.mark.parametrize(
    "value",
    [
        Counter(),
        defaultdict(int),
        Moments(0, torch.zeros(1), torch.ones(1)),
        {"count": 0, "loss": nn.functional.mse_loss},
        [nn.functional.mse_loss, {"counts": []}],
        np.array([None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_in_a_form_that_is_not_saved_is_rejected(value):
    holder = Holder()
    holder.stats = value
    with pytest.raises(ConfigurationError, match=rf"Holder\.stats: .* this {type(value).__name__}, .*use a dict"):
        Attributes(holder, {"policy"})
    del holder.stats
    holder._stats = value
    assert "_stats" not in Attributes(holder, {"policy"}).state_dict()


class DeviceHolder:
    """Stores tensors on its device or on the CPU, created by `setup` or later, alone or in containers."""

    def __init__(self, device):
        self.device = torch.device(device)
        self.mean = torch.zeros(2, device=device)
        self.on_cpu = torch.zeros(2)
        self.hidden = None
        self.recent = deque(maxlen=2)
        self.parts = {"made": torch.zeros(2), "later": None}

    def learn(self):
        self.mean, self.on_cpu = self.mean + 1, self.on_cpu + 1
        self.hidden = torch.ones(3, device=self.device)
        self.recent.append((torch.ones(1, device=self.device), 7))
        self.parts = {"made": torch.ones(2), "later": torch.ones(2, device=self.device)}

    def devices(self):
        named = {"mean": self.mean, "on_cpu": self.on_cpu, "hidden": self.hidden, "recent": self.recent[0][0]}
        return {name: tensor.device.type for name, tensor in (named | self.parts).items()}


def test_tensors_are_restored_to_the_device_of_the_resuming_engine():
    holder = DeviceHolder("cpu")
    attributes = Attributes(holder, ())
    holder.learn()
    other = DeviceHolder("meta")  # a device without storage
    Attributes(other, ()).load_state_dict(encoded_state(attributes))
    on_device = dict.fromkeys(("mean", "hidden", "recent", "later"), "meta")
    assert other.devices() == on_device | {"on_cpu": "cpu", "made": "cpu"}
    assert (other.recent.maxlen, other.recent[0][1]) == (2, 7)


def test_a_tensor_stored_on_the_cpu_returns_to_the_cpu():
    holder, other = DeviceHolder("cpu"), DeviceHolder("cpu")
    holder.device = other.device = torch.device("meta")
    attributes = Attributes(holder, ())
    holder.learn()
    holder.hidden = torch.ones(3)
    Attributes(other, ()).load_state_dict(attributes.state_dict())
    assert other.devices() == holder.devices()
    assert (other.hidden.device.type, other.parts["later"].device.type) == ("cpu", "meta")


def test_a_tensor_that_moved_to_another_device_since_setup_is_saved():
    holder = DeviceHolder("cpu")
    attributes = Attributes(holder, ())
    holder.on_cpu = torch.zeros(2, device="meta")
    assert "on_cpu" in attributes.state_dict()
