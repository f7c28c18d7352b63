"""AgentConfig and ReplayAgentConfig: base classes of an algorithm's hyperparameters."""

from typing import Any, ClassVar, Literal, get_args

from pydantic import Field

from trieye.config.base import Variants, did_you_mean
from trieye.config.names import ClassPath
from trieye.exceptions import ConfigurationError

ActionKind = Literal["discrete", "continuous"]


class AgentConfig(Variants):
    """Base class for the hyperparameters of an on-policy algorithm, such as PPO.

    A project defines a subclass for each algorithm. Its field `kind` is a `Literal` with the name of the algorithm's
    file in `conf/agent/`.
    """

    actions: ClassVar[tuple[ActionKind, ...]] = ("discrete", "continuous")
    """Supported action spaces: `discrete`, `continuous` (a bounded `Box`), or both."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name in cls.actions:
            if name not in get_args(ActionKind):
                raise ConfigurationError(
                    f"{cls.__name__}.actions: unknown kind {name!r}{did_you_mean(name, get_args(ActionKind))} "
                    f"(kinds: {', '.join(get_args(ActionKind))})"
                )

    engine: ClassPath = Field(description="Training class of the algorithm, as `module:Class`: `my_agent.dqn:DQN`.")
    gamma: float = Field(default=0.99, ge=0, le=1, description="Discount factor per environment step.")
    rollout_steps: int = Field(
        default=1, ge=1, le=1 << 20, description="Steps of each environment per rollout, between updates."
    )
    batch_size: int = Field(default=64, ge=1, le=1 << 20, description="Rows per minibatch; each update uses one.")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$",
        examples=["auto", "cpu", "mps", "cuda", "cuda:1"],
        description="Device of the learner; auto = CUDA if available, else the CPU.",
    )
    # no float16: gradients underflow unless every engine scales them, and bfloat16 is as fast
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Dtype of computations inside `self.autocast()`; weights stay float32."
    )
    compile: bool = Field(default=False, description="Compile the modules of the policy with torch.compile.")
    num_threads: int = Field(
        default=1,
        ge=0,
        description="Intra-op CPU threads of torch; 0 = torch's default. Small networks run slower with more than one.",
    )


class ReplayAgentConfig(AgentConfig):
    """Base class for the hyperparameters of an algorithm with a replay buffer, such as DQN or SAC."""

    updates_per_env_step: float = Field(
        default=1.0, gt=0, le=1000, description="Average number of updates per environment step."
    )
    learning_starts: int = Field(default=1000, ge=1, description="Environment steps collected before the first update.")
