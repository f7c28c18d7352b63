"""TuneConfig: a study, which runs many trials of an experiment under Ray Tune."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel
from trieye.exceptions import ConfigurationError


def study_dir(working_dir: Path, name: str) -> Path:
    """Return the directory of a study that is started in `working_dir`."""
    return working_dir / "multirun" / name


class TuneConfig(StrictModel):
    """A study: search space, choice of trials, and early stopping.

    Evaluations are counted per trial; a trial evaluates every `loop.evaluate_every_steps`.
    """

    enabled: bool = Field(default=False, description="Run a study of many trials instead of one training.")
    space: dict[str, Any] = Field(
        default={},
        description="Search space by key: `agent.lr: tag(log, interval(1e-5, 1e-2))`, `agent.batch_size: 32,64`, "
        "`env.num: range(1,9)`.",
    )
    search: Literal["random", "grid", "optuna"] = Field(
        default="random", description="random = draw values; grid = all combinations; optuna = ask an Optuna sampler."
    )
    scheduler: Literal["none", "median", "asha", "pbt"] = Field(
        default="none",
        description="What happens to trials that lag behind: none = nothing; median = stop below the median; asha = "
        "stop by asynchronous successive halving; pbt = continue from a better trial's state (population-based "
        "training).",
    )
    num_trials: int = Field(default=8, ge=1, description="Number of trials; with search=grid, trials per combination.")
    max_concurrent_trials: int | None = Field(
        default=None,
        ge=1,
        description="Maximum number of trials that run at the same time; null = limited by CPUs and GPUs only.",
    )
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs of each trial, not counting its explorers.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs of each trial, not counting its explorers.")
    reuse_actors: bool = Field(
        default=True,
        description="Run trials one after another in the same process instead of a new process for each trial.",
    )
    max_failures: int = Field(
        default=3,
        ge=0,
        description="Number of times that a failed or killed trial is restarted from its last checkpoint; 0 = never.",
    )
    target: float | None = Field(
        default=None, description="End the study at a trial with this objective or better; null = never."
    )
    time_s: float | None = Field(
        default=None, gt=0, description="End the study this many seconds after each start; null = never."
    )
    seed: int = Field(default=0, ge=0, lt=1 << 32, description="Seed of the search; trials use the key `seed`.")
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe", description="Optuna sampler, for search=optuna."
    )
    grace_period: int = Field(
        default=1,
        ge=1,
        description="Minimum number of evaluations before a trial may be stopped; for scheduler=median and asha.",
    )
    reduction_factor: float = Field(
        default=3.0,
        gt=1,
        description="Successive halving rate: one in this many trials is promoted to the next rung; for "
        "scheduler=asha.",
    )
    perturbation_interval: int = Field(
        default=1,
        ge=1,
        description="Number of evaluations between two comparisons of the population; for scheduler=pbt.",
    )
    quantile_fraction: float = Field(
        default=0.25,
        gt=0,
        le=0.5,
        description="Fraction of the trials that is replaced by clones of the same number of best trials; for "
        "scheduler=pbt.",
    )
    resample_probability: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Probability that a perturbed hyperparameter is resampled from its distribution instead of being "
        "multiplied by 0.8 or 1.2; for scheduler=pbt.",
    )
    synchronous: bool = Field(
        default=True,
        description="Whether trials wait for each other at each perturbation_interval, so that the same amount of "
        "training is compared; for scheduler=pbt.",
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.scheduler != "pbt":
            return self
        if self.search != "random":
            raise ValueError(f"scheduler=pbt draws its own values; leave out search={self.search}")
        if self.num_trials < 2:  # noqa: PLR2004
            raise ValueError("scheduler=pbt needs num_trials of 2 or more")
        if self.max_concurrent_trials is not None and self.max_concurrent_trials < self.num_trials:
            raise ValueError(
                "scheduler=pbt compares all trials; remove max_concurrent_trials, and limit concurrency with num_cpus"
            )
        return self

    def check(self) -> None:
        """Raise for a study without search space.

        Raises:
            ConfigurationError: `space` is empty.
        """
        if self.enabled and not self.space:
            raise ConfigurationError(
                "tune: no search space; set tune.space, as in 'tune.space.agent.lr=\"tag(log, interval(1e-5, 1e-2))\"'"
            )
