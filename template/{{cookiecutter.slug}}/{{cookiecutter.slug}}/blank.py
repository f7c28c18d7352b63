"""Starting point for a custom experiment: random search over the weights of a linear policy.

Every subclass of `trieye.Experiment` trains, evaluates, saves and resumes; `agent=blank` selects this one through its
`agent.engine`. For algorithms with torch and replay, `dqn.py` and `ppo.py` are better starting points.
"""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from trieye import ConfigurationError, Experiment, make_env

from {{ cookiecutter.slug }}.config import BlankConfig, TrainConfig

FIRST_EVAL_SEED = 1_000_000  # far from the training seeds


class Blank(Experiment[TrainConfig]):
    """Play one episode per step with perturbed weights, and adopt them if the return is at least the best so far."""

    def setup(self, config: TrainConfig) -> None:
        """Create the state of the training; `self.run` logs images, tables and files."""
        assert isinstance(config.agent, BlankConfig)
        self.noise = config.agent.noise
        ignored = {
            "explorer.num": config.explorer.num > 0,
            "env.num": config.env.num > 1,
            "env.clip_rewards": config.env.clip_rewards,
            "env.normalize_observations": config.env.normalize_observations,
            "env.normalize_rewards": config.env.normalize_rewards,
        }
        if keys := [key for key, is_set in ignored.items() if is_set]:
            raise ConfigurationError(f"agent=blank does not support {', '.join(keys)}")
        self.env = make_env(config.env)  # with env.wrappers and env.frame_stack
        assert isinstance(self.env.action_space, gym.spaces.Discrete)
        size = int(np.prod(self.env.observation_space.shape or ()))
        self.weights = np.zeros((int(self.env.action_space.n), size))
        self.best, self.episodes = -np.inf, 0
        self.rng = np.random.default_rng(config.seed)

    def step(self) -> dict[str, float]:
        """Run one iteration and return its metrics."""
        noise = self.rng.normal(size=self.weights.shape) * self.noise
        episode_return, length = self.play(self.weights + noise, seed=self.config.seed + self.episodes)
        self.episodes += 1
        if episode_return >= self.best:
            self.weights, self.best = self.weights + noise, episode_return
        # env_steps and updates advance the counters of loop.axis and loop.env_steps
        return {"env_steps": length, "updates": 1, "episode/return": episode_return, "episode/length": length}

    def evaluate(self) -> dict[str, float]:
        """Return evaluation metrics; `loop.objective` names one of them."""
        seeds = range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + self.config.env.eval_episodes)
        return {"eval/return": float(np.mean([self.play(self.weights, seed)[0] for seed in seeds]))}

    def play(self, weights: NDArray[np.float64], seed: int) -> tuple[float, int]:
        """Play one episode and return its return and length."""
        obs, _ = self.env.reset(seed=seed)
        total, length, done = 0.0, 0, False
        while not done:
            obs, reward, terminated, truncated, _ = self.env.step(int((weights @ np.ravel(obs)).argmax()))
            total, length, done = total + float(reward), length + 1, terminated or truncated
        return total, length

    def save_checkpoint(self, directory: Path) -> dict[str, Any]:
        """Return the complete state: arrays, numbers, random generators, objects with `state_dict`."""
        return {"weights": self.weights, "best": self.best, "episodes": self.episodes, "rng": self.rng}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state that `save_checkpoint` returned."""
        for name, value in checkpoint.items():
            setattr(self, name, value)

    def cleanup(self) -> None:
        """Close the environment."""
        self.env.close()
