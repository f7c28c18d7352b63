"""A DQN on CartPole in one file, written for wandb; it saves its state with torch.save and resumes the run by id."""

import argparse
import os
import random
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import wandb
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-name", default="dqn")
    parser.add_argument("--total-timesteps", type=int, default=4000)
    args = parser.parse_args()
    wandb.init(project="adopted", id=args.run_name, resume="allow", config=vars(args))
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    network, target = (nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2)) for _ in range(2))
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    memory, first = [], 0
    saved = Path(f"{args.run_name}.pt")
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        network.load_state_dict(state["network"])
        target.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        memory, first = state["memory"], state["step"]

    obs, _ = env.reset(seed=args.seed + first)
    for step in range(first, args.total_timesteps):
        epsilon = max(1.0 - step / 2000, 0.05)
        greedy = int(network(torch.as_tensor(obs)).argmax())
        action = random.randrange(2) if random.random() < epsilon else greedy
        after, reward, terminated, truncated, info = env.step(action)
        memory.append((obs, action, reward, after, terminated))
        obs = after
        if terminated or truncated:
            wandb.log({"charts/episodic_return": info["episode"]["r"]}, step=step)
            wandb.log({"charts/episodic_length": info["episode"]["l"]}, step=step)
            obs, _ = env.reset()
        if step > 100 and step % 4 == 0:
            batch = random.sample(memory, 32)
            o, a, r, n, d = (torch.as_tensor(np.array(column)) for column in zip(*batch, strict=True))
            with torch.no_grad():
                goal = r.float() + 0.99 * target(n).amax(1) * (~d).float()
            value = network(o).gather(1, a[:, None])[:, 0]
            loss = nn.functional.mse_loss(value, goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            wandb.log({"losses/td_loss": loss, "losses/q_values": value.mean().item()}, step=step)
        if step % 200 == 0:
            target.load_state_dict(network.state_dict())
            wandb.log({"weights": wandb.Histogram(network.state_dict()["0.weight"])}, step=step)
        if step % 500 == 499:
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "memory": memory, "step": step + 1}, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
    wandb.finish()


if __name__ == "__main__":
    main()
