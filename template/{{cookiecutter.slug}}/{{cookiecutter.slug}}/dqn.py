"""Double DQN (van Hasselt et al. 2016), in one file: it is yours to change."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from trieye import EnvState, Experiment, ReplayBuffer

from {{ cookiecutter.slug }}.config import TrainConfig
from {{ cookiecutter.slug }}.env import make_env

FIRST_EVAL_SEED = 1_000_000  # far away from the training seeds


class DQN(Experiment[TrainConfig]):
    """A step collects `agent.collect_steps` transitions, then makes `agent.updates` updates."""

    def setup(self, config: TrainConfig) -> None:
        """Build everything; torch and NumPy are seeded by the loop."""
        torch.set_num_threads(1)  # for networks this small, more threads cost more than they give
        self.agent = config.agent
        self.env, self.eval_env = make_env(config.env), make_env(config.env)
        self.num_actions = int(self.env.action_space.n)
        sizes = [int(np.prod(self.env.observation_space.shape)), *config.agent.hidden, self.num_actions]
        self.q = make_network(sizes)
        self.target = copy.deepcopy(self.q).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=config.optimizer.lr, eps=config.optimizer.eps)
        replay = config.replay.model_copy(update={"gamma": config.agent.gamma})
        self.replay = ReplayBuffer.from_config(replay, seed=config.seed)
        self.rng = np.random.default_rng(config.seed)
        self.env_steps = self.updates = 0
        self.episode_return, self.episode_length = 0.0, 0
        self.obs, _ = self.env.reset(seed=config.seed)
        self.env_state = EnvState(self.env)
        self.is_exact = self.env_state.is_exact

    def step(self) -> dict[str, float]:
        """Collect, learn, and return the metrics of both."""
        metrics = self.collect()
        if len(self.replay) >= min(self.agent.learning_starts, self.config.replay.capacity):
            losses = [self.learn() for _ in range(self.agent.updates)]
            loss, q_value = torch.stack(losses).mean(dim=0).tolist()
            metrics |= {"loss/td": loss, "q/mean": q_value}
        return metrics

    def collect(self) -> dict[str, float]:
        """Act epsilon-greedily and store what happened.

        Where an environment can be saved between two episodes only, the end of an episode ends the collecting, too.
        """
        returns, lengths, first = [], [], self.env_steps
        while self.env_steps < first + self.agent.collect_steps:
            if self.env_state.between_episodes:
                self.obs, _ = self.env.reset()
                self.episode_return, self.episode_length = 0.0, 0
            action = self.act(self.obs, self.epsilon)
            next_obs, reward, terminated, truncated, _ = self.env.step(action)
            ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
            self.replay.add(obs=self.obs, action=action, reward=float(reward), next_obs=next_obs, **ends)
            self.obs, self.env_steps = next_obs, self.env_steps + 1
            self.episode_return, self.episode_length = self.episode_return + float(reward), self.episode_length + 1
            self.env_state.between_episodes = bool(terminated or truncated)
            if self.env_state.between_episodes:
                returns.append(self.episode_return)
                lengths.append(self.episode_length)
                if not self.is_exact:
                    break
        metrics = {
            "env_steps": float(self.env_steps - first),
            "epsilon": self.epsilon,
            **self.replay.metrics(),
        }
        if returns:
            metrics |= {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths))}
        return metrics

    def learn(self) -> torch.Tensor:
        """Make one update and return its loss and mean Q-value, `[2]`."""
        batch = self.replay.sample(self.agent.batch_size)
        obs, next_obs = torch.from_numpy(batch["obs"]), torch.from_numpy(batch["next_obs"])
        actions = torch.from_numpy(batch["action"])[:, None]
        rewards, weights = torch.from_numpy(batch["reward"]), torch.from_numpy(batch.weights)
        discounts = torch.from_numpy(batch["discount"])  # gamma^replay.n_step, and 0 where the episode terminated
        with torch.no_grad():
            next_q = self.target(next_obs)
            best = (self.q(next_obs) if self.agent.double else next_q).argmax(dim=1, keepdim=True)
            targets = rewards + discounts * next_q.gather(1, best)[:, 0]
        q_values = self.q(obs).gather(1, actions)[:, 0]
        errors = q_values - targets
        loss = (weights * errors.square()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.q.parameters(), self.agent.max_grad_norm)
        self.optimizer.step()
        self.replay.update_priorities(batch.ids, errors.detach().abs().numpy())  # they count with replay=prioritized
        self.updates += 1
        if self.updates % self.agent.target_every == 0:
            self.target.load_state_dict(self.q.state_dict())
        return torch.stack((loss.detach(), q_values.detach().mean()))

    def act(self, obs: np.ndarray, epsilon: float = 0.0) -> int:
        """Return the greedy action, or a random one with probability epsilon."""
        if epsilon and self.rng.random() < epsilon:
            return int(self.rng.integers(self.num_actions))
        with torch.inference_mode():
            return int(self.q(torch.from_numpy(obs)).argmax())

    @property
    def epsilon(self) -> float:
        """Share of random actions now."""
        progress = min(self.env_steps / self.agent.epsilon_decay_steps, 1.0)
        return self.agent.epsilon_start + progress * (self.agent.epsilon_end - self.agent.epsilon_start)

    def evaluate(self) -> dict[str, float]:
        """Play whole episodes greedily, always from the same starts."""
        returns = self.play(self.config.env.eval_episodes)
        return {"eval/return": float(np.mean(returns))}

    def play(self, episodes: int, first_seed: int = FIRST_EVAL_SEED) -> list[float]:
        """Return the undiscounted return of each of some greedy episodes."""
        returns = []
        for seed in range(first_seed, first_seed + episodes):
            obs, _ = self.eval_env.reset(seed=seed)
            total, done = 0.0, False
            while not done:
                obs, reward, terminated, truncated, _ = self.eval_env.step(self.act(obs))
                total, done = total + float(reward), terminated or truncated
            returns.append(total)
        return returns

    @property
    def can_save(self) -> bool:
        """Whether the episode can be saved here; if not, the save waits for its end."""
        return self.env_state.can_save

    def save_checkpoint(self, directory: Path) -> dict[str, Any]:
        """Return all that the next step depends on; trieye writes it without pickle."""
        return {
            "q": self.q,
            "target": self.target,
            "optimizer": self.optimizer,
            **({"replay": self.replay} if self.config.persistence.save_buffer else {}),
            "rng": self.rng,
            "counters": {"env_steps": self.env_steps, "updates": self.updates},
            "episode": {"obs": self.obs, "return": self.episode_return, "length": self.episode_length},
            "env": self.env_state,
        }

    def load_checkpoint(self, checkpoint: dict[str, Any] | Path) -> None:
        """Go on where the checkpoint was made."""
        for name in {"q", "target", "optimizer", "replay"} & checkpoint.keys():
            getattr(self, name).load_state_dict(checkpoint[name])
        for group in self.optimizer.param_groups:  # what the config says now, not what it said then
            group.update(lr=self.config.optimizer.lr, eps=self.config.optimizer.eps)
        self.rng = checkpoint["rng"]
        self.env_steps, self.updates = checkpoint["counters"]["env_steps"], checkpoint["counters"]["updates"]
        episode = checkpoint["episode"]
        self.obs, self.episode_return, self.episode_length = episode["obs"], episode["return"], episode["length"]
        self.env_state.load_state_dict(checkpoint["env"])

    def export_model(self, directory: Path) -> list[Path]:
        """Write the weights of the Q-network as one safetensors file."""
        path = directory / "q.safetensors"
        save_file(self.q.state_dict(), path)
        return [path]

    def cleanup(self) -> None:
        """Close the environments."""
        self.env.close()
        self.eval_env.close()


def make_network(sizes: list[int]) -> nn.Sequential:
    """Return a perceptron with ReLU between its layers: `[..., sizes[0]]` to `[..., sizes[-1]]`."""
    layers: list[nn.Module] = []
    for width, next_width in pairwise(sizes):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
