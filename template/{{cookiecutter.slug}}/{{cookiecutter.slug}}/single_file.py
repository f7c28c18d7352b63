"""DQN in one file: config, network and training loop, tracked and checkpointed by `trieye.Run`.

With a `run_name`, Ctrl-C saves a checkpoint and the same command resumes. Of this project, the file needs only
`conf/single_file.yaml`.
"""

import copy
import random
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import trieye
from numpy.typing import NDArray
from pydantic import Field
from torch import nn


class Config(trieye.TrieyeConfig):
    """Hyperparameters of this file, added to the keys of every run."""

    env_id: str = Field(default="CartPole-v1", description="Gymnasium id of an environment with discrete actions.")
    lr: float = Field(default=1e-3, gt=0, description="Learning rate of Adam.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount factor per environment step.")
    buffer_size: int = Field(default=50_000, ge=1, description="Capacity of the replay buffer, in transitions.")
    batch_size: int = Field(default=64, ge=1, description="Transitions per update.")
    learning_starts: int = Field(default=1_000, ge=1, description="Environment steps before the first update.")
    train_frequency: int = Field(default=2, ge=1, description="Environment steps per update.")
    target_update_interval: int = Field(default=500, ge=1, description="Environment steps per target network copy.")
    epsilon_end: float = Field(default=0.05, ge=0, le=1, description="Final epsilon (probability of random actions).")
    exploration_steps: int = Field(default=10_000, ge=1, description="Environment steps of the linear epsilon decay.")
    eval_episodes: int = Field(default=10, ge=1, description="Episodes per evaluation.")

    def check(self) -> None:
        """Create the environment once, so that an unsuitable one is reported before a run is created."""
        super().check()
        self.loop.check_own_loop("single_file")
        try:
            env = gym.make(self.env_id)
        except (gym.error.Error, ImportError) as error:
            raise trieye.ConfigurationError(f"env_id={self.env_id}: {error}") from error
        with closing(env):
            if not isinstance(env.action_space, gym.spaces.Discrete) or env.action_space.start != 0:
                raise trieye.ConfigurationError(f"env_id={self.env_id}: no actions 0 to n - 1: {env.action_space}")


def make_network(size: int, actions: int) -> nn.Sequential:
    """Return a Q-network that maps observations `[n, size]` to action values `[n, actions]`."""
    return nn.Sequential(nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, actions))


@torch.inference_mode()
def greedy(q: nn.Module, obs: NDArray[Any]) -> int:
    """Return the action with the highest value."""
    return int(q(torch.as_tensor(obs, dtype=torch.float32).flatten()).argmax())


def evaluate(q: nn.Module, cfg: Config) -> float:
    """Return the mean return of greedy episodes with fixed seeds."""
    env, total = gym.make(cfg.env_id), 0.0
    for seed in range(cfg.eval_episodes):
        (obs, _), done = env.reset(seed=1_000_000 + seed), False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(greedy(q, obs))
            total, done = total + float(reward), terminated or truncated
    env.close()
    return total / cfg.eval_episodes


@trieye.main(config_path="../conf", config_name="single_file")
def train(cfg: Config) -> float:
    """Train a DQN in one file."""
    torch.set_num_threads(1)  # more threads slow down networks this small
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    env = gym.make(cfg.env_id)
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = int(env.action_space.n)
    q = make_network(int(np.prod(env.observation_space.shape or ())), actions)
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=cfg.lr, fused=True)
    replay = trieye.ReplayBuffer(cfg.buffer_size, gamma=cfg.gamma, seed=cfg.seed)
    obs, _ = env.reset(seed=cfg.seed)
    episode: dict[str, Any] = {"obs": obs, "return": 0.0, "length": 0}
    state: dict[str, Any] = {"q": q, "target": target, "optimizer": optimizer, "buffer": replay}
    state |= {"env": env, "episode": episode}
    with trieye.Run(cfg) as run:
        run.restore(**state)  # restores `state` and the random generators; no effect in a new run
        for step in run.steps(cfg.loop.steps):  # resumes after the last saved step; Ctrl-C ends the loop after a step
            epsilon = max(cfg.epsilon_end, 1.0 - (1.0 - cfg.epsilon_end) * step / cfg.exploration_steps)
            obs = episode["obs"]
            action = random.randrange(actions) if random.random() < epsilon else greedy(q, obs)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            flags = {"terminated": bool(terminated), "truncated": bool(truncated)}
            replay.add(obs=obs, action=action, reward=float(reward), next_obs=next_obs, **flags)
            episode.update({"obs": next_obs, "return": episode["return"] + reward, "length": episode["length"] + 1})
            if terminated or truncated:
                run.log({"episode/return": episode["return"], "episode/length": episode["length"]})
                episode.update({"obs": env.reset()[0], "return": 0.0, "length": 0})
            run.log({"env_steps": 1, "epsilon": epsilon})

            if step > cfg.learning_starts and step % cfg.train_frequency == 0:
                batch = replay.sample(cfg.batch_size)
                data = {name: torch.from_numpy(batch[name]) for name in ("obs", "next_obs", "reward", "discount")}
                with torch.no_grad():  # discount is 0 if the episode terminated, not if it was truncated
                    targets = data["reward"] + data["discount"] * target(data["next_obs"]).amax(1)
                values = q(data["obs"]).gather(1, torch.from_numpy(batch["action"])[:, None])[:, 0]
                loss = nn.functional.smooth_l1_loss(values, targets)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(q.parameters(), 10.0)
                optimizer.step()
                run.log({"loss/td": loss.item(), "q/mean": values.mean().item()})
            if step % cfg.target_update_interval == 0:
                target.load_state_dict(q.state_dict())

            every = cfg.loop.evaluate_every_steps
            if step == cfg.loop.steps or (every and step % every == 0):
                run.log("eval/return", score := evaluate(q, cfg))
                run.save(objective=score, **state)  # a checkpoint with an objective can become the best
            elif run.save_due:
                run.save(**state)
        return run.best()


if __name__ == "__main__":
    train()
