"""SweeperConfig: options of `hydra/sweeper=trieye`, which chooses the jobs of a grid or search."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel


class SweeperConfig(StrictModel):
    """Jobs of a grid or search, and the objective of a search."""

    kind: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="How jobs are chosen: grid = all combinations; random = `num_trials` random ones; optuna = "
        "`num_trials` proposed by an Optuna sampler.",
    )
    params: dict[str, Any] | None = Field(
        default=None, description="Search space, such as `agent.lr: 1e-4,3e-4`; the command line takes precedence."
    )
    seeds: int | None = Field(
        default=None, ge=1, description="Repeat each combination with this many seeds 0, 1, ...; null = no repetitions."
    )
    zip: list[list[str]] = Field(default=[], description="Groups of keys that vary together, value by value.")
    exclude: list[dict[str, Any]] = Field(
        default=[], description="Combinations to exclude, each as values by key, such as {agent: ppo, agent.lr: 1e-4}."
    )
    when: dict[str, dict[str, Any]] = Field(
        default={},
        description="Keys that exist only with certain values of other keys, such as {agent.clip_range: {agent: ppo}} "
        "or {agent.clip_range: {agent: [ppo, a2c]}}.",
    )
    dry_run: bool = Field(default=False, description="Show the jobs without running them.")
    num_trials: int = Field(default=20, ge=1, description="Number of jobs of a random or Optuna search.")
    seed: int = Field(default=0, ge=0, description="Random seed of the search.")
    mode: Literal["min", "max"] | None = Field(
        default=None, description="Whether a lower or a higher return value is better; null = loop.mode, else max."
    )
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe", description="Optuna sampler, for kind=optuna."
    )
    pruner: Literal["none", "median", "asha"] = Field(
        default="none", description="Optuna pruner, which stops jobs early based on their loop.objective values."
    )

    @model_validator(mode="after")
    def _options_match_the_kind(self) -> Self:
        for name in ("seeds", "zip", "exclude"):
            if self.kind != "grid" and getattr(self, name):
                raise ValueError(f"{name} is only for kind=grid, but kind is {self.kind}")
        if self.pruner != "none" and self.kind != "optuna":
            raise ValueError(f"pruner is only for kind=optuna, but kind is {self.kind}")
        return self
