"""PPO with a recurrent policy: a GRU remembers what single observations do not contain.

A minibatch contains whole rollouts of some environments, so set `env.num=8` or more; gradients flow back to their first
steps (the details of LSTM in "The 37 Implementation Details of PPO", Huang et al. 2022).
"""

from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import RecurrentPPOConfig
from {{ cookiecutter.slug }}.ppo import PPO, ActorCritic, Batch


class RecurrentActorCritic(ActorCritic):
    """Actor and critic that see the memory instead of the observation."""

    agent: RecurrentPPOConfig

    def make_heads(self, num_features: int) -> None:
        """Create the memory, and actor and critic on top of it."""
        super().make_heads(self.agent.memory_size)
        self.memory = nn.GRUCell(num_features, self.agent.memory_size)
        for name, weights in self.memory.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(weights)
            else:
                nn.init.zeros_(weights)

    def initial_state(self, n: int) -> torch.Tensor:
        """Return an empty memory, `[n, memory_size]`, at the start of `n` episodes."""
        return torch.zeros(n, self.agent.memory_size, device=self.device)

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Update the memory and select actions; each row also stores the value."""
        state = self.memory(self.features(obs), state)
        act = self.choose(state, ctx)
        return trieye.Act(act.action, {**act.extras, "value": self.critic(state)[:, 0]}, state)

    def unroll(self, obs: Any, state: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Return the memory after each step of sequences `[n, t, ...]`; an episode begins after an invalid row."""
        features, states = self.features(obs), []
        for t in range(features.shape[1]):
            state = self.memory(features[:, t], state)
            states.append(state)
            state = torch.where(valid[:, t, None], state, 0.0)
        return torch.stack(states, dim=1)


class RecurrentPPO(PPO, policy=RecurrentActorCritic):
    """PPO engine that learns from sequences."""

    policy: RecurrentActorCritic

    def step(self) -> dict[str, float]:
        """Collect, update, and return the mean metrics of the updates."""
        agent, rows = self.agent, self.collect()
        with torch.no_grad():
            state = self.policy.memory(self.policy.features(rows.after), rows.last_state)
            last_value = self.policy.critic(state)[:, 0]
        advantages, returns = trieye.gae(rows, last_value, gamma=agent.gamma, lam=agent.gae_lambda)
        rows.extras |= {"advantages": advantages, "returns": returns}
        trieye.set_lr(self.optimizer, agent.lr(self.schedule_step))
        batches = self.minibatches(rows.sequences(), Batch, epochs=agent.epochs)
        return trieye.mean(self.train_step(batch) for batch in batches if batch["valid"].any())

    def train_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Make one gradient update by sequences `[n, t, ...]`."""
        valid = batch["valid"]  # False where the environment was reset instead of stepped
        with self.autocast():
            states = self.policy.unroll(batch.obs, batch["state"], valid)
        names = ("sample", "log_prob", "value", "advantages", "returns")
        return self.update(states[valid], Batch({name: batch[name][valid] for name in names}))
