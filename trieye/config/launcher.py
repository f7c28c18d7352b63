"""LauncherConfig: options of `hydra/launcher=trieye`, which runs the jobs of a sweep in parallel."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from trieye.config.base import StrictModel
from trieye.config.names import CustomResources
from trieye.config.runtime import RuntimeEnv
from trieye.exceptions import ConfigurationError

Backend = Literal["ray", "local", "slurm"]
"""Where the processes of jobs run."""


def ranges(indices: Sequence[int]) -> str:
    """Format indices as ranges, such as `0-3,7`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def numbers(text: str, size: int | None = None) -> list[int]:
    """Parse indices of jobs from ranges such as `0-3,7`.

    Args:
        text: The ranges.
        size: Number of jobs of the sweep; None: unknown.

    Raises:
        ConfigurationError: The text has another format, a range is empty, or a job does not exist.
    """
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ConfigurationError(f"{text!r}: expected indices of jobs, such as 7 or 0-9,12")
    pairs = [[int(number) for number in part.split("-")] for part in text.split(",")]
    for first, last in ((pair[0], pair[-1]) for pair in pairs):
        if last < first:
            raise ConfigurationError(f"{text}: {first}-{last} is empty; the first index of a range is the lower one")
        if size is not None and last >= size:
            raise ConfigurationError(f"{text}: out of range; the sweep has the jobs 0 to {size - 1}")
    return [index for pair in pairs for index in range(pair[0], pair[-1] + 1)]


class SlurmConfig(StrictModel):
    """Tasks of the Slurm array that runs the jobs of a sweep; the resources of each job are keys of the launcher."""

    hours: float | None = Field(
        default=None,
        ge=1.0 / 60.0,
        le=8760.0,
        description="Time limit of a task in hours, minus one second: 3 becomes 2:59:59; null = the default of the "
        "partition. Jobs that reach it save and resume when the task is requeued.",
    )
    jobs_per_task: int = Field(default=1, ge=1, description="Jobs that a task runs.")
    max_concurrent: int = Field(default=1, ge=1, description="Parallel jobs of a task, at most jobs_per_task.")
    signal_s: int = Field(
        default=120,
        ge=0,
        description="Seconds before the time limit when jobs are told to save and the task is requeued; 0 = never.",
    )
    account: str | None = Field(default=None, min_length=1, description="Account to charge; null = your default.")
    partition: str | None = Field(default=None, min_length=1, description="Partition; null = the default.")
    options: dict[str, str | int | None] = Field(
        default={},
        description="Further sbatch options by name without dashes, as in {constraint: v100}; null = without a value.",
    )

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_concurrent > self.jobs_per_task:
            raise ValueError(f"max_concurrent={self.max_concurrent} is above jobs_per_task={self.jobs_per_task}")
        if self.hours is not None and self.signal_s >= self.hours * 3600.0:
            raise ValueError(f"signal_s={self.signal_s} is not below hours={self.hours:g}, {self.hours * 3600.0:g} s")
        return self


class LauncherConfig(StrictModel):
    """Backend, resources, parallelism, isolation and restarts of the jobs of a sweep.

    `num_cpus`, `num_gpus`, `memory` and `resources` may be interpolations such as `hydra.launcher.num_cpus='${cpus}'`,
    which are resolved for each job.
    """

    backend: Backend | None = Field(
        default=None,
        description="ray = processes of Ray, on this machine or a cluster; local = processes of this machine, without "
        "Ray; slurm = tasks of a Slurm array; null = ray if the program's runtime.kind is ray or cluster, or address "
        "or resources are set, else local.",
    )
    num_jobs: int | None = Field(
        default=None, ge=1, description="Maximum number of parallel jobs; null = limited by resources only."
    )
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs of each job.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs of each job; 0.25 lets four jobs share one.")
    memory: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of memory reserved for each job; null = none. backend=local stops jobs that use more.",
    )
    resources: CustomResources = Field(default={}, description="Custom Ray resources of each job, by name.")
    retries: int = Field(
        default=3,
        ge=0,
        description="How often a job whose process was killed is restarted, from its last checkpoint; a job that "
        "raised an exception is not.",
    )
    timeout_min: float | None = Field(
        default=None,
        gt=0,
        description="Minutes after which a job is interrupted like Ctrl-C, and killed 30 s later; it fails and is not "
        "restarted. null = none.",
    )
    fail_fast: bool = Field(default=False, description="Start no further jobs after a job has failed.")
    isolate: Literal["process", "worker", "none"] = Field(
        default="process",
        description="process = a new process for each job; worker = processes that run several jobs, which start "
        "faster but share process state; none = one after another in this process, without a backend, unless "
        "`trieye sweep run` has a time limit or parallel jobs.",
    )
    address: str | None = Field(
        default=None,
        description="Ray cluster to join, such as `auto` or `head:6379`; null = start a local Ray instance.",
    )
    working_dir: str | None = Field(
        default="auto",
        min_length=1,
        description="Directory that is copied to the workers of a cluster; auto = the project of the program; "
        "null = none. Only with an address.",
    )
    runtime_env: RuntimeEnv = Field(
        default={},
        description="Ray runtime environment of the workers; {} = the environment of the nodes. Only with an address.",
    )
    slurm: SlurmConfig = Field(default=SlurmConfig(), description="Tasks of backend=slurm.")
    detach: bool = Field(
        default=False, description="With backend=slurm: exit after the submission; trieye sweep status shows the jobs."
    )
    is_part: bool = Field(
        default=False,
        description="Run only part of the sweep while other processes run other parts, as tasks of a batch system do.",
    )
    only: list[int] | None = Field(
        default=None, description="Indices of the jobs to run, also as ranges such as '0-99,120'; null = all."
    )

    @field_validator("only", mode="before")
    @classmethod
    def _expand_ranges(cls, value: Any) -> Any:
        return numbers(value) if isinstance(value, str) else value

    @cached_property
    def selected_jobs(self) -> frozenset[int] | None:
        """Indices of the jobs to run; None: all."""
        return None if self.only is None else frozenset(self.only)

    @property
    def is_array(self) -> bool:
        """Whether this process submits the jobs as a Slurm array; a task of the array runs its part itself."""
        return self.backend == "slurm" and not self.is_part

    @property
    def is_sequential(self) -> bool:
        """Whether jobs run one after another in this process; a part with a time limit or parallel jobs does not."""
        needs_processes = self.is_part and (self.timeout_min is not None or (self.num_jobs or 1) > 1)
        return self.isolate == "none" and not (needs_processes or self.is_array)

    @model_validator(mode="after")
    def _check_detach(self) -> Self:
        if self.detach and self.backend != "slurm":
            raise ValueError("detach=true needs backend=slurm")
        return self

    @field_validator("num_gpus")
    @classmethod
    def _is_share_or_whole(cls, num_gpus: float) -> float:
        if num_gpus > 1.0 and not num_gpus.is_integer():
            raise ValueError("above 1, only whole GPUs are possible")
        return num_gpus
