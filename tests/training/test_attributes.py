"""What an engine keeps in attributes comes back without a word of its author."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from trieye.exceptions import ConfigurationError
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode
from trieye.training.attributes import Attributes


class Holder:
    """An engine after its `setup`, as far as this is concerned."""

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
        self._scratch = 1
        self.loss = nn.functional.mse_loss

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
        self._scratch += 1


def through(attributes):
    return decode(encode(attributes.state_dict()))


@pytest.fixture
def learned():
    holder = Holder()
    attributes = Attributes(holder, {"policy"})
    for _ in range(3):
        holder.learn()
    return holder, through(attributes)


def test_what_changed_since_the_set_up_is_state_and_what_the_config_made_is_not(learned):
    _, state = learned
    changed = {"target", "log_alpha", "optimizer", "rng", "count", "best", "recent", "mean"}
    assert state.keys() == changed


def test_it_goes_on_bit_for_bit_with_the_hyperparameters_of_now(learned):
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


def test_a_learning_rate_that_a_scheduler_changes_comes_back_as_it_was():
    holder = Holder(schedule=True)
    attributes = Attributes(holder, {"policy"})
    holder.learn()
    other = Holder(schedule=True)
    Attributes(other, {"policy"}).load_state_dict(through(attributes))
    assert other.optimizer.param_groups[0]["lr"] == holder.optimizer.param_groups[0]["lr"] == 0.05
    holder.learn()
    other.learn()
    assert torch.equal(holder.target.weight, other.target.weight)


def test_a_list_of_weights_that_are_saved_elsewhere_may_be_kept_and_one_of_others_is_refused():
    holder = Holder()
    holder.weights = [*holder.target.parameters(), *holder.policy.parameters(), holder.log_alpha]
    assert "weights" not in Attributes(holder, {"policy"}).state_dict()
    holder.weights = [torch.zeros(2, requires_grad=True)]
    with pytest.raises(ConfigurationError, match=r"Holder.weights is a list of objects with a state"):
        Attributes(holder, {"policy"})


@pytest.mark.parametrize("make", [list, tuple, lambda pair: dict(enumerate(pair))])
def test_a_container_of_objects_with_a_state_is_refused_and_not_forgotten(make):
    holder = Holder()
    holder.nets = make([nn.Linear(1, 1), nn.Linear(1, 1)])
    with pytest.raises(ConfigurationError, match=r"Holder.nets is a \w+ of objects with a state, .*ModuleDict"):
        Attributes(holder, {"policy"})
