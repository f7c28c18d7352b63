"""Twin delayed DDPG (TD3, Fujimoto et al. 2018)."""

import copy
import math
from typing import Any

import torch
import trieye

from {{ cookiecutter.slug }}.config import TD3Config, TrainConfig
from {{ cookiecutter.slug }}.networks import Critics, Encoder, mlp


class DeterministicActor(trieye.Policy[TrainConfig, TD3Config]):
    """Actor: actions squashed into their bounds by tanh; explorers receive the actor without the critics."""

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
        self.head = mlp([self.encoder.size, *self.agent.hidden_sizes, self.size])

    def forward(self, obs: Any) -> torch.Tensor:
        """Return actions in [-1, 1], `[n, size]`."""
        action: torch.Tensor = self.head(self.encoder(obs)).float().tanh()
        return action

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions: uniform before `agent.learning_starts`, then with noise; without noise in evaluations."""
        action = self(obs)
        if ctx.explore and ctx.env_steps < self.agent.learning_starts:
            action = torch.empty_like(action).uniform_(-1, 1, generator=ctx.generator)
        elif ctx.explore:
            action = noisy(action, self.agent.exploration_noise, generator=ctx.generator)
        scaled = self.center + self.scale * action.reshape(-1, *self.center.shape)
        return trieye.Act(scaled.clamp(self.low, self.high))  # rounding may exceed the bounds

    def unscaled(self, action: torch.Tensor) -> torch.Tensor:
        """Scale the environment's actions to [-1, 1], `[n, size]`; to 0 where the bounds are equal."""
        return ((action - self.center) / self.scale.clamp(min=1e-8)).reshape(-1, self.size)


def noisy(action: torch.Tensor, std: float, *, generator: torch.Generator, clip: float | None = None) -> torch.Tensor:
    """Return actions in [-1, 1] with Gaussian noise, which is at most `clip`."""
    noise = torch.empty_like(action).normal_(std=std, generator=generator)
    return (action + (noise if clip is None else noise.clamp(-clip, clip))).clamp(-1, 1)


class TD3(trieye.TrainEngine[TrainConfig, TD3Config, DeterministicActor]):
    """TD3 engine: each step collects rows and makes the updates that are due."""

    def setup(self, config: TrainConfig) -> None:
        """Create critics, target networks and optimizers; `self.policy`, `self.replay` and `self.device` exist."""
        space, normalizer = self.policy.spaces.observation, self.policy.normalizer
        self.critics = Critics(space, normalizer, self.policy.size, self.agent.hidden_sizes).to(self.device)
        self.target_actor = copy.deepcopy(self.policy).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.actor_weights = list(self.policy.parameters())
        # fused: one kernel for all weights
        self.actor_optimizer = torch.optim.Adam(self.actor_weights, lr=self.agent.lr(0), fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=self.agent.lr(0), fused=True)
        self.weights = [*self.actor_weights, *self.critics.parameters()]
        self.target_weights = [*self.target_actor.parameters(), *self.target_critics.parameters()]
        self.is_prioritized = config.replay.kind == "prioritized"

    def step(self) -> dict[str, float]:
        """Collect, update, and return the mean metrics of the updates."""
        self.replay.extend(self.collect())
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            trieye.set_lr(optimizer, self.agent.lr(self.schedule_step))
        return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    def train_step(self, batch: trieye.Minibatch) -> dict[str, torch.Tensor]:
        """Update the critics, and with every `agent.policy_delay`-th update the actor and the target networks."""
        agent = self.agent
        with torch.no_grad(), self.autocast():
            # target policy smoothing: similar actions have similar values (section 5.3 of the paper)
            next_action = self.target_actor(batch.next_obs)
            next_action = noisy(next_action, agent.target_noise, generator=self.generator, clip=agent.target_noise_clip)
            next_value = torch.min(*self.target_critics(batch.next_obs, next_action))
            # discount = gamma^rows of the window, 0 if the episode terminated; a truncated episode is bootstrapped
            target = batch.reward + batch.discount * next_value
        with self.autocast():
            first, second = self.critics(batch.obs, self.policy.unscaled(batch.action))
        errors = (first - target, second - target)
        critic_loss = sum((error.square() * batch.weights).mean() for error in errors)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        if self.is_prioritized:
            self.replay.update_priorities(batch.ids, torch.max(*map(torch.abs, errors)).detach().cpu().numpy())
        metrics = {"loss/critic": critic_loss.detach(), "q/mean": first.detach().mean()}
        if self.updates % agent.policy_delay == 0:
            metrics["loss/actor"] = self.update_actor(batch)
        return metrics

    def update_actor(self, batch: trieye.Minibatch) -> torch.Tensor:
        """Update the actor by the first critic, then the target networks, and return the loss."""
        with self.autocast():
            value = self.critics.first_value(batch.obs, self.policy(batch.obs))
        loss: torch.Tensor = -value.mean()
        self.actor_optimizer.zero_grad()
        loss.backward(inputs=self.actor_weights)  # the critics receive no gradient
        self.actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(self.target_weights, self.weights, strict=True):
                slow.lerp_(fast, self.agent.tau)
        return loss.detach()
