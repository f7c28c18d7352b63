"""RuntimeConfig: where the hub of a run lives."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trieye.config.base import StrictModel


def _without_working_dir(env: dict[str, Any]) -> dict[str, Any]:
    if "working_dir" in env:
        raise ValueError("working_dir is a separate key, next to runtime_env")
    return env


RuntimeEnv = Annotated[dict[str, Any], AfterValidator(_without_working_dir)]
"""A runtime environment, as Ray takes it, without its working directory."""


class RuntimeConfig(StrictModel):
    """Where the hub lives and how events reach it."""

    kind: Literal["local", "ray", "cluster"] = Field(
        default="ray",
        description="`local` = a thread, no Ray; `ray` = an actor on this machine; `cluster` = join a cluster.",
    )
    address: str | None = Field(
        default=None, description="Ray address to join, such as `auto` or `head:6379`; only for `cluster`."
    )
    working_dir: str | None = Field(
        default="auto",
        min_length=1,
        description="What the workers of a cluster get a copy of: `auto` = the project of the program; or a directory; "
        "null = nothing, the nodes have the code already. Only for `cluster`.",
    )
    runtime_env: RuntimeEnv = Field(
        default_factory=dict,
        description="Ray runtime environment of the workers, such as `{pip: [gymnasium]}` or "
        "`{env_vars: {OMP_NUM_THREADS: '1'}}`; {} = the environment of the nodes. Only for `cluster`.",
    )
    num_cpus: int | None = Field(default=None, ge=1, description="CPUs that a Ray started here offers; null = all.")
    namespace: str = Field(default="trieye", min_length=1, description="Ray namespace in which the hub has its name.")
    flush_interval_s: float = Field(
        default=0.2, gt=0, le=60, description="Seconds after which logged values are sent to the hub."
    )
    max_pending_events: int = Field(
        default=1_000_000, ge=1000, description="Logged values that may wait for a slow hub before `overflow` applies."
    )
    overflow: Literal["block", "drop"] = Field(
        default="block", description="When too many values wait: slow the training down, or drop values and count them."
    )

    ack_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="Seconds that flush and close wait for a hub that accepts nothing before they raise.",
    )

    stall_timeout_s: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Seconds without any progress of the hub after which saving, restoring and closing give up; as "
        "long as it goes on they wait.",
    )

    requeue_exit_code: int | None = Field(
        default=None,
        ge=0,
        le=255,
        description="Exit code after SIGTERM, SIGUSR1 or SIGXCPU, for schedulers that start a job again by its code; "
        "null = 128 + number of the signal. Ctrl-C exits with 130.",
    )

    @model_validator(mode="after")
    def _address_only_for_a_cluster(self) -> Self:
        if self.address is not None and self.kind != "cluster":
            raise ValueError(f"address is only for kind=cluster, and kind is {self.kind}")
        if self.runtime_env and self.kind != "cluster":
            raise ValueError(f"runtime_env is only for kind=cluster, and kind is {self.kind}")
        return self
