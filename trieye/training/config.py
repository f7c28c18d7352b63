"""TrainingConfig: the whole config of a training by reinforcement."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trieye.config.agent import AgentConfig, ReplayAgentConfig
from trieye.config.base import StrictModel
from trieye.config.env import EnvConfig
from trieye.config.loop import LoopConfig
from trieye.config.replay import ReplayConfig
from trieye.config.root import TrieyeConfig


class BenchConfig(StrictModel):
    """What is evaluated."""

    which: str = Field(
        default="each",
        min_length=1,
        description="Which checkpoints: latest, best, each, or a pattern such as checkpoint_step_*000.",
    )
    episodes: int = Field(default=100, ge=1, description="Episodes for each checkpoint.")


class TrainingConfig(TrieyeConfig):
    """Everything that a command that trains can be told; a project's own config is a subclass of it."""

    agent: AgentConfig = Field(description="The algorithm and its hyperparameters.")
    env: EnvConfig = Field(description="The environment.")
    mode: Literal["both", "bench"] = Field(
        default="both", description="both = collect and learn; bench = evaluate checkpoints of the run `run_name`."
    )
    bench: BenchConfig = Field(default_factory=BenchConfig, description="What is evaluated with mode=bench.")
    loop: LoopConfig = Field(
        default_factory=lambda: LoopConfig(axis="env_steps"), description="Length and rhythm of the training."
    )

    @model_validator(mode="after")
    def _the_replay_fits(self) -> Self:
        replay, kind = self.replay, getattr(self.agent, "kind", type(self.agent).__name__)
        if not isinstance(self.agent, ReplayAgentConfig):
            if replay != ReplayConfig():
                raise ValueError(
                    f"agent={kind} learns from what it has just collected, and has no replay: leave it out"
                )
            return self
        if replay.kind not in {"uniform", "prioritized"}:
            raise ValueError(f"replay.kind={replay.kind} is not for agent={kind}; choose uniform or prioritized")
        if "gamma" in replay.model_fields_set and replay.gamma not in {self.agent.gamma, ReplayConfig().gamma}:
            raise ValueError(
                f"replay.gamma={replay.gamma}: the discount of a training is agent.gamma={self.agent.gamma}"
            )
        return self

    def check(self) -> None:
        """Refuse an environment that is not there, or that this agent cannot use, before anything is started."""
        super().check()
        from trieye.training.environments import check_env

        check_env(self.env, self.agent.actions)
