"""The command that trains; `--help` tells what can be set."""

import trieye

from {{ cookiecutter.slug }}.config import TrainConfig


@trieye.main(config_path="../conf", config_name="train")
def train(cfg: TrainConfig) -> float | None:
    """Train one agent and return the best value of loop.objective, by which sweeps compare."""
    # by its name, because torch takes two seconds: not for --help, not for a typo, not for a run that is finished
    return trieye.run_experiment("{{ cookiecutter.slug }}.dqn:DQN", cfg).objective


if __name__ == "__main__":
    train()
