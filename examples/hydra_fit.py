"""A plain Hydra program that does not import trieye: its sweeps run in parallel and resume.

    python examples/hydra_fit.py -m hydra/sweeper=trieye hydra/launcher=trieye hydra.sweeper.mode=min lr=0.01,0.1,0.3
    trieye sweep status          # each job; `trieye sweep relaunch` runs the rest after a kill
    trieye results table
"""

from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore


@dataclass
class Config:
    """The config of this program."""

    lr: float = 0.1
    epochs: int = 20


ConfigStore.instance().store("config", Config)


@hydra.main(version_base="1.3", config_path=None, config_name="config")
def fit(config: Config) -> float:
    """Minimise (x - 3)², and return the result, which the sweep ranks."""
    x = 0.0
    for _ in range(config.epochs):
        x -= config.lr * 2 * (x - 3)
    return (x - 3) ** 2


if __name__ == "__main__":
    fit()
