"""Offline reinforcement learning: conservative Q-learning (Kumar et al. 2020) from stored rows, without collecting.

    python examples/ppo.py run_name=first                                                    # an agent to collect with,
    python examples/ppo.py mode=explore run_name=first loop.env_steps=20_000 explore.output=$PWD/rows.npz    # its rows,
    python examples/offline.py mode=train data=rows.npz run_name=offline                              # and a training from them
    python examples/offline.py mode=train data=minari:ID env.id=...            # or from a dataset of Minari: pip install minari
"""

import copy
from typing import Any, Literal

import torch
import trieye
from ppo import mlp
from pydantic import Field
from torch import nn
from trieye.config import LoopConfig


class CQLConfig(trieye.ReplayAgentConfig):
    """Hyperparameters."""

    kind: Literal["cql_in_one_file"] = "cql_in_one_file"
    actions = ("discrete",)
    engine: str = "offline:CQL"
    lr: float = Field(default=1e-3, gt=0, description="Learning rate of Adam.")
    gamma: float = Field(default=0.98, ge=0, le=1, description="Discount factor.")
    conservatism: float = Field(default=1.0, ge=0, description="Weight of the penalty on actions that no row has.")
    target_update_interval: int = Field(default=200, ge=1, description="Updates between copies to the target network.")
    learning_starts: int = Field(default=1, ge=1, description="Rows before the first update.")


class Config(trieye.TrainingConfig):
    """The config of this program, besides all keys of trieye."""

    agent: CQLConfig = CQLConfig(batch_size=128)
    env: trieye.EnvConfig = trieye.EnvConfig(id="CartPole-v1", eval_episodes=20)
    loop: LoopConfig = LoopConfig(axis="updates", steps=5000, evaluate_every_steps=1000)


class QPolicy(trieye.Policy[Config, CQLConfig]):
    """Select the action with the highest value."""

    def __init__(self, config: Config, spaces: trieye.Spaces) -> None:
        super().__init__(config, spaces)
        self.q = mlp(spaces.observation.shape[0], int(spaces.action.n))

    def act(self, obs: torch.Tensor, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions `[n]` for observations `[n, ...]`."""
        return trieye.Act(self.q(obs).argmax(1))


class CQL(trieye.TrainEngine[Config, CQLConfig, QPolicy]):
    """Q-learning whose values of unseen actions are pushed down."""

    def setup(self, config: Config) -> None:
        """Create target network and optimizer; `self.policy` exists."""
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=self.agent.lr, fused=True)

    def step(self) -> dict[str, float]:
        """Make the updates that are due; the batches come from `data`."""
        self.collect()  # returns no rows without an environment to learn in
        return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    def train_step(self, batch: trieye.Minibatch) -> dict[str, torch.Tensor]:
        """Make one update."""
        with torch.no_grad():
            best = self.policy.q(batch.next_obs).argmax(1, keepdim=True)
            target = batch.reward + batch.discount * self.target.q(batch.next_obs).gather(1, best)[:, 0]
        values = self.policy.q(batch.obs)
        value = values.gather(1, batch.action[:, None])[:, 0]
        td_loss = nn.functional.huber_loss(value, target)
        penalty = (values.logsumexp(1) - value).mean()
        self.optimizer.zero_grad()
        (td_loss + self.agent.conservatism * penalty).backward()
        self.optimizer.step()
        if self.updates % self.agent.target_update_interval == 0:
            self.target.load_state_dict(self.policy.state_dict())
        return {"loss/td": td_loss, "loss/penalty": penalty, "q/mean": value.mean()}


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float | None:
    """Train, and return the best evaluation return."""
    return trieye.train(cfg)


if __name__ == "__main__":
    train()
