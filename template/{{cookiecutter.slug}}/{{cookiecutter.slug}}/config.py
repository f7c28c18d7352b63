"""The config of this project: trieye's own groups, and a class for each algorithm in conf/agent/.

Bounds, defaults and descriptions live here and nowhere else; the YAML files in conf/ say only what people change. Torch
is not imported, so `--help` and config errors are fast.
"""

from typing import Annotated, ClassVar, Literal

import trieye
from pydantic import AfterValidator, Field

Width = Annotated[int, Field(ge=1, le=16_384)]
HiddenSizes = Annotated[list[Width], Field(max_length=8)]


def _from_0_to_1(schedule: trieye.Schedule) -> trieye.Schedule:
    for value in (schedule.start, schedule.start if schedule.end is None else schedule.end):
        if not 0 <= value <= 1:
            raise ValueError(f"a number from 0 to 1, or a schedule of such, is expected, found {value:g}")
    return schedule


Share = Annotated[trieye.Scheduled, AfterValidator(_from_0_to_1)]


class DQNConfig(trieye.ReplayAgentConfig):
    """Double DQN."""

    actions: ClassVar = ("discrete",)
    kind: Literal["dqn"] = Field(default="dqn", description="The algorithm.")
    engine: str = Field(default="{{ cookiecutter.slug }}.dqn:DQN", description="What trains.")
    hidden_sizes: HiddenSizes = Field(default=[128, 128], description="Sizes of hidden layers.")
    lr: Share = Field(default=trieye.Schedule(start=1e-3), description="Learning rate of Adam.")
    epsilon: Share = Field(
        default=trieye.Schedule(start=1.0, end=0.1, steps=10_000), description="Share of random actions."
    )
    double: bool = Field(default=True, description="Choose the next action with the online network (Double DQN).")
    rollout_steps: int = Field(default=8, ge=1, le=1 << 20, description="Steps of each environment, then updates.")
    updates_per_env_step: float = Field(default=0.5, gt=0, le=1000, description="Updates for each environment step.")
    target_update_interval: int = Field(default=100, ge=1, description="Updates between two copies to the target.")
    max_grad_norm: float = Field(default=10.0, gt=0, description="Gradients are scaled down to this norm.")


class PPOConfig(trieye.AgentConfig):
    """PPO with clipped ratios, for discrete actions and for numbers within bounds."""

    kind: Literal["ppo"] = Field(default="ppo", description="The algorithm.")
    engine: str = Field(default="{{ cookiecutter.slug }}.ppo:PPO", description="What trains.")
    hidden_sizes: HiddenSizes = Field(default=[64, 64], description="Sizes of hidden layers.")
    lr: Share = Field(default=trieye.Schedule(start=3e-4), description="Learning rate of Adam.")
    rollout_steps: int = Field(default=1024, ge=1, le=1 << 20, description="Steps of each environment, then updates.")
    epochs: int = Field(default=10, ge=1, le=1000, description="How many times each row is learned from.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="Advantages: 0 = one step, 1 = whole episodes.")
    clip_range: Share = Field(
        default=trieye.Schedule(start=0.2), description="How far the ratio of probabilities may leave 1."
    )
    ent_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    vf_coef: float = Field(default=0.5, ge=0, description="Weight of the value loss.")
    max_grad_norm: float = Field(default=0.5, gt=0, description="Gradients are scaled down to this norm.")
    log_std_init: float = Field(default=0.0, ge=-10, le=2, description="Log of the first noise; continuous actions.")


class SACConfig(trieye.ReplayAgentConfig):
    """Soft actor-critic, for numbers within bounds."""

    actions: ClassVar = ("continuous",)
    kind: Literal["sac"] = Field(default="sac", description="The algorithm.")
    engine: str = Field(default="{{ cookiecutter.slug }}.sac:SAC", description="What trains.")
    hidden_sizes: HiddenSizes = Field(default=[256, 256], description="Sizes of hidden layers.")
    batch_size: int = Field(default=256, ge=1, le=1 << 20, description="Rows in one update.")
    lr: Share = Field(default=trieye.Schedule(start=3e-4), description="Learning rate of all three Adams.")
    tau: float = Field(default=0.005, gt=0, le=1, description="How far the target critics move in each update.")
    ent_coef: float | None = Field(
        default=None, gt=0, description="Weight of the entropy; null = learned, so that the entropy is as wanted."
    )
    target_entropy: float | None = Field(
        default=None, description="The wanted entropy; null = - dimensions of actions."
    )


class BlankConfig(trieye.AgentConfig):
    """A linear policy, changed at random: the place of an experiment from nothing."""

    actions: ClassVar = ("discrete",)
    kind: Literal["blank"] = Field(default="blank", description="The algorithm.")
    engine: str = Field(default="{{ cookiecutter.slug }}.blank:Blank", description="What trains.")
    noise: float = Field(default=0.5, gt=0, description="Standard deviation of a change of the weights.")


@trieye.register  # so that Hydra itself composes conf/ with these keys
class TrainConfig(trieye.TrainingConfig):
    """Everything that `python -m {{ cookiecutter.slug }}.train` can be told."""

    agent: trieye.AgentConfig = Field(default_factory=DQNConfig, description="The algorithm and its hyperparameters.")
