"""A small program for the tests of `rerun` and `fork`: a network whose width is in the config."""

import os
import signal
from pathlib import Path

import numpy as np
from pydantic import BaseModel

import trieye


class Agent(BaseModel):
    """State of the training."""

    lr: float = 0.5
    width: int = 3
    kill_at: int = 0


class Config(trieye.TrieyeConfig):
    """The config of the program."""

    agent: Agent = Agent()


class Net:
    """Weights; loading weights of another width fails."""

    def __init__(self, width: int) -> None:
        self.weights = np.zeros(width)

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        if state["weights"].shape != self.weights.shape:
            raise ValueError(f"weights of shape {state['weights'].shape} for a net of {self.weights.shape}")
        self.weights = state["weights"]


class Walk(trieye.Experiment):
    """A random walk with steps of the size of the learning rate; the objective is best at step 6."""

    def setup(self, config):
        with Path("begun.txt").open("a") as file:
            file.write(f"{config.run_name}\n")
        self.net = Net(config.agent.width)
        self.done = 0

    def step(self):
        self.done += 1
        if self.done == self.config.agent.kill_at:
            self.run.wait_for_saves()
            os.kill(os.getpid(), signal.SIGKILL)
        self.net.weights = self.net.weights + self.config.agent.lr * np.random.rand()  # noqa: NPY002 - the global one
        return {"env_steps": 4, "weight": float(self.net.weights[0])}

    def evaluate(self):
        return {"eval/return": -abs(self.done - 6.0)}

    def save_checkpoint(self, checkpoint_dir):
        return {"net": self.net, "done": self.done}

    def load_checkpoint(self, checkpoint):
        self.net.load_state_dict(checkpoint["net"])
        self.done = checkpoint["done"]


@trieye.main(config_path="conf")
def train(config: Config) -> float:
    """Train."""
    return trieye.run_experiment(Walk, config).objective or 0.0


if __name__ == "__main__":
    train()
