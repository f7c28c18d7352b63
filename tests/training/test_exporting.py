"""An exported policy acts as the original one, or a message explains why there is no program."""

import copy
import json
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import trieye
from tests.training.algorithms import DQN, PPO, ActorCritic, QPolicy, mlp
from tests.training.worlds import Count, Remembers
from trieye.exceptions import ConfigurationError
from trieye.training import exporting
from trieye.training.exporting import example, export_policy
from trieye.training.spaces import Spaces

PLACE = gym.spaces.Box(-4.8, np.finfo(np.float32).max, (4,), np.float32)
LEVERS = gym.spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 5.0]))
CTX = trieye.Context(explore=False, env_steps=0, generator=torch.Generator())


class Gaussian(trieye.Policy):
    """Acts as SAC: the mean, squashed into the bounds."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        low, high = torch.as_tensor(spaces.action.low), torch.as_tensor(spaces.action.high)
        self.register_buffer("center", (low + high) / 2)
        self.register_buffer("scale", (high - low) / 2)
        self.head = mlp([4, 16, 4])

    def act(self, obs, state, ctx):
        mean, log_std = self.head(self.normalizer(obs)).chunk(2, dim=1)
        noise = torch.empty_like(mean).normal_(generator=ctx.generator) if ctx.explore else 0.0
        return trieye.Act(self.center + self.scale * (mean + log_std.exp() * noise).tanh())


class Looks(trieye.Policy):
    """Acts on images."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.sees, self.decides = nn.Conv2d(1, 2, 2), nn.Linear(24, 3)

    def act(self, obs, state, ctx):
        assert obs.dtype == torch.uint8
        return trieye.Act(self.decides(self.sees(obs[:, None] / 255.0).flatten(1)).argmax(1))


