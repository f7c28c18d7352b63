"""Config of this project: the groups of trieye and one class per algorithm of conf/agent/.

Each bound, default and description is defined once, here or in trieye; the YAML files in conf/ contain only values that
differ. This module does not import torch, so `--help` and config errors are fast.
"""

from typing import Annotated, ClassVar, Literal

import trieye
from pydantic import AfterValidator, Field

Width = Annotated[int, Field(ge=1, le=16_384)]
HiddenSizes = Annotated[list[Width], Field(max_length=8)]


def _check_unit_interval(schedule: trieye.Schedule) -> trieye.Schedule:
    for value in (schedule.start, schedule.start if schedule.end is None else schedule.end):
        if not 0 <= value <= 1:
            raise ValueError(f"expected a number from 0 to 1, or a schedule between such numbers; found {value:g}")
    return schedule


UnitSchedule = Annotated[trieye.Scheduled, AfterValidator(_check_unit_interval)]


class DQNConfig(trieye.ReplayAgentConfig):
    """Double DQN for discrete actions."""

    actions: ClassVar = ("discrete",)
    kind: Literal["dqn"] = Field(default="dqn", description="Agent type; selected by agent=dqn.")
    engine: str = Field(default="{{ cookiecutter.slug }}.dqn:DQN", description="Engine class of DQN.")
    hidden_sizes: HiddenSizes = Field(default=[128, 128], description="Units per hidden layer; [] = linear Q-network.")
    lr: UnitSchedule = Field(default=trieye.Schedule(start=1e-3), description="Adam learning rate of the Q-network.")
    epsilon: UnitSchedule = Field(
        default=trieye.Schedule(start=1.0, end=0.1, steps=10_000), description="Probability of a random action."
    )
    eval_epsilon: float = Field(default=0.0, ge=0, le=1, description="Probability of a random action in evaluations.")
    double: bool = Field(default=True, description="Double DQN (online network selects next actions); false = DQN.")
    rollout_steps: int = Field(default=8, ge=1, le=1 << 20, description="Steps per environment between update phases.")
    updates_per_env_step: float = Field(default=0.5, gt=0, le=1000, description="Updates per environment step.")
    target_update_interval: int = Field(default=100, ge=1, description="Updates between copies to the target network.")
    max_grad_norm: float = Field(default=10.0, gt=0, description="Clip the global gradient norm to this value.")


class PPOBaseConfig(trieye.AgentConfig):
    """Hyperparameters of PPO with and without memory."""

    hidden_sizes: HiddenSizes = Field(default=[64, 64], description="Units per hidden layer of actor and critic.")
    shared_sizes: HiddenSizes = Field(
        default=[], description="Units per ReLU layer between the encoder and both networks; [] = none."
    )
    lr: UnitSchedule = Field(default=trieye.Schedule(start=3e-4), description="Adam learning rate of actor and critic.")
    rollout_steps: int = Field(default=1024, ge=1, le=1 << 20, description="Steps per environment in each rollout.")
    epochs: int = Field(default=10, ge=1, le=1000, description="Passes over the rows of each rollout.")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="GAE lambda: 0 = TD error, 1 = Monte Carlo return.")
    clip_range: UnitSchedule = Field(
        default=trieye.Schedule(start=0.2), description="Clip the probability ratio to [1 - x, 1 + x], x = clip_range."
    )
    ent_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus in the loss; 0 = no bonus.")
    vf_coef: float = Field(default=0.5, ge=0, description="Weight of the value loss, a mean squared error.")
    clip_value: bool = Field(default=False, description="Clip changes of the value by clip_range in the value loss.")
    max_grad_norm: float = Field(default=0.5, gt=0, description="Clip the global gradient norm to this value.")
    log_std_init: float = Field(default=0.0, ge=-10, le=2, description="Initial log std of continuous actions.")


class PPOConfig(PPOBaseConfig):
    """PPO with a clipped objective, for discrete and bounded continuous actions."""

    kind: Literal["ppo"] = Field(default="ppo", description="Agent type; selected by agent=ppo.")
    engine: str = Field(default="{{ cookiecutter.slug }}.ppo:PPO", description="Engine class of PPO.")


