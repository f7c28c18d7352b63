"""DQN, PPO and SAC as one writes them into a single file, for speed alone: nothing is logged, evaluated or saved.

Each is a generator that yields the environment steps made so far, with the hyperparameters of `HYPERPARAMETERS` of
`benchmarks/training.py`.
"""

import copy
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn.functional import smooth_l1_loss, softplus


def mlp(sizes: list[int], activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return a perceptron."""
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), activation())]
    return nn.Sequential(*layers[:-1])


class Ring:
    """The newest transitions of one environment."""

    def __init__(self, capacity: int, obs_size: int, action: Any) -> None:
        self.obs, self.next_obs = (np.zeros((capacity, obs_size), np.float32) for _ in range(2))
        self.action = np.zeros((capacity, *action.shape), action.dtype)
        self.reward, self.live = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
        self.capacity, self.num = capacity, 0
        self.rng = np.random.default_rng(0)

    def add(self, obs: Any, action: Any, reward: float, next_obs: Any, terminated: bool) -> None:
        """Put in one."""
        at = self.num % self.capacity
        self.obs[at], self.action[at], self.next_obs[at] = obs, action, next_obs
        self.reward[at], self.live[at] = reward, not terminated
        self.num += 1

    def sample(self, n: int) -> list[torch.Tensor]:
        """Draw some."""
        at = self.rng.integers(min(self.num, self.capacity), size=n)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.live)
        return [torch.from_numpy(column[at]) for column in columns]


def dqn(  # noqa: PLR0913 - hyperparameters
    *,
    env: str,
    hidden: list[int],
    lr: float,
    batch: int,
    capacity: int,
    starts: int,
    collect: int,
    updates: int,
    target_every: int,
    gamma: float,
    epsilon_end: float,
    epsilon_steps: int,
    max_grad_norm: float,
) -> Iterator[int]:
    """DQN on one environment with discrete actions."""
    envs, rng = gym.make(env), np.random.default_rng(0)
    size, num_actions = envs.observation_space.shape[0], int(envs.action_space.n)
    q = mlp([size, *hidden, num_actions])
    target = copy.deepcopy(q)
    optimizer, ring = torch.optim.Adam(q.parameters(), lr=lr, fused=True), Ring(capacity, size, np.zeros((), np.int64))
    obs, _ = envs.reset(seed=0)
    steps = made = 0
    while True:
        for _ in range(collect):
            epsilon = max(epsilon_end, 1.0 - (1.0 - epsilon_end) * steps / epsilon_steps)
            if rng.random() < epsilon:
                action = int(rng.integers(num_actions))
            else:
                with torch.inference_mode():
                    action = int(q(torch.from_numpy(obs)).argmax())
            next_obs, reward, terminated, truncated, _ = envs.step(action)
            ring.add(obs, action, reward, next_obs, terminated)
            obs, steps = next_obs, steps + 1
            if terminated or truncated:
                obs, _ = envs.reset()
        for _ in range(updates if steps > starts else 0):
            o, a, r, n, live = ring.sample(batch)
            with torch.no_grad():
                goal = r + gamma * live * target(n).amax(1)
            loss = smooth_l1_loss(q(o).gather(1, a[:, None])[:, 0], goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(q.parameters(), max_grad_norm)
            optimizer.step()
            made += 1
            if made % target_every == 0:
                target.load_state_dict(q.state_dict())
        yield steps


def ppo(  # noqa: PLR0913 - hyperparameters
    *,
    env: str,
    num: int,
    hidden: list[int],
    lr: float,
    collect: int,
    batch: int,
    epochs: int,
    gamma: float,
    lam: float,
    clip: float,
    vf_coef: float,
    max_grad_norm: float,
) -> Iterator[int]:
    """PPO on some environments with discrete actions, which reset in the same step."""
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(env)] * num, copy=False, autoreset_mode=mode)
    size, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    pi, v = mlp([size, *hidden, num_actions], nn.Tanh), mlp([size, *hidden, 1], nn.Tanh)
    weights = [*pi.parameters(), *v.parameters()]
    optimizer = torch.optim.Adam(weights, lr=lr, eps=1e-5, fused=True)
    obs, steps = torch.tensor(envs.reset(seed=0)[0]), 0
    while True:
        seen, actions = torch.empty(collect + 1, num, size), torch.empty(collect, num, dtype=torch.int64)
        log_probs, values = torch.empty(collect, num), torch.empty(collect + 1, num)
        rewards, done = torch.empty(collect, num), torch.empty(collect, num)
        with torch.no_grad():
            for t in range(collect):
                seen[t] = obs
                chances = pi(obs).log_softmax(1)
                actions[t] = torch.multinomial(chances.exp(), 1)[:, 0]
                log_probs[t] = chances.gather(1, actions[t][:, None])[:, 0]
                values[t] = v(obs)[:, 0]
                found, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
                rewards[t], done[t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
                obs = torch.tensor(found)
            values[collect] = v(obs)[:, 0]
        steps += collect * num
        later, advantages = torch.zeros(num), torch.empty(collect, num)
        for t in reversed(range(collect)):
            delta = rewards[t] + gamma * (1 - done[t]) * values[t + 1] - values[t]
            later = delta + gamma * lam * (1 - done[t]) * later
            advantages[t] = later
        o, a, old, adv = seen[:-1].reshape(-1, size), actions.reshape(-1), log_probs.reshape(-1), advantages.reshape(-1)
        returns = (advantages + values[:-1]).reshape(-1)
        for _ in range(epochs):
            for at in torch.randperm(len(o)).split(batch):
                chances = pi(o[at]).log_softmax(1)
                ratio = (chances.gather(1, a[at][:, None])[:, 0] - old[at]).exp()
                scaled = (adv[at] - adv[at].mean()) / (adv[at].std() + 1e-8)
                policy_loss = -torch.min(ratio * scaled, ratio.clamp(1 - clip, 1 + clip) * scaled).mean()
                loss = policy_loss + vf_coef * (v(o[at])[:, 0] - returns[at]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(weights, max_grad_norm)
                optimizer.step()
        yield steps


def sac(
    *, env: str, hidden: list[int], lr: float, batch: int, capacity: int, starts: int, gamma: float, tau: float
) -> Iterator[int]:
    """SAC on one environment, with a learned temperature."""
    envs = gym.make(env)
    size, dims = envs.observation_space.shape[0], envs.action_space.shape[0]
    scale = torch.from_numpy(envs.action_space.high)
    actor, critics = mlp([size, *hidden, 2 * dims]), nn.ModuleList(mlp([size + dims, *hidden, 1]) for _ in range(2))
    target, log_alpha = copy.deepcopy(critics), torch.zeros((), requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=lr, fused=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=lr, fused=True)
    ring = Ring(capacity, size, np.zeros(dims, np.float32))

    def draw(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs).chunk(2, dim=-1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        x = mean + log_std.exp() * noise
        squashed = 2 * (math.log(2) - x - softplus(-2 * x))
        return x.tanh(), -(0.5 * noise.square() + log_std + squashed).sum(-1) - 0.5 * math.log(2 * math.pi) * dims

    def rate(networks: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        both = torch.cat((obs, action), dim=1)
        return [network(both)[:, 0] for network in networks]

    (obs, _), steps = envs.reset(seed=0), 0
    while True:
        if steps < starts:
            action = torch.empty(dims).uniform_(-1, 1)
        else:
            with torch.inference_mode():
                action = draw(torch.from_numpy(obs))[0]
        next_obs, reward, terminated, truncated, _ = envs.step((action * scale).numpy())
        ring.add(obs, action.numpy(), float(reward), next_obs, terminated)
        obs, steps = envs.reset()[0] if terminated or truncated else next_obs, steps + 1
        if steps > starts:
            o, a, r, n, live = ring.sample(batch)
            alpha = log_alpha.detach().exp()
            with torch.no_grad():
                next_action, next_log_prob = draw(n)
                goal = r + gamma * live * (torch.min(*rate(target, n, next_action)) - alpha * next_log_prob)
            critic_loss = sum((value - goal).square().mean() for value in rate(critics, o, a))
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            new_action, log_prob = draw(o)
            actor_loss = (alpha * log_prob - torch.min(*rate(critics, o, new_action))).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()
            alpha_optimizer.zero_grad()
            (-log_alpha * (log_prob.detach() - dims).mean()).backward()
            alpha_optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), critics.parameters(), strict=True):
                    slow.lerp_(fast, tau)
        yield steps
