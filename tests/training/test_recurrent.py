"""A recurrent PPO as a user would write it: a GRU that learns from whole fragments with bootstrapped values."""

from typing import Literal

import pytest
import torch
from pydantic import Field
from torch import nn

import trieye

SIZE = 8


class GRUConfig(trieye.AgentConfig):
    kind: Literal["gru"] = "gru"
    actions = ("discrete",)
    engine: str = "test_recurrent:RecurrentPPO"
    rollout_steps: int = 8


class RecurrentConfig(trieye.TrainingConfig):
    agent: trieye.AgentConfig = Field(default_factory=GRUConfig)


class GRUPolicy(trieye.Policy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.cell = nn.GRUCell(spaces.observation.shape[0], SIZE)
        self.actor, self.critic = nn.Linear(SIZE, spaces.action.n), nn.Linear(SIZE, 1)

    def initial_state(self, n):
        return torch.zeros(n, SIZE)

    def act(self, obs, state, ctx):
        state = self.cell(obs, state)
        chances = self.actor(state).log_softmax(1)
        action = torch.multinomial(chances.exp(), 1, generator=ctx.generator)
        return trieye.Act(
            action[:, 0], {"log_prob": chances.gather(1, action)[:, 0], "value": self.value(state)}, state
        )

    def value(self, state):
        return self.critic(state)[:, 0]


def unrolled(policy, rows):
    """Return values and log probabilities `[t, n]` by a pass over the rows, and the state after them."""
    state, values, chances, valid = rows.state, [], [], torch.from_numpy(rows.valid)
    for t, obs in enumerate(rows["obs"]):
        state = policy.cell(obs, state)
        values.append(policy.value(state))
        chances.append(policy.actor(state).log_softmax(1).gather(1, rows["action"][t][:, None])[:, 0])
        state = torch.where(valid[t][:, None], state, policy.initial_state(len(state)))
    return torch.stack(values), torch.stack(chances), state


class RecurrentPPO(trieye.TrainEngine[RecurrentConfig], policy=GRUPolicy):
    def setup(self, config):
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-2)

    def step(self):
        rows = self.collect()
        with torch.no_grad():
            last_value = self.policy.value(self.policy.cell(rows.after, rows.last_state))
        estimates = trieye.gae(rows, last_value, gamma=self.agent.gamma, lam=0.9)
        return self.train_step((rows, estimates, torch.from_numpy(rows.valid)))

    def train_step(self, batch):
        rows, (advantages, returns), valid = batch
        values, log_prob, _ = unrolled(self.policy, rows)
        ratio = (log_prob - rows["log_prob"])[valid].exp()
        policy_loss = -torch.min(ratio * advantages[valid], ratio.clamp(0.8, 1.2) * advantages[valid]).mean()
        value_loss = (values - returns)[valid].square().mean()
        self.optimizer.zero_grad()
        (policy_loss + value_loss).backward()
        self.optimizer.step()
        self.updates += 1
        return {"furthest": (ratio - 1).abs().max().item()}


@pytest.fixture
def engine(tmp_path):
    torch.manual_seed(0)
    recurrent_ppo = RecurrentPPO(
        RecurrentConfig(
            env={"id": "tests.training.worlds:Count-v0", "num": 3},
            runtime={"kind": "local"},
            persistence={"root_data_dir": str(tmp_path)},
        )
    )
    yield recurrent_ppo
    recurrent_ppo.cleanup()


def test_values_of_a_recurrent_policy_equal_those_of_one_pass_over_the_sequence(engine):
    policy, before = engine.policy, None
    for _ in range(6):
        rows = engine.collect()
        valid = torch.from_numpy(rows.valid)
        with torch.no_grad():
            values, log_prob, state = unrolled(policy, rows)
            last_value = policy.value(policy.cell(rows.after, rows.last_state))
        assert torch.allclose(values[valid], rows["value"][valid], atol=1e-6)
        assert torch.allclose(log_prob[valid], rows["log_prob"][valid], atol=1e-6)
        assert torch.allclose(state, rows.last_state, atol=1e-6)
        if before is not None:  # also for reset rows, which hold the last observation of their episode
            assert torch.allclose(before, rows["value"][0], atol=1e-6)
        before = last_value
    assert not valid.all()


def test_the_first_update_of_a_recurrent_ppo_reproduces_the_collected_probabilities(engine):
    before = engine.policy.cell.weight_hh.clone()
    metrics = [engine.advance() for _ in range(50)]
    assert max(values["furthest"] for values in metrics) < 1e-4  # largest deviation of the probability ratios from 1
    assert (engine.policy.cell.weight_hh - before).abs().max() > 0.01


def test_gradients_flow_through_the_bootstrap_value_but_not_into_the_recurrent_state(engine):
    rows = engine.collect()
    engine.policy.value(engine.policy.cell(rows.after, rows.last_state)).sum().backward()
    assert engine.policy.cell.weight_hh.grad.abs().sum() > 0
    assert not rows.last_state.requires_grad
