"""SweeperConfig: which jobs a sweep has; what `hydra.sweeper` is with `hydra/sweeper=trieye`."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel


class SweeperConfig(StrictModel):
    """Which jobs a sweep has, and what is sought."""

    kind: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="`grid` = all combinations; `random` = `num_trials` of them, drawn; `optuna` = `num_trials` that "
        "its samplers choose.",
    )
    params: dict[str, Any] | None = Field(
        default=None, description="What varies, as on a command line: `agent.lr: 1e-4,3e-4`; the command line wins."
    )
    seeds: int | None = Field(default=None, ge=1, description="Repetitions of all, with the seeds 0, 1, and so on.")
    zip: list[list[str]] = Field(default=[], description="Keys that vary together, place by place, in groups.")
    exclude: list[dict[str, Any]] = Field(
        default=[], description="Excluded combinations, each as values by key; [] = none. Only for kind=grid."
    )
    dry_run: bool = Field(default=False, description="Whether to show the jobs only, and run none.")
    num_trials: int = Field(default=20, ge=1, description="Jobs of a search.")
    seed: int = Field(default=0, ge=0, description="Seed of a search.")
    mode: Literal["min", "max"] | None = Field(
        default=None, description="Whether more of what jobs return is better; null = as loop.mode says, else max."
    )
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe", description="How Optuna chooses what to try."
    )
    pruner: Literal["none", "median", "asha"] = Field(
        default="none", description="How Optuna chooses jobs that are stopped early, by the points of loop.objective."
    )

    @model_validator(mode="after")
    def _what_a_search_has_no_use_for(self) -> Self:
        for name in ("seeds", "zip", "exclude"):
            if self.kind != "grid" and getattr(self, name):
                raise ValueError(f"{name} is only for kind=grid, and kind is {self.kind}")
        if self.pruner != "none" and self.kind != "optuna":
            raise ValueError(f"pruner is only for kind=optuna, and kind is {self.kind}")
        return self
