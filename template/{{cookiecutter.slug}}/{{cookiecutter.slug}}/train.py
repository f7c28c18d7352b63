"""The command that trains; `--help` tells what can be set."""

import trieye

from {{ cookiecutter.slug }}.config import TrainConfig


@trieye.main(config_path="../conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    """Train what agent.engine names and return the best value of loop.objective, by which sweeps compare."""
    return trieye.train(cfg)


if __name__ == "__main__":
    train()
