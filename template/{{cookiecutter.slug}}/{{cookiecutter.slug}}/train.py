"""Training command; `--help` lists its options."""

import trieye

from {{ cookiecutter.slug }}.config import TrainConfig


@trieye.main(config_path="../conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    """Train the engine that agent.engine names and return the best value of loop.objective, which sweeps optimize."""
    return trieye.train(cfg)


if __name__ == "__main__":
    train()
