"""A PPO on CartPole in one file, written for torch's SummaryWriter, without checkpoints: a restart begins at step 0."""

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-name", default="ppo")
    parser.add_argument("--total-timesteps", type=int, default=8192)
    args = parser.parse_args()
    writer = SummaryWriter(f"runs/{args.run_name}")
    rows = "\n".join(f"|{key}|{value}|" for key, value in vars(args).items())
    writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1")) for _ in range(4)]
    )
    actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=2.5e-3)
    steps, global_step, began = 64, 0, time.time()
    obs = torch.as_tensor(envs.reset(seed=args.seed)[0])
    done = torch.zeros(4)
    while global_step < args.total_timesteps:
        rollout = []
        for _ in range(steps):
            global_step += 4
            with torch.no_grad():
                chosen = Categorical(logits=actor(obs))
                action, value = chosen.sample(), critic(obs)[:, 0]
            after, reward, terminated, truncated, infos = envs.step(action.numpy())
            rollout.append((obs, action, chosen.log_prob(action), value, torch.as_tensor(reward).float(), done))
            obs, done = torch.as_tensor(after), torch.as_tensor(terminated | truncated).float()
            if "episode" in infos:
                for index in np.flatnonzero(infos["_episode"]):
                    writer.add_scalar("charts/episodic_return", infos["episode"]["r"][index], global_step)
        o, a, old, v, r, d = (torch.stack(column) for column in zip(*rollout, strict=True))
        with torch.no_grad():
            advantages, last, following, over = torch.zeros_like(r), 0.0, critic(obs)[:, 0], done
            for t in reversed(range(steps)):
                delta = r[t] + 0.99 * following * (1 - over) - v[t]
                advantages[t] = last = delta + 0.99 * 0.95 * (1 - over) * last
                following, over = v[t], d[t]
            returns = advantages + v
        for _ in range(4):
            chosen = Categorical(logits=actor(o))
            ratio = (chosen.log_prob(a) - old).exp()
            policy_loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            value_loss = (critic(o)[..., 0] - returns).square().mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * chosen.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        writer.add_scalar("losses/value_loss", value_loss.item(), global_step)
        writer.add_scalar("losses/policy_loss", policy_loss.item(), global_step)
        writer.add_scalar("charts/SPS", int(global_step / (time.time() - began)), global_step)
    envs.close()
    writer.close()


if __name__ == "__main__":
    main()
