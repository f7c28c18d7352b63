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

    enabled: bool = Field(default=False, description="Whether to run a study, in place of one training.")
    space: dict[str, Any] = Field(
        default={},
        description="What varies, by key: `agent.lr: tag(log, interval(1e-5, 1e-2))`, `agent.batch_size: 32,64`, "
        "`env.num: range(1,9)`.",
    )
    search: Literal["random", "grid", "optuna"] = Field(
        default="random", description="How values are chosen: drawn, all combinations, or by a sampler of Optuna."
    )
    scheduler: Literal["none", "median", "asha", "pbt"] = Field(
        default="none",
        description="What is done with trials that are behind: nothing; stopped below the median; stopped by "
        "asynchronous successive halving; or they go on from the state of a better one (population-based training).",
    )
    num_trials: int = Field(default=8, ge=1, description="Trials; with search=grid, how often each combination.")
    at_once: int | None = Field(default=None, ge=1, description="Trials at once; null = as many as there is room for.")
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs of a trial, its explorers left out.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs of a trial, its explorers left out.")
    reuse_actors: bool = Field(
        default=True,
        description="Whether a process runs one trial after another, or each trial has processes of its own.",
    )
    retries: int = Field(default=3, ge=0, description="How often a trial goes on that failed, or whose process died.")
    target: float | None = Field(
        default=None, description="The study ends when the objective of a trial is at least this good."
    )
    time_s: float | None = Field(default=None, gt=0, description="The study ends after this many seconds.")
    seed: int = Field(default=0, ge=0, lt=1 << 32, description="Seed of what is drawn; trials train with `seed`.")
    sampler: Literal["tpe", "random", "cmaes", "gp"] = Field(
        default="tpe", description="Optuna's way to choose, with search=optuna."
    )
    grace: int = Field(
        default=1, ge=1, description="Evaluations before a trial can be stopped, with scheduler=median or asha."
    )
    reduction: float = Field(
        default=3.0, gt=1, description="One in so many trials gets on to each next rung, with scheduler=asha."
    )
    interval: int = Field(
        default=1, ge=1, description="Evaluations between two looks at the population, with scheduler=pbt."
    )
    quantile: float = Field(
        default=0.25, gt=0, le=0.5, description="Share of trials that take over from as many best ones; scheduler=pbt."
    )
    resample: float = Field(
        default=0.25, ge=0, le=1, description="Probability that a value is drawn anew, not multiplied by 0.8 or 1.2."
    )
    in_step: bool = Field(
        default=True,
        description="Whether trials wait for one another at each interval, so that equal trainings are compared; "
        "scheduler=pbt.",
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
