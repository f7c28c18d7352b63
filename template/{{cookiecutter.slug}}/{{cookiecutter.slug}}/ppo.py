"""PPO (Schulman et al. 2017) for discrete and continuous actions.

Comments number the details as "The 37 Implementation Details of PPO" (Huang et al. 2022) does.
"""

import math
from typing import Any

import torch
import trieye
from torch import nn

from {{ cookiecutter.slug }}.config import PPOBaseConfig, TrainConfig
from {{ cookiecutter.slug }}.networks import Encoder, mlp


class Batch(trieye.Minibatch):
    """Columns of a minibatch besides the environment steps."""

    sample: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class ActorCritic(trieye.Policy[TrainConfig, PPOBaseConfig]):
    """Actor and critic: sample actions during exploration, otherwise select the most likely ones."""

    low: torch.Tensor
    high: torch.Tensor
    origin: torch.Tensor

    def __init__(self, config: TrainConfig, spaces: trieye.Spaces) -> None:
        """Create the networks; they depend only on the config and the spaces."""
        super().__init__(config, spaces)
        self.is_discrete, self.shape = hasattr(spaces.action, "n"), spaces.action.shape
        self.num_outputs = int(spaces.action.n) if self.is_discrete else math.prod(self.shape)
        self.encoder = Encoder(spaces.observation, self.normalizer)
        shared = [self.encoder.size, *self.agent.shared_sizes]
        self.shared = nn.Sequential(mlp(shared), nn.ReLU()) if self.agent.shared_sizes else nn.Identity()
        self.make_heads(shared[-1])

    def make_heads(self, num_features: int) -> None:
        """Create actor and critic for features of this size, and initialize all weights."""
        sizes = [num_features, *self.agent.hidden_sizes]
        # detail 13: separate actor and critic networks; they share the encoder, and so its convolutions
        self.actor, self.critic = mlp([*sizes, self.num_outputs], nn.Tanh), mlp([*sizes, 1], nn.Tanh)
        for module in self.modules():  # detail 2: orthogonal weights, zero biases
            if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
                nn.init.orthogonal_(module.weight, math.sqrt(2))
                nn.init.zeros_(module.bias)
        # with a gain of 0.01, all actions are initially about equally likely
        for network, gain in ((self.actor, 0.01), (self.critic, 1.0)):
            nn.init.orthogonal_(network[-1].get_parameter("weight"), gain)
        if not self.is_discrete:
            # continuous detail 2: state-independent standard deviation
            self.log_std = nn.Parameter(torch.full((self.num_outputs,), self.agent.log_std_init))
            low, high = torch.tensor(self.spaces.action.low), torch.tensor(self.spaces.action.high)
            # not saved: a fork may have other bounds
            self.register_buffer("low", low, persistent=False)
            self.register_buffer("high", high, persistent=False)
            # the action nearest to 0: around 0 itself, each sample would be clipped to 10 with the bounds 10 and 20
            self.register_buffer("origin", torch.zeros_like(low).clamp(low, high), persistent=False)

    def act(self, obs: Any, state: Any, ctx: trieye.Context) -> trieye.Act:
        """Select actions; see `choose`."""
        return self.choose(self.features(obs), ctx)

    def choose(self, features: torch.Tensor, ctx: trieye.Context) -> trieye.Act:
        """Select actions; during exploration, each row also stores the sample and its log probability."""
        output = self.actor(features)
        if not ctx.explore:
            return trieye.Act(self.as_action(output.argmax(1) if self.is_discrete else output))
        noise = torch.empty_like(output)
        if self.is_discrete:  # Gumbel-max: the argmax of logits + Gumbel noise is a softmax sample
            sample = (output - noise.exponential_(generator=ctx.generator).log_()).argmax(1)
        else:
            sample = output + self.log_std.exp() * noise.normal_(generator=ctx.generator)
        return trieye.Act(self.as_action(sample), {"sample": sample, "log_prob": self.log_prob(output, sample)})

    def as_action(self, sample: torch.Tensor) -> torch.Tensor:
        """Return the environment's actions; continuous detail 4: only they are clipped, updates use the raw samples."""
        if self.is_discrete:
            return sample
        return (self.origin + sample.reshape(-1, *self.shape)).clamp(self.low, self.high)

    def features(self, obs: Any) -> torch.Tensor:
        """Return the encoded observations, the input of both networks, `[..., size]`."""
        features: torch.Tensor = self.shared(self.encoder(obs))
        return features

    def value(self, obs: Any) -> torch.Tensor:
        """Return the state values, `[...]`."""
        values: torch.Tensor = self.critic(self.features(obs))
        return values[..., 0]

    def log_prob(self, output: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        """Return the log probability of each sample, `[n]`, from the output of the actor."""
        if self.is_discrete:
            return output.log_softmax(1).gather(1, sample[:, None])[:, 0]
        errors = (sample - output) * (-self.log_std).exp()
        return -(0.5 * errors.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(1)

    def entropy(self, output: torch.Tensor) -> torch.Tensor:
        """Return the mean entropy of the action distributions."""
        if self.is_discrete:
            log_probs = output.log_softmax(1)
            return -(log_probs.exp() * log_probs).sum(1).mean()
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()


class PPO(trieye.TrainEngine[TrainConfig, PPOBaseConfig, ActorCritic]):
    """PPO engine: each step collects a rollout and makes `agent.epochs` passes over it."""

    def setup(self, config: TrainConfig) -> None:
        """Create the optimizer; `self.policy` and `self.device` already exist."""
        # detail 3: Adam epsilon of 1e-5; fused: one kernel for all weights
        self.weights = list(self.policy.parameters())
        self.optimizer = torch.optim.Adam(self.weights, lr=self.agent.lr(0), eps=1e-5, fused=True)

    def step(self) -> dict[str, float]:
        """Collect, update, and return the mean metrics of the updates."""
        agent, rows = self.agent, self.collect()
        with torch.no_grad():  # one batch is faster than computing values while collecting
            rows.extras["value"] = self.policy.value(rows["obs"])
            last_value = self.policy.value(rows.after)
        advantages, returns = trieye.gae(rows, last_value, gamma=agent.gamma, lam=agent.gae_lambda)  # detail 5
        trieye.set_lr(self.optimizer, agent.lr(self.schedule_step))  # detail 4: annealed if lr is a schedule
        batches = self.minibatches(rows, Batch, epochs=agent.epochs, advantages=advantages, returns=returns)  # detail 6
        return trieye.mean(self.train_step(batch) for batch in batches)

    def train_step(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Make one gradient update."""
        with self.autocast():
            features = self.policy.features(batch.obs)
        return self.update(features, batch)

    def update(self, features: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Make one gradient update by features `[n, size]` of the rows."""
        advantages = batch.advantages
        if len(advantages) > 1:  # detail 7: normalized per minibatch; one row has no standard deviation
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        with self.autocast():
            output, value = self.policy.actor(features).float(), self.policy.critic(features)[:, 0].float()
        log_ratio = self.policy.log_prob(output, batch.sample) - batch.log_prob
        ratio = log_ratio.exp()
        clip_range = self.agent.clip_range(self.schedule_step)
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(ratio * advantages, clipped * advantages).mean()  # detail 8, equation 7
        value_errors = (value - batch.returns).square()
        if self.agent.clip_value:  # detail 9; off by default: it does not help (Andrychowicz et al. 2021)
            near_value = batch.value + (value - batch.value).clamp(-clip_range, clip_range)
            value_errors = torch.max(value_errors, (near_value - batch.returns).square())
        value_loss = value_errors.mean()
        with torch.set_grad_enabled(self.agent.ent_coef > 0):
            entropy = self.policy.entropy(output)
        loss = policy_loss + self.agent.vf_coef * value_loss - self.agent.ent_coef * entropy  # detail 10
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.weights, self.agent.max_grad_norm)  # detail 11
        self.optimizer.step()
        with torch.no_grad():  # detail 12: diagnostics of the step size (KL estimator k3, Schulman 2020)
            kl, is_clipped = (ratio - 1 - log_ratio).mean(), (ratio != clipped).float().mean()
        metrics = {"loss/policy": policy_loss, "loss/value": value_loss, "policy/entropy": entropy}
        return {
            **{name: value.detach() for name, value in metrics.items()},
            "policy/kl": kl,
            "policy/clipped": is_clipped,
        }
