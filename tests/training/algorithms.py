"""Minimal algorithms that learn, written as a user would write them."""

import copy
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

import trieye
from trieye.snapshot.decode import decode
from trieye.snapshot.encode import encode


class DQNConfig(trieye.ReplayAgentConfig):
    kind: Literal["dqn"] = "dqn"
    actions = ("discrete",)
    engine: str = "tests.training.algorithms:DQN"
    lr: trieye.Scheduled = trieye.Schedule(start=2.3e-3)
    epsilon: trieye.Scheduled = trieye.Schedule(start=1.0, end=0.04, steps=8000)
    target_update_interval: int = 128


class PPOConfig(trieye.AgentConfig):
    kind: Literal["ppo"] = "ppo"
    actions = ("discrete",)
    engine: str = "tests.training.algorithms:PPO"
    lr: trieye.Scheduled = trieye.Schedule(start=1e-3)


class TrainConfig(trieye.TrainingConfig):
    agent: trieye.AgentConfig = Field(default_factory=DQNConfig)


# built now, or a project that another test imports before its first use would define what `kind: dqn` means
TrainConfig.model_rebuild()


def small_config(root_data_dir: Path, **overrides: Any) -> TrainConfig:
    """Return a config: DQN on CartPole, in this process, without external sinks, with an update per four steps.

    Overrides are merged key by key; another `agent.kind` drops the default agent.
    """
    parts: dict[str, Any] = {
        "agent": {
            "kind": "dqn",
            "rollout_steps": 4,
            "batch_size": 8,
            "learning_starts": 8,
            "updates_per_env_step": 0.25,
        },
        "env": {"id": "CartPole-v1", "eval_episodes": 2},
        "run_name": "run",
        "runtime": {"kind": "local"},
        "sinks": {},
        "persistence": {"root_data_dir": str(root_data_dir)},
        "loop": {"axis": "env_steps"},
    }
    if "kind" in overrides.get("agent", {}):
        parts["agent"] = {}
    merged = {
        key: parts[key] | value if isinstance(parts.get(key), dict) else value for key, value in overrides.items()
    }
    return TrainConfig.model_validate(parts | merged)


def mlp(sizes):
    layers = [part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class QPolicy(trieye.Policy[TrainConfig, DQNConfig]):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        self.q = mlp([spaces.observation.shape[0], 32, spaces.action.n])

    def act(self, obs, state, ctx):
        action = self.q(self.normalizer(obs)).argmax(1)
        if ctx.explore:
            samples = torch.rand(action.shape, generator=ctx.generator, device=action.device)
            explores = samples < self.agent.epsilon(ctx.env_steps)
            random = torch.randint(self.spaces.action.n, action.shape, generator=ctx.generator, device=action.device)
            action = torch.where(explores, random, action)
        return trieye.Act(action)


class DQN(trieye.TrainEngine[TrainConfig, DQNConfig, QPolicy]):
    def setup(self, config):
        self.target = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.agent.lr(0), fused=True)

    def step(self):
        self.replay.extend(self.collect())
        return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    def train_step(self, batch):
        with torch.no_grad():
            targets = batch.reward + batch.discount * self.target.q(batch.next_obs).amax(1)
        values = self.policy.q(batch.obs).gather(1, batch.action[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.replay.update_priorities(batch.ids, (values - targets).detach().abs().cpu().numpy())
        if self.updates % self.agent.target_update_interval == 0:
            self.target.load_state_dict(self.policy.state_dict())
        return {"loss/td": loss, "q/mean": values.mean()}


class Noisy(DQN):
    """Draws from torch's global generator during learning, as dropout does."""

    def train_step(self, batch):
        batch.data["reward"] = batch.data["reward"] + torch.randn(len(batch))
        return super().train_step(batch)


class ActorCritic(trieye.Policy):
    def __init__(self, config, spaces):
        super().__init__(config, spaces)
        size = spaces.observation.shape[0]
        self.pi, self.v = mlp([size, 32, spaces.action.n]), mlp([size, 32, 1])

    def act(self, obs, state, ctx):
        chances = torch.log_softmax(self.pi(obs), 1)
        action = (
            torch.multinomial(chances.exp(), 1, generator=ctx.generator)[:, 0] if ctx.explore else chances.argmax(1)
        )
        return trieye.Act(action, {"log_prob": chances.gather(1, action[:, None])[:, 0], "value": self.v(obs)[:, 0]})


class PPO(trieye.TrainEngine[TrainConfig], policy=ActorCritic):
    def setup(self, config):
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.agent.lr(0), fused=True)

    def step(self):
        rows = self.collect()
        estimates = trieye.gae(rows, self.policy.v(rows.after)[:, 0].detach(), gamma=0.98, lam=0.8)
        trieye.set_lr(self.optimizer, self.agent.lr(self.env_steps))
        batches = self.minibatches(rows, epochs=4, **estimates._asdict())
        return trieye.mean(self.train_step(batch) for batch in batches)

    def train_step(self, batch):
        chances = torch.log_softmax(self.policy.pi(batch["obs"]), 1)
        ratio = (chances.gather(1, batch["action"][:, None])[:, 0] - batch["log_prob"]).exp()
        advantages = batch["advantages"]
        if len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value_loss = (self.policy.v(batch["obs"])[:, 0] - batch["returns"]).square().mean()
        self.optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()
        return {"loss/policy": policy_loss, "loss/value": value_loss}


def resumed(engine, config):
    """Close an engine, and resume a new one from its state."""
    state = decode(encode(engine.save_checkpoint(None)))
    engine.cleanup()
    other = type(engine)(config)
    other.load_checkpoint(state)
    return other


def interrupted(engine_class: type[Any], after: int, count: str = "env_steps") -> type[Any]:
    """Return an engine class that sends itself a stop signal after a number of environment steps, or updates."""

    class Interrupted(engine_class):
        def step(self) -> Any:
            values = super().step()
            if getattr(self, count) >= after:
                signal.raise_signal(signal.SIGTERM)
            return values

    return Interrupted
