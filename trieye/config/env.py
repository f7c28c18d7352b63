"""EnvConfig: an environment, how many of it are stepped at once, and what is done with its observations and rewards."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel


class WrapperConfig(StrictModel):
    """A wrapper of Gymnasium, or one of the project."""

    name: str = Field(
        min_length=1,
        description="A class of gymnasium.wrappers, as `TimeAwareObservation`, or `my_agent.env:MyWrapper`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments.")


class EnvConfig(StrictModel):
    """An environment."""

    id: str = Field(min_length=1, description="Gymnasium id, as `CartPole-v1`, or `module:Id-v0`.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the environment.")
    num: int = Field(default=1, ge=1, le=65_536, description="How many are stepped at once.")
    vector: Literal["sync", "async", "own"] = Field(
        default="sync",
        description="How they are stepped: one after the other; each in a process of its own, where a step takes long; "
        "by the vector form that the environment itself has.",
    )
    max_episode_steps: int | None = Field(default=None, ge=1, description="Cut episodes here; null = as registered.")
    wrappers: dict[str, WrapperConfig | None] = Field(
        default_factory=dict, description="Wrappers around each one, the innermost first, under names of your choice."
    )
    atari: bool = Field(
        default=False,
        description="Atari preprocessing: no-ops at the start, 4 frames a step, 84x84 pixels in grey.",
    )
    frame_stack: int | None = Field(default=None, ge=2, le=64, description="Newest frames that make an observation.")
    clip_rewards: bool = Field(
        default=False, description="Learn from the sign of each reward; the metrics show all of it."
    )
    normalize_rewards: bool = Field(
        default=False, description="Learn from rewards over the standard deviation of the discounted return."
    )
    normalize_observations: bool = Field(
        default=False, description="The policy sees observations with mean 0 and standard deviation 1."
    )
    eval_episodes: int = Field(default=10, ge=1, description="Episodes of one evaluation.")
    eval_max_steps: int = Field(
        default=100_000,
        ge=1,
        description="Steps after which an episode of an evaluation is cut; its return counts up to there.",
    )
    eval_video: bool = Field(default=False, description="Record the first episode of each evaluation as a GIF.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.clip_rewards and self.normalize_rewards:
            raise ValueError("clip_rewards and normalize_rewards are two ways to scale rewards; choose one")
        if self.vector == "own" and (self.wrappers or self.atari or self.frame_stack):
            raise ValueError("wrappers, atari and frame_stack wrap single environments, which vector=own has not")
        return self
