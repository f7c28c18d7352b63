"""Soft actor-critic (Haarnoja et al. 2018, with the learned temperature of "Algorithms and applications"): it is yours.

The weight of the entropy is called `ent_coef`, as in PPO; the papers call it alpha.
"""

import copy
import math
from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import SACConfig, TrainConfig
from {{ cookiecutter.slug }}.networks import Encoder, mlp


class GaussianActor(trieye.Policy[TrainConfig, SACConfig]):
    """Draws from a Gaussian that a tanh squashes into the bounds; what is published is the actor alone."""

    center: torch.Tensor
    scale: torch.Tensor

    def __init__(self, config: TrainConfig, spaces: trieye.Spaces) -> None:
        """Make the network from the config and the spaces alone."""
        super().__init__(config, spaces)
        low, high = torch.as_tensor(spaces.action.low), torch.as_tensor(spaces.action.high)
        self.register_buffer("center", (low + high) / 2)
        self.register_buffer("scale", (high - low) / 2)
        self.size = math.prod(spaces.action.shape)
        self.encoder = Encoder(spaces.observation, self.normalizer)
        self.head = mlp([self.encoder.size, *self.agent.hidden_sizes, 2 * self.size])

    def forward(self, obs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the log of the standard deviation before the tanh, `[n, size]` each."""
        mean, log_std = self.head(self.encoder(obs)).chunk(2, dim=1)
        return mean, log_std.clamp(-20, 2)  # bounds of the authors' code

    def draw(self, obs: Any, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions between -1 and 1, `[n, size]`, through which gradients flow, and their log probabilities."""
        mean, log_std = (part.float() for part in self(obs))
        noise = torch.empty_like(mean).normal_(generator=generator)
        before = mean + log_std.exp() * noise
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which does not overflow (appendix C of the paper)
        squashed = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
        log_prob = -(0.5 * noise.square() + log_std + squashed).sum(1) - 0.5 * math.log(2 * math.pi) * self.size
        return before.tanh(), log_prob

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Choose actions: any at random until learning starts (a known detail), then drawn; the mean in evaluations."""
        if not ctx.explore:
            action = self(obs)[0].tanh()
        elif ctx.env_steps < self.agent.learning_starts:
            action = torch.empty_like(self(obs)[0]).uniform_(-1, 1, generator=ctx.generator)
        else:
            action = self.draw(obs, ctx.generator)[0]
        return trieye.Act(self.center + self.scale * action.reshape(-1, *self.center.shape))

    def unscaled(self, action: torch.Tensor) -> torch.Tensor:
        """Return actions of the environment as numbers between -1 and 1, `[n, size]`."""
        return ((action - self.center) / self.scale).flatten(1)


class Critics(nn.Module):
    """Two networks that rate actions; the lower of two ratings counts, as errors upwards add up (Fujimoto et al. 2018).

    Args:
        policy: Whose observations and actions they rate.
        hidden_sizes: Sizes of hidden layers.
    """

    def __init__(self, policy: GaussianActor, hidden_sizes: list[int]) -> None:
        """Make both networks."""
        super().__init__()
        self.encoder = Encoder(policy.spaces.observation, policy.normalizer)
        sizes = [self.encoder.size + policy.size, *hidden_sizes, 1]
        self.first, self.second = mlp(sizes), mlp(sizes)

    def forward(self, obs: Any, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both ratings, `[n]` each."""
        both = torch.cat((self.encoder(obs), action), dim=1)
        return self.first(both)[:, 0].float(), self.second(both)[:, 0].float()


class SAC(trieye.TrainEngine[TrainConfig, SACConfig, GaussianActor]):
    """A step collects a few rows, then makes the updates that are due."""

    def setup(self, config: TrainConfig) -> None:
        """Make what learns; `self.policy`, `self.replay` and `self.device` are there."""
        agent = self.agent
        self.critics = Critics(self.policy, agent.hidden_sizes).to(self.device)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        first = math.log(1.0 if agent.ent_coef is None else agent.ent_coef)
        self.log_ent_coef = nn.Parameter(torch.tensor(first, device=self.device))
        self.target_entropy = -float(self.policy.size) if agent.target_entropy is None else agent.target_entropy
        # Adam treats each weight by itself, so that actor and temperature can share one; fused: one kernel for all
        self.acting = [*self.policy.parameters(), *([self.log_ent_coef] if agent.ent_coef is None else [])]
        self.actor_optimizer = torch.optim.Adam(self.acting, lr=agent.lr(0), fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=agent.lr(0), fused=True)
        self.is_prioritized = config.replay.kind == "prioritized"

    def step(self) -> dict[str, float]:
        """Collect, learn, and return the means of what the updates said."""
        self.replay.extend(self.collect())
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            trieye.set_lr(optimizer, self.agent.lr(self.schedule_step))
        return trieye.mean(self.train_step(batch) for batch in self.due_batches())

    def train_step(self, batch: trieye.Minibatch) -> dict[str, torch.Tensor]:
        """Make one update of critics, actor, temperature and target."""
        policy, obs, next_obs = self.policy, batch.obs, batch.next_obs
        ent_coef = self.log_ent_coef.detach().exp()

        with torch.no_grad(), self.autocast():
            next_action, next_log_prob = policy.draw(next_obs, self.generator)
            next_value = torch.min(*self.target(next_obs, next_action)) - ent_coef * next_log_prob
            # the discount is gamma^replay.n_step, and 0 where the episode terminated; not where it was merely truncated
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
        # the temperature rises while the entropy is below the wanted one; its log is learned, as in the authors' code
        ent_coef_loss = -self.log_ent_coef * (log_prob.detach().mean() + self.target_entropy)
        self.actor_optimizer.zero_grad()
        (actor_loss + ent_coef_loss).backward(inputs=self.acting)  # and not through the weights of the critics
        self.actor_optimizer.step()

        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, self.agent.tau)
        if self.is_prioritized:
            self.replay.update_priorities(batch.ids, torch.max(*map(torch.abs, errors)).detach().cpu().numpy())
        found = {"loss/critic": critic_loss, "loss/actor": actor_loss, "q/mean": value.mean(), "ent_coef": ent_coef}
        return {**{name: value.detach() for name, value in found.items()}, "policy/entropy": -log_prob.detach().mean()}
