"""The command that trains; `--help` tells what can be set."""

import trieye

from {{ cookiecutter.slug }}.config import TrainConfig


@trieye.main(config_path="../conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    """Train one agent and return its best evaluation return, the objective of sweeps."""
    # here, because torch takes two seconds: not for --help, not for a typo
    from {{ cookiecutter.slug }}.dqn import DQN

    return trieye.run_experiment(DQN, cfg).objective


if __name__ == "__main__":
    train()
