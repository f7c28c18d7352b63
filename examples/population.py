"""Population-based training (Jaderberg et al. 2017): trials continue from better ones, with other learning rates.

    python examples/population.py run_name=pbt tune=pbt 'tune.space.lr="interval(1e-3, 1.0)"' tune.num_trials=4
    trieye sweep status multirun/pbt        # each trial: its values, its last objective, whose state it took over
    trieye results table multirun/pbt
"""

import numpy as np
import trieye
from pydantic import Field
from trieye.config import LoopConfig


class Config(trieye.TrieyeConfig):
    """The config of this program, besides all keys of trieye."""

    lr: float = Field(default=0.1, gt=0, le=1, description="Step size.")
    loop: LoopConfig = LoopConfig(steps=200, evaluate_every_steps=20, objective="distance", mode="min")


class Descent(trieye.Experiment[Config]):
    """Gradient descent with noise, for which a high step size is best at first and a low one at the end."""

    def setup(self, config: Config) -> None:
        """Start far from the minimum."""
        self.rng = np.random.default_rng(config.seed)
        self.x = np.full(10, 10.0)

    def step(self) -> dict[str, float]:
        """Make one step."""
        self.x -= self.config.lr * (self.x + self.rng.normal(0, 1, 10))
        return {"distance": float(np.linalg.norm(self.x))}

    def evaluate(self) -> dict[str, float]:
        """Return the objective, by which trials are compared."""
        return {"distance": float(np.linalg.norm(self.x))}

    def save_checkpoint(self, checkpoint_dir):
        """Return the state, which another trial may take over."""
        return {"x": self.x, "rng": self.rng.bit_generator.state}

    def load_checkpoint(self, checkpoint):
        """Restore a state."""
        self.x, self.rng.bit_generator.state = np.array(checkpoint["x"]), checkpoint["rng"]


@trieye.main("pkg://trieye.conf", "trieye")
def train(cfg: Config) -> float | None:
    """Run one training, or with `tune=pbt` a study."""
    return trieye.run_experiment("population:Descent", cfg)


if __name__ == "__main__":
    train()
