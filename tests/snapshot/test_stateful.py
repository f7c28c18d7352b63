import random

import gymnasium as gym
import numpy as np
import pytest
import torch

import trieye
from trieye.exceptions import CheckpointError, ConfigurationError
from trieye.snapshot.environments import stateful


class Sampler:
    """A user-defined sampler that deals the indices of a data set in random order."""

    def __init__(self, size, seed):
        self.generator = np.random.default_rng(seed)
        self.left, self.size = [], size

    def draw(self):
        if not self.left:
            self.left = self.generator.permutation(self.size).tolist()
        return self.left.pop()

    def state_dict(self):
        return {"generator": self.generator, "left": self.left}

    def load_state_dict(self, state):
        stateful(self.generator).load_state_dict(state["generator"])
        self.left = state["left"]


class Training:
    """A custom training loop with every kind of state that determines its losses."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.numpy, self.python = np.random.default_rng(seed), random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.legacy = np.random.RandomState(seed)
        self.sampler = Sampler(7, seed)
        self.env = gym.wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=9))
        self.env.reset(seed=seed)

    def step(self):
        obs, _, terminated, truncated, _ = self.env.step(self.python.randrange(2))
        noise = torch.randn(4, generator=self.torch) + self.numpy.normal() + self.legacy.rand() + self.sampler.draw()
        loss = self.model(torch.from_numpy(obs).float() + noise).square().sum() + torch.rand(()) + random.random()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        if terminated or truncated:
            self.env.reset()
        return loss.item() + float(np.random.random())  # noqa: NPY002 - the global generator

    def objects(self):
        return vars(self)


@pytest.fixture
def train_and_save_run(make_config):
    def train_and_save(training, *, steps):
        with trieye.Run(make_config()) as run:
            run.restore(**training.objects())
            losses = [training.step() for _ in run.steps(steps)]
            run.save(**training.objects())
        return run, losses

    return train_and_save


def test_new_objects_resume_the_training_bit_exactly(train_and_save_run, make_config):
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - the global generator
    train_and_save_run(training := Training(seed=1), steps=10)
    with trieye.Run(make_config()) as run:
        other = Training(seed=2)
        assert run.restore(**other.objects())
        losses = [other.step() for _ in range(20)]
        assert run.restore(**training.objects())  # restores the global generators, too
        assert [training.step() for _ in range(20)] == losses
    assert other.scheduler.get_last_lr() == training.scheduler.get_last_lr() != [0.1]
    assert other.scaler.get_scale() == training.scaler.get_scale() != 8.0


def test_generators_not_restored_in_place_are_returned_as_new_ones(train_and_save_run, make_config):
    train_and_save_run(training := Training(seed=1), steps=5)
    with trieye.Run(make_config()) as run:
        run.restore()
    for name in ("numpy", "legacy"):
        assert run.restored[name].random() == getattr(training, name).random()
    assert run.restored["python"].random() == training.python.random()
    assert torch.equal(torch.rand(3, generator=run.restored["torch"]), torch.rand(3, generator=training.torch))
    env = trieye.EnvState(gym.wrappers.NormalizeObservation(gym.make("CartPole-v1", max_episode_steps=9)))
    env.load_state_dict(run.restored["env"])
    assert env.env.step(0)[0].tobytes() == training.env.step(0)[0].tobytes()


def test_stateful_returns_objects_with_state_methods_unchanged():
    class Env(gym.Env):
        def state_dict(self):
            return {}

    for value in (Sampler(3, 1), Env(), {}, 3, None):
        assert stateful(value) is value


def test_restoring_a_value_without_state_methods_names_it(train_and_save_run, make_config):
    with trieye.Run(make_config()) as run:
        run.save(number=3)
    with trieye.Run(make_config()) as run, pytest.raises(ConfigurationError, match=r"restore\(number=.*: a int has no"):
        run.restore(number=4)


def test_a_grad_scaler_resumes_with_its_scale_and_growth_counter(make_config):
    def grow(scaler, steps):
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(steps):
            scaler.scale(parameter.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return scaler.get_scale()

    def fresh(**changes):
        return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3, **changes)

    whole, saved = fresh(), fresh()
    assert grow(saved, 5) == 16.0
    with trieye.Run(make_config()) as run:
        run.save(scaler=saved, off=fresh(enabled=False))
    restored = fresh()
    with trieye.Run(make_config()) as run:
        assert run.restore(scaler=restored)
        assert run.restored["off"] == {}
        with pytest.raises(CheckpointError, match=r"'off'.*disabled instance"):
            run.restore(off=fresh())
    assert restored.get_scale() == 16.0
    assert grow(restored, 1) == grow(whole, 6) == 32.0  # the sixth step is the third after the scale grew
