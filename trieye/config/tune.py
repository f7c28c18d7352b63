"""TuneConfig: a study, many trials of an experiment under Ray Tune; what `tune` is in the config of a run."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trieye.config.base import StrictModel
from trieye.exceptions import ConfigurationError


def study_dir(working_dir: Path, name: str) -> Path:
    """Return the directory of a study that is begun in a directory."""
    return working_dir / "multirun" / name


class TuneConfig(StrictModel):
    """A study: which hyperparameters are tried, how trials are chosen, and which of them are given up early.

    Where something is counted in evaluations, those are of one trial, every `loop.evaluate_every_steps`.
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
        description="What happens to trials that are behind: nothing; stopped below the median; stopped by "
        "asynchronous successive halving; continued from a better trial's state (population-based training).",
    )
    num_trials: int = Field(default=8, ge=1, description="Number of trials; with search=grid, trials per combination.")
    at_once: int | None = Field(
        default=None, ge=1, description="Maximum number of parallel trials; null = limited by resources only."
    )
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs of each trial, without those of its explorers.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs of each trial, without those of its explorers.")
    reuse_actors: bool = Field(
        default=True,
        description="Run trials one after another in the same process instead of a new process for each trial.",
    )
    retries: int = Field(
        default=3, ge=0, description="Restarts of a trial that failed or whose process died, from its last evaluation."
    )
    target: float | None = Field(
        default=None, description="End the study at a trial with this objective or better; null = never."
    )
    time_s: float | None = Field(default=None, gt=0, description="End the study after this many seconds; null = never.")
    seed: int = Field(default=0, ge=0, lt=1 << 32, description="Seed of the search; trials use the key `seed`.")
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe", description="Optuna sampler, for search=optuna."
    )
    grace: int = Field(
        default=1, ge=1, description="Evaluations of a trial before it can be stopped, for scheduler=median and asha."
    )
    reduction: float = Field(
        default=3.0,
        gt=1,
        description="Reduction factor: one trial in this many reaches the next rung, with scheduler=asha.",
    )
    interval: int = Field(
        default=1, ge=1, description="Evaluations between perturbations of the trials, with scheduler=pbt."
    )
    quantile: float = Field(
        default=0.25,
        gt=0,
        le=0.5,
        description="Fraction of trials, the worst ones, replaced by copies of as many best ones, with scheduler=pbt.",
    )
    resample: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Probability of redrawing a perturbed value instead of multiplying it by 0.8 or 1.2, with "
        "scheduler=pbt.",
    )
    in_step: bool = Field(
        default=True,
        description="Let trials wait for each other at each interval, so that equally long trainings are "
        "compared, with scheduler=pbt.",
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.scheduler == "pbt" and self.search != "random":
            raise ValueError(f"scheduler=pbt draws its values itself; leave out search={self.search}")
        if self.scheduler == "pbt" and self.num_trials < 2:  # noqa: PLR2004
            raise ValueError("scheduler=pbt needs num_trials of 2 or more")
        if self.scheduler == "pbt" and self.at_once is not None and self.at_once < self.num_trials:
            raise ValueError(
                "scheduler=pbt compares all trials on their way; leave out at_once: num_cpus says how many run at once"
            )
        return self

    def check(self) -> None:
        """Refuse a study that has nothing to try.

        Raises:
            ConfigurationError: `space` is empty.
        """
        if self.enabled and not self.space:
            raise ConfigurationError(
                "tune: nothing varies; set tune.space, as in 'tune.space.agent.lr=\"tag(log, interval(1e-5, 1e-2))\"'"
            )
