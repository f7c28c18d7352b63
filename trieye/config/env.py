"""EnvConfig: environment id, vectorization, wrappers, normalization and evaluation episodes."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel
from trieye.config.redaction import redacted


class WrapperConfig(StrictModel):
    """A wrapper from Gymnasium or from the project."""

    name: str = Field(
        min_length=1,
        description="Class of gymnasium.wrappers, such as `TimeAwareObservation`, or `my_agent.env:MyWrapper`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the wrapper.")
    training_only: bool = Field(
        default=False, description="Leave the wrapper out of evaluations; it must not change the spaces."
    )


class EnvConfig(StrictModel):
    """The environment of a training."""

    id: str = Field(min_length=1, description="Gymnasium id, `CartPole-v1`; `module:Id-v0` imports the module first.")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the environment.")
    num: int = Field(
        default=1,
        ge=1,
        le=65_536,
        description="Number of environments that are stepped together, in each process that collects.",
    )
    vector: Literal["sync", "async", "own", "envpool"] = Field(
        default="sync",
        description="How the `num` environments are stepped: sync = sequentially, in one process; async = each "
        "in its own process, for slow steps; own = by the environment's own vectorized version; envpool = by the C++ "
        "threads of EnvPool.",
    )
    max_episode_steps: int | None = Field(
        default=None,
        ge=1,
        description="Truncate episodes after this many steps of the environment below its wrappers: frames with "
        "`atari`, which makes 4 in a step of the agent; null = the limit in the environment's registration.",
    )
    wrappers: dict[str, WrapperConfig | None] = Field(
        default_factory=dict,
        description="Wrappers of each environment, innermost first, keyed by names of your choice; null removes a "
        "wrapper.",
    )
    atari: bool = Field(
        default=False,
        description="Apply Gymnasium's Atari preprocessing: no-ops at reset, frame skip 4, 84x84 grayscale frames.",
    )
    frame_stack: int | None = Field(
        default=None,
        ge=2,
        le=64,
        description="Number of latest frames stacked in an observation; a replay stores each once. null = no stacking.",
    )
    clip_rewards: bool = Field(
        default=False, description="Train on the sign of each reward; metrics report unclipped rewards."
    )
    normalize_rewards: bool = Field(
        default=False,
        description="Train on rewards divided by the running standard deviation of the discounted return.",
    )
    normalize_observations: bool = Field(
        default=False,
        description="Scale the policy's observations to mean 0 and standard deviation 1, by running statistics.",
    )
    eval_episodes: int = Field(
        default=10, ge=1, description="Episodes per evaluation; each evaluation begins them from the same seeds."
    )
    eval_max_steps: int = Field(
        default=100_000,
        ge=1,
        description="Truncate evaluation episodes after this many steps; the return up to there counts.",
    )
    eval_video: bool = Field(default=False, description="Record the first episode of each evaluation as a GIF.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.clip_rewards and self.normalize_rewards:
            raise ValueError("clip_rewards and normalize_rewards cannot be combined; choose one")
        if self.vector == "own" and (self.wrappers or self.atari or self.frame_stack):
            raise ValueError(
                "wrappers, atari and frame_stack need single environments; remove them, or use vector=sync or async"
            )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the values that determine each training environment, by key, as plain data without secrets."""
        keys = {"id", "kwargs", "vector", "max_episode_steps", "wrappers", "atari", "frame_stack"}
        values = self.model_dump(mode="json", include=keys)
        values["wrappers"] = [wrapper for wrapper in values["wrappers"].values() if wrapper]  # their order matters
        public_values: dict[str, Any] = redacted(values, "env")
        return public_values

    def for_evaluation(self) -> Self:
        """Return the config of evaluations: one environment, original rewards, no wrappers for training only."""
        wrappers = {name: one for name, one in self.wrappers.items() if one is not None and not one.training_only}
        changes = {"num": 1, "vector": "sync", "clip_rewards": False, "normalize_rewards": False, "wrappers": wrappers}
        return self.model_copy(update=changes)
