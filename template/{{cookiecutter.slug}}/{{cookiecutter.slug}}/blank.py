"""An experiment of your own, from nothing: here a linear policy, and steps at random that are kept if they help.

Any subclass of `trieye.Experiment` trains, evaluates, saves and resumes: `agent=blank` chooses this one by its
`agent.engine`. For algorithms with torch, environments and replay, `dqn.py` and `ppo.py` are the better beginning.
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from trieye import Experiment

from {{ cookiecutter.slug }}.config import BlankConfig, TrainConfig

FIRST_EVAL_SEED = 1_000_000  # far away from the training seeds


class Blank(Experiment[TrainConfig]):
    """A step plays one episode with changed weights, and keeps them if it went at least as well."""

    def setup(self, config: TrainConfig) -> None:
        """Make what the training needs; `self.run` is there for pictures, tables and files."""
        assert isinstance(config.agent, BlankConfig)
        self.noise = config.agent.noise
        self.env = gym.make(config.env.id, max_episode_steps=config.env.max_episode_steps, **config.env.kwargs)
        assert isinstance(self.env.action_space, gym.spaces.Discrete)
        size = int(np.prod(self.env.observation_space.shape or ()))
        self.weights = np.zeros((int(self.env.action_space.n), size))
        self.best, self.episodes = -np.inf, 0
        self.rng = np.random.default_rng(config.seed)

    def step(self) -> dict[str, float]:
        """Do what is done again and again, and return metrics."""
        noise = self.rng.normal(size=self.weights.shape) * self.noise
        total, length = self.play(self.weights + noise, seed=self.config.seed + self.episodes)
        self.episodes += 1
        if total >= self.best:
            self.weights, self.best = self.weights + noise, total
        # what stands under env_steps and updates counts for loop.axis and loop.env_steps
        return {"env_steps": length, "updates": 1, "episode/return": total, "episode/length": length}

    def evaluate(self) -> dict[str, float]:
        """Measure how good it is; `loop.objective` names one of these."""
        seeds = range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + self.config.env.eval_episodes)
        return {"eval/return": float(np.mean([self.play(self.weights, seed)[0] for seed in seeds]))}

    def play(self, weights: NDArray[np.float64], seed: int) -> tuple[float, int]:
        """Play one episode and return its return and its length."""
        obs, _ = self.env.reset(seed=seed)
        total, length, done = 0.0, 0, False
        while not done:
            obs, reward, terminated, truncated, _ = self.env.step(int((weights @ np.ravel(obs)).argmax()))
            total, length, done = total + float(reward), length + 1, terminated or truncated
        return total, length

    def save_checkpoint(self, directory: Path) -> dict[str, Any]:
        """Return all that the next step depends on: arrays, numbers, generators, objects with `state_dict`."""
        return {"weights": self.weights, "best": self.best, "episodes": self.episodes, "rng": self.rng}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where `save_checkpoint` was called."""
        for name, value in checkpoint.items():
            setattr(self, name, value)

    def cleanup(self) -> None:
        """Close what was opened."""
        self.env.close()
