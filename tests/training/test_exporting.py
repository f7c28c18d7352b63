"""An exported policy acts as the original one, or a message explains why there is no program."""

import copy
import json
import shutil
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import trieye
from tests.training.algorithms import DQN, ActorCritic, QPolicy, mlp
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


class ImagePolicy(trieye.Policy):
    """Acts on images."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.sees, self.decides = nn.Conv2d(1, 2, 2), nn.Linear(24, 3)

    def act(self, obs, state, ctx):
        assert obs.dtype == torch.uint8
        return trieye.Act(self.decides(self.sees(obs[:, None] / 255.0).flatten(1)).argmax(1))


class DictPolicy(trieye.Policy):
    """Concatenates the parts of a dict."""

    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.weight = nn.Linear(4, 3)

    def act(self, obs, state, ctx):
        return trieye.Act(self.weight(torch.cat((obs["mask"], obs["place"]), 1)).argmax(1))


class BranchingPolicy(QPolicy):
    """Branches on its observations in Python."""

    def act(self, obs, state, ctx):
        if obs.sum() > 0:
            return trieye.Act(torch.zeros(obs.shape[0], dtype=torch.int64))
        return super().act(obs, state, ctx)


class LoopingPolicy(QPolicy):
    """Loops over the observations."""

    def act(self, obs, state, ctx):
        return trieye.Act(torch.stack([self.q(one).argmax() for one in obs]))


class RandomPolicy(QPolicy):
    """Draws random actions even without exploration."""

    def act(self, obs, state, ctx):
        return trieye.Act(torch.rand(obs.shape).argmax(1))


def make_policy(policy, observation=PLACE, action=None, *, normalize=False):
    torch.manual_seed(0)
    env, agent = SimpleNamespace(normalize_observations=normalize), SimpleNamespace(epsilon=lambda _: 0.5)
    spaces = Spaces(observation, action or gym.spaces.Discrete(3))
    return policy(SimpleNamespace(env=env, agent=agent), spaces).eval()


def file_names(directory):
    return sorted(path.name for path in directory.iterdir())


def program_in(directory):
    return torch.export.load(directory / "policy.pt2").module()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a directory with the export of a policy; to be copied."""
    directory = tmp_path_factory.mktemp("exported")
    export_policy(make_policy(QPolicy), directory)
    assert (directory / "policy.pt2").exists()
    return directory


def assert_acts_alike(directory, policy, observations):
    program = program_in(directory)
    for obs in observations:
        expected = policy.act(obs, None, CTX).action
        action = program(obs)
        assert action.dtype == expected.dtype
        torch.testing.assert_close(action, expected)


@pytest.mark.parametrize(
    ("policy", "action"),
    [(ActorCritic, gym.spaces.Discrete(3)), (Gaussian, LEVERS)],
    ids=["the likeliest action", "the mean"],
)
def test_an_export_has_the_weights_and_a_program_that_acts_like_the_policy_without_exploration(
    tmp_path, policy, action
):
    policy = make_policy(policy, action=action, normalize=True)
    policy.normalizer.update(torch.randn(50, 4) * 3 + 1)
    files = export_policy(policy, tmp_path / "robot" / "policy", origin={"step": 60})
    assert [path.name for path in files] == ["policy.pt", "policy.pt2", "export.json"]
    assert file_names(files[0].parent) == sorted(path.name for path in files)
    weights = torch.load(files[0], weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())
    assert_acts_alike(files[0].parent, policy, [torch.randn(n, 4) * 3 for n in (1, 5)])
    note = json.loads(files[2].read_text())
    assert (note["step"], note["policy"].rpartition(":")[2]) == (60, type(policy).__name__)


def test_a_program_accepts_images_and_dict_observations(tmp_path):
    looks = make_policy(ImagePolicy, Count.OBSERVATIONS["picture"])
    export_policy(looks, tmp_path / "looks")
    assert_acts_alike(tmp_path / "looks", looks, [torch.randint(256, (n, 4, 5), dtype=torch.uint8) for n in (1, 5)])
    parts = make_policy(DictPolicy, Count.OBSERVATIONS["mask"])
    export_policy(parts, tmp_path / "parts")
    both = [{"mask": torch.eye(3)[:n], "place": torch.randn(n, 1)} for n in (1, 2)]
    assert_acts_alike(tmp_path / "parts", parts, [*both, dict(reversed(both[0].items()))])


