"""PPO (Schulman et al. 2017) for discrete and continuous actions, in one file: it is yours to change.

What the paper does not tell has the numbers of "The 37 implementation details of PPO" (Huang et al. 2022).
"""

import math
from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import PPOConfig, TrainConfig
from {{ cookiecutter.slug }}.networks import Encoder, mlp


class Batch(trieye.Minibatch):
    """What a minibatch holds besides the columns of a step."""

    draw: torch.Tensor
    log_prob: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class ActorCritic(trieye.Policy[TrainConfig, PPOConfig]):
    """Draws actions while it explores, and takes the likeliest ones otherwise; `value` rates observations."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, config: TrainConfig, spaces: trieye.Spaces) -> None:
        """Make the networks from the config and the spaces alone."""
        super().__init__(config, spaces)
        self.is_discrete, self.shape = hasattr(spaces.action, "n"), spaces.action.shape
        num_outputs = int(spaces.action.n) if self.is_discrete else math.prod(self.shape)
        self.encoder = Encoder(spaces.observation, self.normalizer)
        sizes = [self.encoder.size, *self.agent.hidden_sizes]
        # detail 13: actor and critic are networks of their own; they share convolutions if there are any
        self.actor, self.critic = mlp([*sizes, num_outputs], nn.Tanh), mlp([*sizes, 1], nn.Tanh)
        for module in self.modules():  # detail 2: orthogonal weights, and biases of 0
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                nn.init.zeros_(module.bias)
        # with 0.01, all actions are about equally likely at first
        for network, gain in ((self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(network[-1].get_parameter("weight"), gain)
        if not self.is_discrete:
            # continuous detail 2: the noise does not depend on the observation
            self.log_std = nn.Parameter(torch.full((num_outputs,), self.agent.log_std_init))
            self.register_buffer("low", torch.as_tensor(spaces.action.low))
            self.register_buffer("high", torch.as_tensor(spaces.action.high))

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Choose actions; while it explores, `draw` and its log probability are kept beside each row."""
        output = self.actor(self.features(obs))
        if not ctx.explore:
            return trieye.Act(self.as_action(output.argmax(1) if self.is_discrete else output))
        noise = torch.empty_like(output)
        if self.is_discrete:  # the largest of logit + Gumbel noise is a draw from the softmax
            draw = (output - noise.exponential_(generator=ctx.generator).log_()).argmax(1)
        else:
            draw = output + self.log_std.exp() * noise.normal_(generator=ctx.generator)
        return trieye.Act(self.as_action(draw), {"draw": draw, "log_prob": self.log_prob(output, draw)})

    def as_action(self, draw: torch.Tensor) -> torch.Tensor:
        """Return what the environment takes; continuous detail 4: clipped there only, learned from as drawn."""
        return draw if self.is_discrete else draw.reshape(-1, *self.shape).clamp(self.low, self.high)

    def features(self, obs: Any) -> torch.Tensor:
        """Return what both networks see, `[..., size]`."""
        features: torch.Tensor = self.encoder(obs)
        return features

    def value(self, obs: Any) -> torch.Tensor:
        """Return the values of observations, `[...]`."""
        values: torch.Tensor = self.critic(self.features(obs))
        return values[..., 0]

    def log_prob(self, output: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
        """Return the log probability of each draw, `[n]`, from the output of the actor."""
        if self.is_discrete:
            return output.log_softmax(1).gather(1, draw[:, None])[:, 0]
        errors = (draw - output) * (-self.log_std).exp()
        return -(0.5 * errors.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(1)

    def entropy(self, output: torch.Tensor) -> torch.Tensor:
        """Return the mean entropy of what is drawn from."""
        if self.is_discrete:
            chances = output.log_softmax(1)
            return -(chances.exp() * chances).sum(1).mean()
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


class PPO(trieye.TrainEngine[TrainConfig, PPOConfig, ActorCritic]):
    """A step collects `agent.rollout_steps` of each environment, and learns from them `agent.epochs` times."""

    def setup(self, config: TrainConfig) -> None:
        """Make what learns; `self.policy` and `self.device` are there."""
        # detail 3: an epsilon of 1e-5; fused: one kernel for all weights
        self.weights = list(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self.weights, lr=self.agent.lr(0), eps=1e-5, fused=True)

    def step(self) -> dict[str, float]:
        """Collect, learn, and return the means of what the updates said."""
        agent, rows = self.agent, self.collect()
        with torch.no_grad():  # all at once: a value for each row while collecting would take longer
            rows.extras["value"] = self.policy.value(rows["obs"])
            last_value = self.policy.value(rows.after)
        advantages, returns = trieye.gae(rows, last_value, gamma=agent.gamma, lam=agent.gae_lambda)  # detail 5
        trieye.set_lr(self.optimizer, agent.lr(self.schedule_step))  # detail 4: annealed, if it is a schedule
        batches = self.minibatches(rows, Batch, epochs=agent.epochs, advantages=advantages, returns=returns)  # detail 6
        return trieye.mean(self.train_step(batch) for batch in batches)

    def train_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Make one update."""
        advantages = batch.advantages
        if len(advantages) > 1:  # detail 7: in each minibatch; a single row has no standard deviation
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with self.autocast():
            features = self.policy.features(batch.obs)
            output, value = self.policy.actor(features).float(), self.policy.critic(features)[:, 0].float()
        log_ratio = self.policy.log_prob(output, batch.draw) - batch.log_prob
        ratio = log_ratio.exp()
        clip_range = self.agent.clip_range(self.schedule_step)
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()  # detail 8, equation 7
        # detail 9, a clipped value loss, is left out: it does not help (Andrychowicz et al. 2021)
        value_loss = (value - batch.returns).square().mean()
        with torch.set_grad_enabled(self.agent.ent_coef > 0):
            entropy = self.policy.entropy(output)
        loss = policy_loss + self.agent.vf_coef * value_loss - self.agent.ent_coef * entropy  # detail 10
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.agent.max_grad_norm)  # detail 11
        self.optimizer.step()
        with torch.no_grad():  # detail 12: what tells whether steps are too large (Schulman 2020, estimator k3)
            kl, is_clipped = (ratio - 1 - log_ratio).mean(), (ratio != clipped).float().mean()
        found = {"loss/policy": policy_loss, "loss/value": value_loss, "policy/entropy": entropy}
        return {
            **{name: value.detach() for name, value in found.items()},
            "policy/kl": kl,
            "policy/clipped": is_clipped,
        }
