"""LauncherConfig: how the jobs of a sweep share the machines: `hydra.launcher`, with `hydra/launcher=trieye_ray`."""

from typing import Literal

from pydantic import Field

from trieye.config.base import StrictModel
from trieye.config.runtime import RuntimeEnv


class LauncherConfig(StrictModel):
    """Where jobs run, how many at once, and what becomes of those that fail.

    `num_cpus`, `num_gpus`, `memory` and `resources` may be references to keys of the job, as in
    `hydra.launcher.num_cpus='${cpus}'`, which each job resolves for itself.
    """

    num_jobs: int | None = Field(default=None, ge=1, description="Jobs at once; null = as many as there is room for.")
    num_cpus: float = Field(default=1.0, ge=0, description="CPUs of a job.")
    num_gpus: float = Field(default=0.0, ge=0, description="GPUs of a job; 0.25 lets four jobs share one.")
    memory: int | None = Field(default=None, ge=1, description="Bytes of memory of a job, which Ray sets aside.")
    resources: dict[str, float] = Field(default={}, description="Other resources of a job, by Ray's names.")
    retries: int = Field(
        default=3, ge=0, description="How often a job is begun again whose process was killed; it goes on where it was."
    )
    fail_fast: bool = Field(default=False, description="Whether a job that fails stops those that have not begun.")
    isolate: Literal["process", "worker", "none"] = Field(
        default="process",
        description="`process` = a new process for each job; `worker` = processes that run one job after another, "
        "which costs less and lets what a job leaves behind reach the next; `none` = one by one in this process.",
    )
    address: str | None = Field(
        default=None, description="Ray to join, such as `auto` or `head:6379`; null = one that is started here."
    )
    working_dir: str | None = Field(
        default="auto",
        min_length=1,
        description="What the workers of a cluster get a copy of: `auto` = the project of the program; or a directory; "
        "null = nothing. Only with an address.",
    )
    runtime_env: RuntimeEnv = Field(
        default={},
        description="Ray runtime environment of the workers; {} = the environment of the nodes. Only with an address.",
    )
    is_part: bool = Field(
        default=False,
        description="Whether others run other jobs of the sweep at the same time, as a batch system does.",
    )
    only: list[int] | None = Field(default=None, description="Numbers of the jobs to run; null = all.")
