"""PPO (Schulman et al. 2017) for discrete actions in one file: a policy, and an engine that collects and updates.

python examples/ppo.py run_name=first                          # a return of 475 in about a minute
python examples/ppo.py explorer.num=2 sync=fully_async         # two processes collect
PYTHONPATH=examples trieye evaluate first
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

import trieye
from trieye.config import LoopConfig


class PPOConfig(trieye.AgentConfig):
    """Hyperparameters; their types, bounds and descriptions appear in `--help` and in error messages."""

    kind: Literal["ppo_in_one_file"] = "ppo_in_one_file"
    actions = ("discrete",)
    engine: str = "ppo:PPO"
    rollout_steps: int = Field(default=32, ge=1, description="Steps of each environment between updates.")
    lr: trieye.Scheduled = trieye.Schedule(start=1e-3, end=0.0, steps=100_000)
    gamma: float = Field(default=0.98, ge=0, le=1, description="Discount factor.")
    gae_lambda: float = Field(default=0.8, ge=0, le=1, description="Weight of long returns in advantages.")
    epochs: int = Field(default=20, ge=1, description="Passes through the rows of a rollout.")
    clip_range: float = Field(default=0.2, gt=0, description="Clipping of the probability ratio.")


class Config(trieye.TrainingConfig):
    """The config of this program, besides all keys of trieye."""

    agent: PPOConfig = PPOConfig()
    env: trieye.EnvConfig = trieye.EnvConfig(id="CartPole-v1", num=8, eval_episodes=20)
    loop: LoopConfig = LoopConfig(axis="env_steps", env_steps=100_000, evaluate_every_steps=5000)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, outputs))


class ActorCritic(trieye.Policy[Config, PPOConfig]):
    """The acting module; explorers receive it, and checkpoints contain it."""

    def __init__(self, config: Config, spaces: trieye.Spaces) -> None:
        super().__init__(config, spaces)
        self.make(spaces.observation.shape[0], int(spaces.action.n))

    def make(self, num_features: int, num_actions: int) -> None:
        """Create the networks."""
        self.actor, self.critic = mlp(num_features, num_actions), mlp(num_features, 1)

    def act(self, obs: torch.Tensor, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions `[n]` for observations `[n, ...]`: sampled when exploring, else the most probable ones."""
        return self.choose(obs, state, ctx)

    def choose(self, features: torch.Tensor, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions by features `[n, f]`; every row stores the log probability and the value."""
        log_probs = self.actor(features).log_softmax(1)
        samples = torch.multinomial(log_probs.exp(), 1, generator=ctx.generator)[:, 0]
        action = samples if ctx.explore else log_probs.argmax(1)
        log_prob = log_probs.gather(1, action[:, None])[:, 0]
        return trieye.Act(action, {"log_prob": log_prob, "value": self.critic(features)[:, 0]}, state)


class PPO(trieye.TrainEngine[Config, PPOConfig, ActorCritic]):
    """The algorithm; modules, optimizers and counters among its attributes are saved and restored."""

    def setup(self, config: Config) -> None:
        """Create the optimizer; `self.policy` exists."""
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.agent.lr(0), fused=True)

    def step(self) -> dict[str, float]:
        """Collect `rollout_steps` of each environment, and learn from them."""
        rows = self.collect()
        last_value = self.policy.critic(rows.after)[:, 0].detach()
        estimates = trieye.gae(rows, last_value, gamma=self.agent.gamma, lam=self.agent.gae_lambda)
        trieye.set_lr(self.optimizer, self.agent.lr(self.schedule_step))
        batches = self.minibatches(rows, epochs=self.agent.epochs, **estimates._asdict())
        return trieye.mean(self.train_step(batch) for batch in batches)

    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        """Make one update."""
        return self.update(batch["obs"], batch)

    def update(self, features: torch.Tensor, batch: Any) -> dict[str, torch.Tensor]:
        """Update by features `[n, f]` and the columns of their rows."""
        log_probs = self.policy.actor(features).log_softmax(1)
        ratio = (log_probs.gather(1, batch["action"][:, None])[:, 0] - batch["log_prob"]).exp()
        advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
        clipped = ratio.clamp(1 - self.agent.clip_range, 1 + self.agent.clip_range)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        value_loss = (self.policy.critic(features)[:, 0] - batch["returns"]).square().mean()
        self.optimizer.zero_grad()
        (policy_loss + 0.5 * value_loss).backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self.optimizer.step()
        return {"loss/policy": policy_loss, "loss/value": value_loss}


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float | None:
    """Train, and return the best evaluation return, which sweeps rank."""
    return trieye.train(cfg)


if __name__ == "__main__":
    train()
