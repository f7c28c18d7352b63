"""The config of this project: trieye's own groups plus agent, env and optimizer.

Bounds, defaults and descriptions live here and nowhere else; the YAML files in conf/ say only what differs. Torch is
not imported, so `--help` and config errors are fast.
"""

from typing import Annotated, Literal, Self

import trieye
from pydantic import Field, model_validator
from trieye import StrictModel, TrieyeConfig

Width = Annotated[int, Field(ge=1, le=16_384)]


class AgentConfig(StrictModel):
    """Double DQN."""

    kind: Literal["dqn"] = Field(default="dqn", description="The algorithm.")
    hidden: list[Width] = Field(default=[128, 128], min_length=1, max_length=8, description="Sizes of hidden layers.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount of a reward one environment step later.")
    double: bool = Field(default=True, description="Choose the next action with the online network (Double DQN).")
    batch_size: int = Field(default=64, ge=1, le=65_536, description="Transitions in one update.")
    collect_steps: int = Field(default=8, ge=1, description="Environment steps in one step of the experiment.")
    updates: int = Field(default=4, ge=1, description="Updates in one step of the experiment.")
    learning_starts: int = Field(default=1_000, ge=1, description="Environment steps before the first update.")
    target_every: int = Field(default=100, ge=1, description="Updates between two copies to the target network.")
    max_grad_norm: float = Field(default=10.0, gt=0, description="Gradients are scaled down to this norm.")
    epsilon_start: float = Field(default=1.0, ge=0, le=1, description="Share of random actions at the beginning.")
    epsilon_end: float = Field(default=0.1, ge=0, le=1, description="Share of random actions after the decay.")
    epsilon_decay_steps: int = Field(default=8_000, ge=1, description="Environment steps of the linear decay.")

    @model_validator(mode="after")
    def _epsilon_decays(self) -> Self:
        if self.epsilon_end > self.epsilon_start:
            raise ValueError(f"epsilon_end ({self.epsilon_end}) is above epsilon_start ({self.epsilon_start})")
        return self


class EnvConfig(StrictModel):
    """The environment."""

    id: str = Field(min_length=1, description="Gymnasium id of an environment with discrete actions.")
    max_episode_steps: int | None = Field(default=None, ge=1, description="Cut episodes here; null = as registered.")
    eval_episodes: int = Field(default=10, ge=1, description="Episodes of one evaluation.")


class OptimizerConfig(StrictModel):
    """Adam."""

    kind: Literal["adam"] = Field(default="adam", description="The optimizer.")
    lr: float = Field(default=1e-3, gt=0, le=1, description="Learning rate.")
    eps: float = Field(default=1e-8, gt=0, le=1, description="Term that keeps the division stable.")


@trieye.register  # so that Hydra itself composes conf/ with these keys
class TrainConfig(TrieyeConfig):
    """Everything that `python -m {{ cookiecutter.slug }}.train` can be told."""

    agent: AgentConfig = Field(default_factory=AgentConfig, description="The algorithm and its hyperparameters.")
    env: EnvConfig = Field(description="The environment.")
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig, description="How weights follow gradients.")

    def check(self) -> None:
        """Refuse an environment that is not there, or that this agent cannot use, before anything is started."""
        super().check()
        from {{ cookiecutter.slug }}.env import check_env

        check_env(self.env)

    @model_validator(mode="after")
    def _the_replay_fits(self) -> Self:
        if self.replay.kind not in {"uniform", "prioritized"}:
            raise ValueError(f"replay.kind={self.replay.kind} is not for DQN; choose uniform or prioritized")
        return self
