"""SweeperConfig: options of `hydra/sweeper=trieye`, which chooses the jobs of a grid or search."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trieye.config.base import StrictModel

Mode = Literal["min", "max"]
_SCOPE = re.compile(r"return|last|best|mean:[1-9]\d*")


class SweeperConfig(StrictModel):
    """Jobs of a grid or search, and the objective of a search."""

    kind: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="How jobs are chosen: grid = all combinations; random = `num_trials` random ones; optuna = "
        "`num_trials` proposed by an Optuna sampler.",
    )
    params: dict[str, Any] | None = Field(
        default=None,
        description="Search space, such as {agent.lr: 'tag(log, interval(1e-5, 1e-2))', agent: 'dqn,ppo'}; the command "
        "line takes precedence, as in 'agent.lr=interval(1e-5, 1e-2)'.",
    )
    seeds: int | None = Field(
        default=None, ge=1, description="Repeat each combination with this many seeds 0, 1, ...; null = no repetitions."
    )
    zip: list[list[str]] = Field(default=[], description="Groups of keys that vary together, value by value.")
    exclude: list[dict[str, Any]] = Field(
        default=[], description="Combinations to exclude, each as values by key, such as {agent: ppo, agent.lr: 1e-4}."
    )
    when: dict[str, dict[str, Any]] | None = Field(
        default=None,
        description="Keys that exist only with certain values of other keys, such as {agent.clip_range: {agent: ppo}} "
        "or {agent.clip_range: {agent: [ppo, a2c]}}.",
    )
    budget: list[str] = Field(
        default=["loop.steps", "loop.env_steps", "loop.time_s"],
        description="Keys that an existing sweep may raise, such as a number of epochs: its completed jobs then run "
        "further, from their checkpoints.",
    )
    dry_run: bool = Field(default=False, description="Show the jobs without running them.")
    num_trials: int = Field(default=20, ge=1, description="Number of jobs of a random or Optuna search.")
    seed: int = Field(default=0, ge=0, description="Random seed of the search.")
    mode: Mode | Annotated[list[Mode], Field(min_length=2)] | None = Field(
        default=None,
        description="Whether a lower or a higher objective is better; null = loop.mode, else max. [max,min] = several "
        "objectives: the numbers of a list or dict that the job returns, in order.",
    )
    objective: str = Field(
        default="return",
        description="Objective of a job: return = its return value; last, best, mean:K = the last point, the best "
        "point, or the mean of the last K points of loop.objective, for jobs that are trieye runs.",
    )
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe",
        description="Optuna sampler, for kind=optuna: tpe = tree-structured Parzen estimator; random; cmaes = "
        "evolution strategy, for numbers; gp = Gaussian process, which needs SciPy and torch.",
    )
    pruner: Literal["none", "median", "asha"] = Field(
        default="none",
        description="Stops jobs early by the points of loop.objective, for kind=optuna: median = the best value is "
        "worse than the median of the completed jobs, each by its last point up to the newest step of the job; asha = "
        "not in the best quarter at growing steps.",
    )
    grace_steps: int = Field(
        default=0,
        ge=0,
        description="Steps of a job (loop.axis) before which the pruner does not stop it; with asha, the first step "
        "that it compares: 0 = 1 % of the steps of the first completed job.",
    )

    @field_validator("objective")
    @classmethod
    def _objective_is_a_scope(cls, value: str) -> str:
        if not _SCOPE.fullmatch(value):
            raise ValueError("expected return, last, best or mean:K, such as mean:10")
        return value

    @model_validator(mode="after")
    def _options_match_the_kind(self) -> Self:
        for name in ("seeds", "zip", "exclude"):
            if self.kind != "grid" and getattr(self, name):
                raise ValueError(f"{name} is only for kind=grid, but kind is {self.kind}")
        if self.pruner != "none" and self.kind != "optuna":
            raise ValueError(f"pruner is only for kind=optuna, but kind is {self.kind}")
        if isinstance(self.mode, list):
            for name, value, default in (("objective", self.objective, "return"), ("pruner", self.pruner, "none")):
                if value != default:
                    raise ValueError(
                        f"{name}={value} needs a single objective, but mode has {len(self.mode)}; "
                        f"set {name}={default}, or mode to max or min"
                    )
            if self.kind == "optuna" and self.sampler == "cmaes":
                raise ValueError("sampler=cmaes needs a single objective; use tpe, gp or random with several")
        return self