class Parts(trieye.Policy):
    """Concatenates the parts of a dict."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.weight = nn.Linear(4, 3)

    def act(self, obs, state, ctx):
        return trieye.Act(self.weight(torch.cat((obs["mask"], obs["place"]), 1)).argmax(1))


class Hesitates(QPolicy):
    """Branches on its observations in Python."""

    def act(self, obs, state, ctx):
        if obs.sum() > 0:
            return trieye.Act(torch.zeros(obs.shape[0], dtype=torch.int64))
        return super().act(obs, state, ctx)


class OneByOne(QPolicy):
    """Loops over the observations."""

    def act(self, obs, state, ctx):
        return trieye.Act(torch.stack([self.q(one).argmax() for one in obs]))


class Throws(QPolicy):
    """Draws random actions even without exploration."""

    def act(self, obs, state, ctx):
        return trieye.Act(torch.rand(obs.shape).argmax(1))


def made(policy, observation=PLACE, action=None, *, normalize=False):
    torch.manual_seed(0)
    env, agent = SimpleNamespace(normalize_observations=normalize), SimpleNamespace(epsilon=lambda _: 0.5)
    spaces = Spaces(observation, action or gym.spaces.Discrete(3))
    return policy(SimpleNamespace(env=env, agent=agent), spaces).eval()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def program_in(directory):
    return torch.export.load(directory / "policy.pt2").module()


def acts_alike(directory, policy, observations):
    program = program_in(directory)
    for obs in observations:
        expected = policy.act(obs, None, CTX).action
        found = program(obs)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


def test_the_weights_and_a_program_that_acts_like_the_policy_are_written(tmp_path):
    policy = made(QPolicy, normalize=True)
    policy.normalizer.update(torch.randn(50, 4) * 3 + 1)
    files = export_policy(policy, tmp_path / "robot" / "policy", origin={"step": 60})
    assert [path.name for path in files] == ["policy.pt", "policy.pt2", "export.json"]
    assert names(tmp_path / "robot" / "policy") == sorted(path.name for path in files)
    weights = torch.load(files[0], weights_only=True)
    assert weights.keys() == policy.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())
    acts_alike(files[0].parent, policy, [torch.randn(n, 4) * 3 for n in (1, 2, 3, 64)])
    note = json.loads(files[2].read_text())
    assert (note["step"], note["policy"]) == (60, "tests.training.algorithms:QPolicy")


@pytest.mark.parametrize(
    ("policy", "action"),
    [(ActorCritic, gym.spaces.Discrete(3)), (Gaussian, LEVERS)],
    ids=["the likeliest action", "the mean"],
)
def test_a_program_takes_what_the_policy_takes_without_exploring(tmp_path, policy, action):
    policy = made(policy, action=action)
    export_policy(policy, tmp_path)
    acts_alike(tmp_path, policy, [torch.randn(n, 4) for n in (1, 5)])


def test_a_program_takes_pictures_and_the_parts_of_a_dict(tmp_path):
    looks = made(Looks, Count.OBSERVATIONS["picture"])
    export_policy(looks, tmp_path / "looks")
    acts_alike(tmp_path / "looks", looks, [torch.randint(256, (n, 4, 5), dtype=torch.uint8) for n in (1, 5)])
    parts = made(Parts, Count.OBSERVATIONS["mask"])
    export_policy(parts, tmp_path / "parts")
    both = [{"mask": torch.eye(3)[:n], "place": torch.randn(n, 1)} for n in (1, 2)]
    acts_alike(tmp_path / "parts", parts, [*both, dict(reversed(both[0].items()))])


def test_observations_lie_within_their_bounds_and_are_of_a_size_that_networks_know():
    bounds = np.float32([[0.0, 1.0], [100.0, 200.0], [-3e38, 3e38], [-np.inf, np.inf], [5.0, np.inf]])
    space = gym.spaces.Box(bounds[:, 0], bounds[:, 1])
    drawn = exporting._observations(space, 50, np.random.default_rng(0)).numpy()
    assert ((bounds[:, 0] <= drawn) & (drawn <= bounds[:, 1]) & (abs(drawn) <= 200)).all()
    assert (drawn[:, :4].std(0) > 0.1).all()


@pytest.mark.parametrize("form", ["picture", "mask", "hidden"])
def test_the_example_is_an_observation_as_the_program_takes_it(form):
    policy = {"picture": Looks, "mask": Parts}.get(form, QPolicy)
    policy = made(policy, Count.OBSERVATIONS[form])
    obs = eval(example(policy.spaces), {"torch": torch})  # noqa: S307 - it is code
    assert policy.act(obs, None, CTX).action.shape == (1,)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Remembers, "the policy is recurrent"),
        (Hesitates, "data-dependent"),
        (OneByOne, "fixes the number of observations"),
        (Throws, "chooses different actions"),
    ],
)
def test_what_is_no_program_is_said_in_one_line_and_the_weights_are_there(tmp_path, capfd, policy, why):
    policy = made(policy)
    export_policy(made(QPolicy), tmp_path)
    assert (tmp_path / "policy.pt2").exists()
    capfd.readouterr()
    files = export_policy(policy, tmp_path)
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"trieye: exported the weights of {type(policy).__name__}, but no program: ")
    assert why in shown.err
    # the program of the previous policy was deleted
    assert [path.name for path in files] == ["policy.pt", "export.json"]
    assert names(tmp_path) == ["export.json", "policy.pt"]
    assert torch.load(files[0], weights_only=True).keys() == policy.state_dict().keys()


@pytest.mark.parametrize("name", ["policy.pt", "policy.pt2", "export.json"])
def test_what_no_export_has_written_is_left_alone(tmp_path, monkeypatch, name):
    monkeypatch.setattr(exporting, "_program", lambda *_: b"program")
    foreign = tmp_path / name
    foreign.write_text('{"files": ["policy.pt"]}')
    with pytest.raises(ConfigurationError, match=f"{name} exists, and no export wrote it"):
        export_policy(made(QPolicy), tmp_path)
    assert foreign.read_text() == '{"files": ["policy.pt"]}'
    assert names(tmp_path) == [name]
    foreign.unlink()
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        export_policy(made(QPolicy), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot write the export"):
        export_policy(made(QPolicy), tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("engine", "agent"),
    [(DQN, {"kind": "dqn", "learning_starts": 8, "batch_size": 8}), (PPO, {"kind": "ppo", "batch_size": 8})],
    ids=["DQN", "PPO"],
)
def test_a_live_engine_exports_its_policy_and_trains_on_as_if_it_had_not(train_config, tmp_path, engine, agent):
    config = train_config(agent={"rollout_steps": 16, **agent}, env={"normalize_observations": engine is DQN})
    weights = []
    for exports in (True, False):
        torch.manual_seed(0)
        trained = engine(config)
        trained.step()
        if exports:
            drawn = torch.get_rng_state()
            files = trained.export_model(tmp_path / "export")
            assert torch.equal(torch.get_rng_state(), drawn)
            assert trained.policy.training
            now = copy.deepcopy(trained.policy.state_dict())
        trained.step()
        trained.cleanup()
        weights.append(trained.policy.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    written = torch.load(files[0], weights_only=True)
    assert all(torch.equal(value, now[name]) for name, value in written.items())
    assert any(not torch.equal(value, weights[0][name]) for name, value in now.items())
    assert program_in(tmp_path / "export")(torch.zeros(2, 4)).shape == (2,)
