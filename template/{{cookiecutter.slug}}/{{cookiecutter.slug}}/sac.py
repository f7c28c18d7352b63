"""Soft actor-critic (Haarnoja et al. 2018), with the learned temperature of "Algorithms and Applications".

The weight of the entropy is named `ent_coef`, as in PPO; the papers name it alpha.
"""

import copy
import math
from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import SACConfig, TrainConfig
from {{ cookiecutter.slug }}.networks import Critics, Encoder, mlp


class GaussianActor(trieye.Policy[TrainConfig, SACConfig]):
    """Actor: a Gaussian squashed into the action bounds by tanh; explorers receive the actor without the critics."""

    low: torch.Tensor
    high: torch.Tensor
    center: torch.Tensor
    scale: torch.Tensor

    def __init__(self, config: TrainConfig, spaces: trieye.Spaces) -> None:
        """Create the network; it depends only on the config and the spaces."""
        super().__init__(config, spaces)
        low, high = torch.tensor(spaces.action.low), torch.tensor(spaces.action.high)
        # not saved: a fork may have other bounds
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.register_buffer("center", (low + high) / 2, persistent=False)
        self.register_buffer("scale", (high - low) / 2, persistent=False)
        self.size = math.prod(spaces.action.shape)
        self.encoder = Encoder(spaces.observation, self.normalizer)
        self.head = mlp([self.encoder.size, *self.agent.hidden_sizes, 2 * self.size])

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and log standard deviation before the tanh, `[n, size]` each."""
        mean, log_std = self.head(self.encoder(obs)).chunk(2, dim=1)
        return mean, log_std.clamp(-20, 2)  # bounds of the authors' code

    def draw(self, obs: Any, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return differentiable actions in [-1, 1], `[n, size]`, and their log probabilities, `[n]`."""
        mean, log_std = (part.float() for part in self(obs))
        noise = torch.empty_like(mean).normal_(generator=generator)
        pre_tanh = mean + log_std.exp() * noise
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which does not overflow (appendix C of the paper)
        log_jacobian = 2 * (math.log(2) - pre_tanh - nn.functional.softplus(-2 * pre_tanh))
        log_prob = -(0.5 * noise.square() + log_std + log_jacobian).sum(1) - 0.5 * math.log(2 * math.pi) * self.size
        return pre_tanh.tanh(), log_prob

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions: uniform before `agent.learning_starts`, then sampled; the mean in evaluations."""
        if not ctx.explore:
            action = self(obs)[0].tanh()
        elif ctx.env_steps < self.agent.learning_starts:
            action = torch.empty_like(self(obs)[0]).uniform_(-1, 1, generator=ctx.generator)
        else:
            action = self.draw(obs, ctx.generator)[0]
        scaled = self.center + self.scale * action.reshape(-1, *self.center.shape)
        return trieye.Act(scaled.clamp(self.low, self.high))  # rounding may exceed the bounds

    def unscaled(self, action: torch.Tensor) -> torch.Tensor:
        """Scale the environment's actions to [-1, 1], `[n, size]`; to 0 where the bounds are equal."""
        return ((action - self.center) / self.scale.clamp(min=1e-8)).reshape(-1, self.size)


class SAC(trieye.TrainEngine[TrainConfig, SACConfig, GaussianActor]):
    """SAC engine: each step collects rows and makes the updates that are due."""

    def setup(self, config: TrainConfig) -> None:
        """Create critics, temperature and optimizers; `self.policy`, `self.replay` and `self.device` already exist."""
        agent = self.agent
        space, normalizer = self.policy.spaces.observation, self.policy.normalizer
        self.critics = Critics(space, normalizer, self.policy.size, agent.hidden_sizes).to(self.device)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        log_ent_coef = math.log(1.0 if agent.ent_coef is None else agent.ent_coef)
        self._log_ent_coef = nn.Parameter(torch.tensor(log_ent_coef, device=self.device))
        if agent.ent_coef is None:  # a learned one is saved; a name with _ is not, and has the value of the config
            self.log_ent_coef = self._log_ent_coef
        self.target_entropy = -float(self.policy.size) if agent.target_entropy is None else agent.target_entropy
        # Adam is element-wise, so actor and temperature can share one; fused: one kernel for all weights
        self.actor_weights = [*self.policy.parameters(), *([self._log_ent_coef] if agent.ent_coef is None else [])]
        self.actor_optimizer = torch.optim.Adam(self.actor_weights, lr=agent.lr(0), fused=True)
        self.critic_weights, self.target_weights = list(self.critics.parameters()), list(self.target.parameters())
        self.critic_optimizer = torch.optim.Adam(self.critic_weights, lr=agent.lr(0), fused=True)
        self.is_prioritized = config.replay.kind == "prioritized"

    def step(self) -> dict[str, float]:
        """Collect, update, and return the mean metrics of the updates."""
        self.replay.extend(self.collect())
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            trieye.set_lr(optimizer, self.agent.lr(self.schedule_step))
        return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    def train_step(self, batch: trieye.Minibatch) -> dict[str, torch.Tensor]:
        """Make one update of critics, actor, temperature and target critics."""
        policy, obs, next_obs = self.policy, batch.obs, batch.next_obs
        ent_coef = self._log_ent_coef.detach().exp()

        with torch.no_grad(), self.autocast():
            next_action, next_log_prob = policy.draw(next_obs, self.generator)
            next_value = torch.min(*self.target(next_obs, next_action)) - ent_coef * next_log_prob
            # discount = gamma^rows of the window, 0 if the episode terminated; a truncated episode is bootstrapped
            target = batch.reward + batch.discount * next_value
        with self.autocast():
            first, second = self.critics(obs, policy.unscaled(batch.action))
        errors = (first - target, second - target)
        critic_loss = sum((0.5 * error.square() * batch.weights).mean() for error in errors)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()

        with self.autocast():
            action, log_prob = policy.draw(obs, self.generator)
            value = torch.min(*self.critics(obs, action))
        actor_loss = (ent_coef * log_prob - value).mean()
        # the temperature rises while the entropy is below the target; its logarithm is learned, as in the authors' code
        ent_coef_loss = -self._log_ent_coef * (log_prob.detach().mean() + self.target_entropy)
        self.actor_optimizer.zero_grad()
        (actor_loss + ent_coef_loss).backward(inputs=self.actor_weights)  # the critics receive no gradient
        self.actor_optimizer.step()

        with torch.no_grad():
            for slow, fast in zip(self.target_weights, self.critic_weights, strict=True):
                slow.lerp_(fast, self.agent.tau)
        if self.is_prioritized:
            self.replay.update_priorities(batch.ids, torch.max(*map(torch.abs, errors)).detach().cpu().numpy())
        metrics = {"loss/critic": critic_loss, "loss/actor": actor_loss, "q/mean": value.mean(), "ent_coef": ent_coef}
        return {name: value.detach() for name, value in (metrics | {"policy/entropy": -log_prob.mean()}).items()}
