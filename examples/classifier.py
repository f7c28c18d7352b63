"""Supervised training with torch: an experiment that evaluates, keeps the best checkpoint, and stops at a target.

    python examples/classifier.py run_name=spirals
    python examples/classifier.py -m hydra/sweeper=trieye hydra/launcher=trieye lr=1e-2,1e-3 seed=0,1,2
    trieye results table --by lr
"""

import numpy as np
import torch
import trieye
from pydantic import Field
from torch import nn
from trieye.config import LoopConfig


class Config(trieye.TrieyeConfig):
    """The config of this program, besides all keys of trieye."""

    lr: float = Field(default=1e-2, gt=0, description="Learning rate of Adam.")
    batch_size: int = Field(default=64, ge=1, description="Rows per update.")
    loop: LoopConfig = LoopConfig(steps=2000, evaluate_every_steps=100, objective="eval/accuracy", target=0.99)


def spirals(n: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points `[n, 2]` of two interleaved spirals and their labels `[n]`."""
    labels = rng.integers(2, size=n)
    angles = rng.uniform(1.0, 3 * np.pi, n)
    radii = angles / (2 * np.pi) + rng.normal(0, 0.05, n)
    turned = angles + np.pi * labels
    points = np.stack([radii * np.cos(turned), radii * np.sin(turned)], axis=1)
    return torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels)


class Classifier(trieye.Experiment[Config]):
    """The loop calls `step` and `evaluate`, logs what they return, and saves what `save_checkpoint` returns."""

    def setup(self, config: Config) -> None:
        """Create data, network and optimizer."""
        torch.set_num_threads(1)  # more threads slow down networks this small
        self.rng = np.random.default_rng(config.seed)
        self.train_set, self.test_set = (spirals(1000, np.random.default_rng(seed)) for seed in (0, 1))
        self.network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.lr)

    def step(self) -> dict[str, float]:
        """Make one update."""
        points, labels = self.train_set
        rows = torch.as_tensor(self.rng.integers(len(points), size=self.config.batch_size))
        loss = nn.functional.cross_entropy(self.network(points[rows]), labels[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on new points."""
        points, labels = self.test_set
        return {"eval/accuracy": (self.network(points).argmax(1) == labels).float().mean().item()}

    def save_checkpoint(self, checkpoint_dir):
        """Return the state; a resumed training equals an uninterrupted one, bit for bit."""
        state = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state | {"rng": self.rng.bit_generator.state}

    def load_checkpoint(self, checkpoint):
        """Restore the state."""
        self.network.load_state_dict(checkpoint["network"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.rng.bit_generator.state = checkpoint["rng"]


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float | None:
    """Train, and return the best accuracy, which sweeps rank."""
    return trieye.run_experiment(Classifier, cfg)


if __name__ == "__main__":
    train()
