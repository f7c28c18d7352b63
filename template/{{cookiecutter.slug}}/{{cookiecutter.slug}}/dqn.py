"""Double DQN (Mnih et al. 2015, van Hasselt et al. 2016)."""

import copy
from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import DQNConfig, TrainConfig
from {{ cookiecutter.slug }}.networks import Encoder, mlp


class QPolicy(trieye.Policy[TrainConfig, DQNConfig]):
    """Select the action with the highest value, or a random one with probability epsilon."""

    def __init__(self, config: TrainConfig, spaces: trieye.Spaces) -> None:
        """Create the network; it depends only on the config and the spaces."""
        super().__init__(config, spaces)
        self.num_actions = int(spaces.action.n)
        self.encoder = Encoder(spaces.observation, self.normalizer)
        self.head = mlp([self.encoder.size, *self.agent.hidden_sizes, self.num_actions])

    def forward(self, obs: Any) -> torch.Tensor:
        """Return the action values, `[n, actions]`."""
        values: torch.Tensor = self.head(self.encoder(obs))
        return values

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select epsilon-greedy actions; epsilon is scheduled over environment steps, and constant in evaluations."""
        action = self(obs).argmax(1)
        epsilon = self.agent.epsilon(ctx.env_steps) if ctx.explore else self.agent.eval_epsilon
        if ctx.explore or epsilon > 0:
            samples = torch.rand(action.shape, generator=ctx.generator, device=action.device)
            explores = samples < epsilon
            if explores.any():  # rare once epsilon is small
                random = torch.randint(self.num_actions, action.shape, generator=ctx.generator, device=action.device)
                action = torch.where(explores, random, action)
        return trieye.Act(action)


class DQN(trieye.TrainEngine[TrainConfig, DQNConfig, QPolicy]):
    """Double DQN engine: each step collects rows and makes the updates that are due."""

    def setup(self, config: TrainConfig) -> None:
        """Create target network and optimizer; `self.policy`, `self.replay` and `self.device` already exist."""
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        # fused: one kernel for all weights; on the CPU, Adam takes about half of an update of a small network
        self.weights = list(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self.weights, lr=self.agent.lr(0), fused=True)
        self.is_prioritized = config.replay.kind == "prioritized"

    def step(self) -> dict[str, float]:
        """Collect, update, and return the mean metrics of the updates."""
        self.replay.extend(self.collect())
        trieye.set_lr(self.optimizer, self.agent.lr(self.schedule_step))
        metrics = trieye.mean(self.train_step(batch) for batch in self.due_batches())
        return metrics | {"epsilon": self.agent.epsilon(self.schedule_step)}

    def train_step(self, batch: trieye.Minibatch) -> dict[str, torch.Tensor]:
        """Make one update; copy the policy to the target network every `agent.target_update_interval` updates."""
        with self.autocast():
            with torch.no_grad():
                next_values = self.target(batch.next_obs)
                if self.agent.double:  # the online network selects, the target evaluates (van Hasselt et al. 2016)
                    greedy = self.policy(batch.next_obs).argmax(1, keepdim=True)
                    next_value = next_values.gather(1, greedy)[:, 0]
                else:
                    next_value = next_values.amax(1)
            value = self.policy(batch.obs).gather(1, batch.action[:, None])[:, 0].float()
        # discount = gamma^rows of the window, 0 if the episode terminated; a truncated episode is bootstrapped
        target = batch.reward + batch.discount * next_value
        # Huber loss: its gradient clips TD errors to [-1, 1] (Mnih et al. 2015); weights correct prioritized sampling
        loss = (nn.functional.huber_loss(value, target, reduction="none") * batch.weights).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.agent.max_grad_norm)
        self.optimizer.step()
        if self.is_prioritized:
            self.replay.update_priorities(batch.ids, (value.detach() - target).abs().cpu().numpy())
        if self.updates % self.agent.target_update_interval == 0:
            self.target.load_state_dict(self.policy.state_dict())
        return {"loss/td": loss.detach(), "q/mean": value.detach().mean()}
