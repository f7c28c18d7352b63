"""What is exported needs torch and nothing else, and acts as the policy does."""

import pytest
import torch
from torch import nn

import trieye
from tests.training.algorithms import DQN
from trieye.training.exporting import PROGRAM, WEIGHTS, export_policy, sampled


class Continuous(trieye.Policy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.net = nn.Linear(spaces.observation.shape[0], 2)

    def act(self, obs, state, ctx):
        action = torch.tanh(self.net(self.normalizer(obs)))
        if ctx.explore:
            action = action + torch.randn(action.shape, generator=ctx.generator)
        return trieye.Act(action)


class Choosing(Continuous):
    """Asks the numbers themselves what to do, which no program of torch can."""

    def act(self, obs, state, ctx):
        return super().act(obs if float(obs.sum()) > 0 else -obs, state, ctx)


class Recurrent(Continuous):
    def initial_state(self, n):
        return torch.zeros(n, 3)


@pytest.fixture
def engine(train_config):
    made = DQN(train_config())
    yield made
    made.cleanup()


def test_an_engine_writes_weights_and_a_program_that_acts_alike(engine, tmp_path):
    engine.policy.train()
    paths = engine.export_model(tmp_path / "export")
    assert [path.name for path in paths] == [WEIGHTS, PROGRAM]
    assert engine.policy.training
    weights = torch.load(paths[0], weights_only=True)
    own = engine.policy.state_dict()
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], own[name]) for name in own)
    program, ctx = (
        torch.export.load(paths[1]).module(),
        trieye.Context(explore=False, env_steps=0, generator=torch.Generator()),
    )
    for num in (1, 2, 7):
        obs = sampled(engine.policy.spaces, num)
        actions = engine.policy.act(obs, None, ctx).action
        assert torch.equal(program(obs), actions)
        assert actions.shape == (num,)


def test_numbers_within_bounds_are_chosen_alike(engine, tmp_path):
    policy = Continuous(engine.config, engine.policy.spaces)
    _, path = export_policy(policy, tmp_path)
    obs = sampled(policy.spaces, 4)
    assert torch.allclose(torch.export.load(path).module()(obs), torch.tanh(policy.net(obs)), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Choosing, "torch.export cannot take Choosing.act"), (Recurrent, "recurrent")]
)
def test_a_policy_that_is_no_program_has_its_weights_written_and_one_sentence(engine, tmp_path, capsys, kind, reason):
    export_policy(Continuous(engine.config, engine.policy.spaces), tmp_path)
    (path,) = export_policy(kind(engine.config, engine.policy.spaces), tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name] == [WEIGHTS]
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert reason in said[0]
