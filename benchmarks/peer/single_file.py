"""DQN, PPO and SAC in a single file, written for speed: no logging, evaluation or checkpoints.

Each algorithm is a generator that yields the number of environment steps so far. `alone` of `benchmarks/training.py`
passes the hyperparameters.
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
    """Return a multilayer perceptron."""
    layers = [layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), activation())]
    return nn.Sequential(*layers[:-1])


class Ring:
    """Ring buffer of transitions of one environment."""

    def __init__(self, capacity: int, obs_size: int, action: Any) -> None:
        self.obs, self.next_obs = (np.zeros((capacity, obs_size), np.float32) for _ in range(2))
        self.action = np.zeros((capacity, *action.shape), action.dtype)
        self.reward, self.continues = np.zeros(capacity, np.float32), np.zeros(capacity, np.float32)
        self.capacity, self.num = capacity, 0
        self.rng = np.random.default_rng(0)

    def add(self, obs: Any, action: Any, reward: float, next_obs: Any, terminated: bool) -> None:
        """Add a transition."""
        slot = self.num % self.capacity
        self.obs[slot], self.action[slot], self.next_obs[slot] = obs, action, next_obs
        self.reward[slot], self.continues[slot] = reward, not terminated
        self.num += 1

    def sample(self, n: int) -> list[torch.Tensor]:
        """Sample a batch uniformly."""
        slots = self.rng.integers(min(self.num, self.capacity), size=n)
        columns = (self.obs, self.action, self.reward, self.next_obs, self.continues)
        return [torch.from_numpy(column[slots]) for column in columns]


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
    """Train DQN on one environment with discrete actions."""
    single_env: Any = gym.make(env)  # the types of its spaces depend on the id
    rng = np.random.default_rng(0)
    size, num_actions = single_env.observation_space.shape[0], int(single_env.action_space.n)
    q = mlp([size, *hidden, num_actions])
    target = copy.deepcopy(q)
    optimizer, ring = torch.optim.Adam(q.parameters(), lr=lr, fused=True), Ring(capacity, size, np.zeros((), np.int64))
    obs, _ = single_env.reset(seed=0)
    steps = num_updates = 0
    while True:
        for _ in range(collect):
            epsilon = max(epsilon_end, 1.0 - (1.0 - epsilon_end) * steps / epsilon_steps)
            if rng.random() < epsilon:
                action = int(rng.integers(num_actions))
            else:
                with torch.inference_mode():
                    action = int(q(torch.from_numpy(obs)).argmax())
            next_obs, reward, terminated, truncated, _ = single_env.step(action)
            ring.add(obs, action, reward, next_obs, terminated)
            obs, steps = next_obs, steps + 1
            if terminated or truncated:
                obs, _ = single_env.reset()
        for _ in range(updates if steps > starts else 0):
            o, a, r, n, continues = ring.sample(batch)
            with torch.no_grad():
                td_target = r + gamma * continues * target(n).amax(1)
            loss = smooth_l1_loss(q(o).gather(1, a[:, None])[:, 0], td_target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(q.parameters(), max_grad_norm)
            optimizer.step()
            num_updates += 1
            if num_updates % target_every == 0:
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
    """Train PPO on a vector environment with discrete actions, which resets in the same step."""
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs: Any = gym.vector.SyncVectorEnv([lambda: gym.make(env)] * num, copy=False, autoreset_mode=mode)
    size, num_actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    pi, v = mlp([size, *hidden, num_actions], nn.Tanh), mlp([size, *hidden, 1], nn.Tanh)
    weights = [*pi.parameters(), *v.parameters()]
    optimizer = torch.optim.Adam(weights, lr=lr, eps=1e-5, fused=True)
    obs, steps = torch.tensor(envs.reset(seed=0)[0]), 0
    while True:
        rollout_obs, actions = torch.empty(collect + 1, num, size), torch.empty(collect, num, dtype=torch.int64)
        log_probs, values = torch.empty(collect, num), torch.empty(collect + 1, num)
        rewards, done = torch.empty(collect, num), torch.empty(collect, num)
        with torch.no_grad():
            for t in range(collect):
                rollout_obs[t] = obs
                log_softmax = pi(obs).log_softmax(1)
                actions[t] = torch.multinomial(log_softmax.exp(), 1)[:, 0]
                log_probs[t] = log_softmax.gather(1, actions[t][:, None])[:, 0]
                values[t] = v(obs)[:, 0]
                next_obs, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
                rewards[t], done[t] = torch.from_numpy(reward), torch.from_numpy(terminated | truncated)
                obs = torch.tensor(next_obs)
            values[collect] = v(obs)[:, 0]
        steps += collect * num
        advantage, advantages = torch.zeros(num), torch.empty(collect, num)
        for t in reversed(range(collect)):
            delta = rewards[t] + gamma * (1 - done[t]) * values[t + 1] - values[t]
            advantage = delta + gamma * lam * (1 - done[t]) * advantage
            advantages[t] = advantage
        o, a, old, adv = (
            rollout_obs[:-1].reshape(-1, size),
            actions.reshape(-1),
            log_probs.reshape(-1),
            advantages.reshape(-1),
        )
        returns = (advantages + values[:-1]).reshape(-1)
        for _ in range(epochs):
            for i in torch.randperm(len(o)).split(batch):
                log_softmax = pi(o[i]).log_softmax(1)
                ratio = (log_softmax.gather(1, a[i][:, None])[:, 0] - old[i]).exp()
                scaled = (adv[i] - adv[i].mean()) / (adv[i].std() + 1e-8)
                policy_loss = -torch.min(ratio * scaled, ratio.clamp(1 - clip, 1 + clip) * scaled).mean()
                loss = policy_loss + vf_coef * (v(o[i])[:, 0] - returns[i]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(weights, max_grad_norm)
                optimizer.step()
        yield steps


def sac(
    *, env: str, hidden: list[int], lr: float, batch: int, capacity: int, starts: int, gamma: float, tau: float
) -> Iterator[int]:
    """Train SAC on one environment, with a learned temperature."""
    single_env: Any = gym.make(env)  # the types of its spaces depend on the id
    size, dims = single_env.observation_space.shape[0], single_env.action_space.shape[0]
    scale = torch.from_numpy(single_env.action_space.high)
    actor, critics = mlp([size, *hidden, 2 * dims]), nn.ModuleList(mlp([size + dims, *hidden, 1]) for _ in range(2))
    target, log_alpha = copy.deepcopy(critics), torch.zeros((), requires_grad=True)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=lr, fused=True)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=lr, fused=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=lr, fused=True)
    ring = Ring(capacity, size, np.zeros(dims, np.float32))

    def act(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs).chunk(2, dim=-1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn_like(mean)
        x = mean + log_std.exp() * noise
        squashed = 2 * (math.log(2) - x - softplus(-2 * x))
        return x.tanh(), -(0.5 * noise.square() + log_std + squashed).sum(-1) - 0.5 * math.log(2 * math.pi) * dims

    def q_values(networks: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        inputs = torch.cat((obs, action), dim=1)
        return [network(inputs)[:, 0] for network in networks]

    (obs, _), steps = single_env.reset(seed=0), 0
    while True:
        if steps < starts:
            action = torch.empty(dims).uniform_(-1, 1)
        else:
            with torch.inference_mode():
                action = act(torch.from_numpy(obs))[0]
        next_obs, reward, terminated, truncated, _ = single_env.step((action * scale).numpy())
        ring.add(obs, action.numpy(), float(reward), next_obs, terminated)
        obs, steps = single_env.reset()[0] if terminated or truncated else next_obs, steps + 1
        if steps > starts:
            o, a, r, n, continues = ring.sample(batch)
            alpha = log_alpha.detach().exp()
            with torch.no_grad():
                next_action, next_log_prob = act(n)
                next_value = torch.min(*q_values(target, n, next_action)) - alpha * next_log_prob
                td_target = r + gamma * continues * next_value
            critic_loss: Any = sum((value - td_target).square().mean() for value in q_values(critics, o, a))
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            new_action, log_prob = act(o)
            actor_loss = (alpha * log_prob - torch.min(*q_values(critics, o, new_action))).mean()
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