class RecurrentPPOConfig(PPOBaseConfig):
    """PPO with a memory, for environments whose observations hide a part of the state."""

    kind: Literal["recurrent_ppo"] = Field(
        default="recurrent_ppo", description="Agent type; selected by agent=recurrent_ppo."
    )
    engine: str = Field(
        default="{{ cookiecutter.slug }}.recurrent_ppo:RecurrentPPO",
        description="Engine class of recurrent PPO.",
    )
    memory_size: Width = Field(default=64, description="Units of the GRU between the encoder and both networks.")
    rollout_steps: int = Field(default=128, ge=2, le=1 << 20, description="Steps per environment in each rollout.")
    batch_size: int = Field(default=2, ge=1, le=1 << 20, description="Environments per minibatch; all their steps.")


class SACConfig(trieye.ReplayAgentConfig):
    """Soft actor-critic for bounded continuous actions."""

    actions: ClassVar = ("continuous",)
    kind: Literal["sac"] = Field(default="sac", description="Agent type; selected by agent=sac.")
    engine: str = Field(default="{{ cookiecutter.slug }}.sac:SAC", description="Engine class of SAC.")
    hidden_sizes: HiddenSizes = Field(default=[256, 256], description="Units per hidden layer of actor and critics.")
    batch_size: int = Field(default=256, ge=1, le=1 << 20, description="Rows per update.")
    lr: UnitSchedule = Field(default=trieye.Schedule(start=3e-4), description="Adam learning rate of all parameters.")
    tau: float = Field(default=0.005, gt=0, le=1, description="Polyak factor of the target critics; 1 = copy.")
    ent_coef: float | None = Field(
        default=None, gt=0, description="Weight of the entropy (alpha); null = learned, to reach target_entropy."
    )
    target_entropy: float | None = Field(
        default=None, description="Target entropy in nats, if ent_coef is null; null = -(number of action dimensions)."
    )


class TD3Config(trieye.ReplayAgentConfig):
    """Twin delayed DDPG for bounded continuous actions; noise is relative to actions scaled to [-1, 1]."""

    actions: ClassVar = ("continuous",)
    kind: Literal["td3"] = Field(default="td3", description="Agent type; selected by agent=td3.")
    engine: str = Field(default="{{ cookiecutter.slug }}.td3:TD3", description="Engine class of TD3.")
    hidden_sizes: HiddenSizes = Field(default=[256, 256], description="Units per hidden layer of actor and critics.")
    batch_size: int = Field(default=256, ge=1, le=1 << 20, description="Rows per update.")
    lr: UnitSchedule = Field(default=trieye.Schedule(start=3e-4), description="Adam learning rate of all parameters.")
    tau: float = Field(default=0.005, gt=0, le=1, description="Polyak factor of the target networks; 1 = copy.")
    exploration_noise: float = Field(default=0.1, ge=0, le=2, description="Standard deviation of exploration noise.")
    target_noise: float = Field(default=0.2, ge=0, le=2, description="Standard deviation of noise on target actions.")
    target_noise_clip: float = Field(default=0.5, ge=0, le=2, description="Bound of the noise on target actions.")
    policy_delay: int = Field(default=2, ge=1, le=1000, description="Critic updates per update of actor and targets.")


class BlankConfig(trieye.AgentConfig):
    """Random search over a linear policy: a starting point for a custom experiment."""

    actions: ClassVar = ("discrete",)
    kind: Literal["blank"] = Field(default="blank", description="Agent type; selected by agent=blank.")
    engine: str = Field(default="{{ cookiecutter.slug }}.blank:Blank", description="Experiment class.")
    noise: float = Field(default=0.5, gt=0, description="Standard deviation of the noise added to the weights.")


@trieye.register  # lets Hydra compose conf/ with these keys
class TrainConfig(trieye.TrainingConfig):
    """Config of `python -m {{ cookiecutter.slug }}.train`."""

    agent: trieye.AgentConfig = Field(default_factory=DQNConfig, description="Algorithm and its hyperparameters.")
