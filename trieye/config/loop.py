"""LoopConfig: how long an experiment runs and how often it is evaluated."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel


class LoopConfig(StrictModel):
    """When the loop of an experiment stops, at whichever limit comes first, and how often it evaluates."""

    axis: Literal["step", "env_steps", "updates"] = Field(
        default="step",
        description="What a run counts as its steps: calls of step(), environment steps, or updates. Points, names of "
        "checkpoints, everything that is done every so many steps and `steps` count it; a run keeps its axis.",
    )
    steps: int | None = Field(default=None, ge=1, description="Stop after this many steps, as `axis` counts them.")
    env_steps: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many environment steps; the last rollout is cut to them, fragments of explorers "
        "are not. On the command line it replaces `steps` of the config files if both count the same, and vice versa.",
    )
    time_s: float | None = Field(
        default=None, gt=0, description="Stop after this many seconds of training, all attempts."
    )
    target: float | None = Field(default=None, description="Stop when an evaluation's objective is at least this good.")
    objective: str = Field(
        default="eval/return",
        min_length=1,
        description="The metric that says how good the agent is: its value rates a checkpoint, its best value a run.",
    )
    mode: Literal["max", "min"] = Field(default="max", description="Whether a higher or a lower objective is better.")
    evaluate_every_steps: int = Field(default=0, ge=0, description="Steps between evaluations; 0 = only at the end.")
    background_evaluation: bool = Field(
        default=False,
        description="Evaluate in a separate process (a thread with runtime=local) while training continues, from a "
        "checkpoint that is saved when the evaluation starts; false = training waits for evaluations.",
    )
    on_nonfinite: Literal["stop", "skip", "warn"] = Field(
        default="stop",
        description="When an observation, a reward, a loss or a gradient is NaN or infinite: stop = the run fails with "
        "a message that names it; skip = leave out the row or the update, count it, and report the first one; warn = "
        "like skip, and report each one, at most one a second.",
    )
    profile_steps: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Calls of step() that torch.profiler records after the first update, into profile_data/; 0 = none.",
    )

    @model_validator(mode="after")
    def _target_is_reachable(self) -> Self:
        if self.target is not None and not self.evaluate_every_steps:
            raise ValueError("target needs evaluations on the way; set loop.evaluate_every_steps")
        return self

    def limit_on(self, axis: Literal["env_steps", "updates"]) -> int | None:
        """Return the lowest limit on an axis; None if there is none."""
        limits = [self.steps if self.axis == axis else None, self.env_steps if axis == "env_steps" else None]
        return min((limit for limit in limits if limit is not None), default=None)
