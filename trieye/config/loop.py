"""LoopConfig: limits of an experiment, evaluations, objective and reaction to non-finite values."""

from typing import Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel
from trieye.exceptions import ConfigurationError


class LoopConfig(StrictModel):
    """Limits of an experiment, which ends at the first limit reached, and evaluations."""

    axis: Literal["step", "env_steps", "updates"] = Field(
        default="step",
        description="Unit of a run's steps: step = calls of step(); env_steps = environment steps; updates = learner "
        "updates. It applies to `steps`, intervals in steps, points and checkpoint names, and cannot change during a "
        "run.",
    )
    steps: int | None = Field(
        default=None, ge=1, description="Stop after this many steps, in units of `axis`; null = never."
    )
    env_steps: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many environment steps, shortening the last rollout (not explorers' "
        "fragments); null = never. With axis=env_steps, a limit on the command line replaces the other one "
        "(`steps`) of the config files.",
    )
    time_s: float | None = Field(
        default=None, gt=0, description="Stop after this many seconds of training, over all attempts; null = never."
    )
    target: float | None = Field(
        default=None, description="Stop when the objective of an evaluation is at least this good; null = never."
    )
    objective: str = Field(
        default="eval/return",
        min_length=1,
        description="Metric that measures the agent: its value rates a checkpoint, its best value the run.",
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
        description="What to do on a NaN or infinite observation, reward, loss or gradient: stop = the run fails "
        "with a message that names it; skip = omit the row or update, count it, and report the first one; warn = "
        "like skip, but report each one, at most one per second.",
    )
    profile_steps: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Calls of Experiment.step() recorded by torch.profiler after the first update, in profile_data/; "
        "0 = none.",
    )

    @model_validator(mode="after")
    def _target_is_reachable(self) -> Self:
        if self.target is not None and not self.evaluate_every_steps:
            raise ValueError("target needs evaluations during training; set loop.evaluate_every_steps")
        return self

    def check_own_loop(self, program: str) -> None:
        """Check that a program with its own training loop ignores none of these values.

        Such a program reads `steps` and the intervals; only the loop of `trieye.Experiment` reads the other keys.

        Args:
            program: The program, as named in the message.

        Raises:
            ConfigurationError: `steps` is null, or another limit or an option of that loop is set.
        """
        if self.steps is None:
            raise ConfigurationError(f"loop.steps=null: {program} requires a number of steps")
        for name in ("env_steps", "time_s", "target", "background_evaluation", "profile_steps"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigurationError(f"loop.{name} is not supported by {program}")

    def limit_on(self, axis: Literal["env_steps", "updates"]) -> int | None:
        """Return the lowest limit on an axis; None if there is none."""
        limits = [self.steps if self.axis == axis else None, self.env_steps if axis == "env_steps" else None]
        return min((limit for limit in limits if limit is not None), default=None)
