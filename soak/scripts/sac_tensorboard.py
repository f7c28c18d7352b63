"""A SAC on Pendulum in one file, written for torch's SummaryWriter, without checkpoints: a restart begins at step 0."""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def sampled(actor: nn.Module, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, log_std = actor(obs).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = torch.tanh(raw)
    log_prob = (normal.log_prob(raw) - torch.log(1 - action**2 + 1e-6)).sum(-1)
    return action, log_prob


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-name", default="sac")
    parser.add_argument("--total-timesteps", type=int, default=2500)
    args = parser.parse_args()
    writer = SummaryWriter(f"runs/{args.run_name}")
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1"))
    actor, critic, target = network(3, 2), network(4, 1), network(4, 1)
    target.load_state_dict(critic.state_dict())
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    memory = []
    obs, _ = env.reset(seed=args.seed)
    for step in range(args.total_timesteps):
        with torch.no_grad():
            action = sampled(actor, torch.as_tensor(obs))[0].numpy()
        after, reward, terminated, truncated, info = env.step(2.0 * action)
        memory.append((obs, action, np.float32(reward), after))
        obs = after
        if terminated or truncated:
            writer.add_scalar("charts/episodic_return", info["episode"]["r"], step)
            obs, _ = env.reset()
        if step < 200 or step % 4:
            continue
        batch = random.sample(memory, 64)
        o, a, r, n = (torch.as_tensor(np.array(column)) for column in zip(*batch, strict=True))
        with torch.no_grad():
            next_action, log_prob = sampled(actor, n)
            goal = r + 0.99 * (target(torch.cat([n, next_action], -1))[:, 0] - 0.2 * log_prob)
        value = critic(torch.cat([o, a], -1))[:, 0]
        critic_loss = (value - goal).square().mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        chosen, log_prob = sampled(actor, o)
        actor_loss = (0.2 * log_prob - critic(torch.cat([o, chosen], -1))[:, 0]).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        writer.add_scalar("losses/qf_loss", critic_loss, step)
        writer.add_scalar("losses/actor_loss", actor_loss, step)
    writer.close()


if __name__ == "__main__":
    main()