def test_example_observations_respect_their_bounds_and_have_moderate_values():
    bounds = np.float32([[0.0, 1.0], [100.0, 200.0], [-3e38, 3e38], [-np.inf, np.inf], [5.0, np.inf]])
    space = gym.spaces.Box(bounds[:, 0], bounds[:, 1])
    drawn = exporting._observations(space, 50, np.random.default_rng(0)).numpy()
    assert ((bounds[:, 0] <= drawn) & (drawn <= bounds[:, 1]) & (abs(drawn) <= 200)).all()
    assert (drawn[:, :4].std(0) > 0.1).all()


@pytest.mark.parametrize("form", ["picture", "mask", "hidden"])
def test_the_printed_example_is_a_valid_observation_for_the_program(form):
    policy = {"picture": ImagePolicy, "mask": DictPolicy}.get(form, QPolicy)
    policy = make_policy(policy, Count.OBSERVATIONS[form])
    obs = eval(example(policy.spaces), {"torch": torch})  # noqa: S307 - it is code
    assert policy.act(obs, None, CTX).action.shape == (1,)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Remembers, "the policy is recurrent"),
        (BranchingPolicy, "data-dependent"),
        (LoopingPolicy, "fixes the number of observations"),
        (RandomPolicy, "chooses different actions"),
    ],
)
def test_a_policy_that_cannot_become_a_program_exports_its_weights_with_the_reason(
    exported, tmp_path, capfd, policy, reason
):
    policy = make_policy(policy)
    shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
    capfd.readouterr()
    files = export_policy(policy, tmp_path)
    shown = capfd.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"trieye: exported the weights of {type(policy).__name__}, but no program: ")
    assert reason in shown.err
    # the program of the previous policy was deleted
    assert [path.name for path in files] == ["policy.pt", "export.json"]
    assert file_names(tmp_path) == ["export.json", "policy.pt"]
    assert torch.load(files[0], weights_only=True).keys() == policy.state_dict().keys()


@pytest.mark.parametrize("name", ["policy.pt", "policy.pt2", "export.json"])
def test_files_that_no_export_wrote_are_untouched(tmp_path, monkeypatch, name):
    monkeypatch.setattr(exporting, "_program", lambda *_: b"program")
    foreign = tmp_path / name
    foreign.write_text('{"files": ["policy.pt"]}')
    with pytest.raises(ConfigurationError, match=f"{name} exists, and no export wrote it"):
        export_policy(make_policy(QPolicy), tmp_path)
    assert foreign.read_text() == '{"files": ["policy.pt"]}'
    assert file_names(tmp_path) == [name]
    foreign.unlink()
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        export_policy(make_policy(QPolicy), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(ConfigurationError, match="cannot write the export"):
        export_policy(make_policy(QPolicy), tmp_path / "notes.txt")


def test_a_live_engine_exports_its_policy_without_affecting_its_training(train_config, tmp_path):
    config = train_config(agent={"rollout_steps": 16}, env={"normalize_observations": True})
    weights = []
    for exports in (True, False):
        torch.manual_seed(0)
        trained = DQN(config)
        trained.step()
        if exports:
            random_state = torch.get_rng_state()
            files = trained.export_model(tmp_path / "export")
            assert torch.equal(torch.get_rng_state(), random_state)
            assert trained.policy.training
            exported = copy.deepcopy(trained.policy.state_dict())
        trained.step()
        trained.cleanup()
        weights.append(trained.policy.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    written = torch.load(files[0], weights_only=True)
    assert all(torch.equal(value, exported[name]) for name, value in written.items())
    assert any(not torch.equal(value, weights[0][name]) for name, value in exported.items())
    assert program_in(tmp_path / "export")(torch.zeros(2, 4)).shape == (2,)
