"""RuntimeConfig: where the hub of a run lives, how events reach it, timeouts and exit code."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from trieye.config.base import StrictModel


def _without_working_dir(env: dict[str, Any]) -> dict[str, Any]:
    if "working_dir" in env:
        raise ValueError("working_dir is a separate key; set it next to runtime_env")
    return env


RuntimeEnv = Annotated[dict[str, Any], AfterValidator(_without_working_dir)]
"""A Ray runtime environment without `working_dir`."""


class RuntimeConfig(StrictModel):
    """Where the hub lives, and how events reach it."""

    kind: Literal["local", "ray", "cluster"] = Field(
        default="ray",
        description="local = the hub is a thread, no Ray; ray = an actor on this machine; cluster = an actor on "
        "a cluster.",
    )
    address: str | None = Field(
        default=None,
        description="Ray cluster to join, such as `head:6379`; null or `auto` = the cluster of this machine. Only for "
        "kind=cluster.",
    )
    working_dir: str | None = Field(
        default="auto",
        min_length=1,
        description="Directory that is copied to the workers of a cluster; auto = the project of the program; "
        "null = none, because the nodes already have the code. For kind=cluster only.",
    )
    runtime_env: RuntimeEnv = Field(
        default_factory=dict,
        description="Ray runtime environment of the workers, such as `{pip: [gymnasium]}` or "
        "`{env_vars: {OMP_NUM_THREADS: '1'}}`; {} = the environment of the nodes. Only for `cluster`.",
    )
    num_cpus: int | None = Field(default=None, ge=1, description="CPUs of Ray if it is started here; null = all.")
    namespace: str = Field(default="trieye", min_length=1, description="Ray namespace of the hub actor.")
    flush_interval_s: float = Field(
        default=0.2, gt=0, le=60, description="Maximum seconds before logged values are sent to the hub."
    )
    max_pending_events: int = Field(
        default=1_000_000, ge=1000, description="Logged values that may wait for a slow hub before `overflow` applies."
    )
    overflow: Literal["block", "drop"] = Field(
        default="block",
        description="If too many values wait: block = the training waits too; drop = drop and count values.",
    )

    ack_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=86_400,
        description="Seconds that flush and close wait for a hub that accepts no events before they raise an error.",
    )

    stall_timeout_s: float = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Seconds without progress of the hub before saving, restoring or closing fails; while there "
        "is progress, they wait.",
    )

    requeue_exit_code: int | None = Field(
        default=None,
        ge=0,
        le=255,
        description="Exit code after SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU, for schedulers that requeue jobs by exit "
        "code; null = 128 + signal number. Ctrl-C always exits with 130.",
    )

    @model_validator(mode="after")
    def _address_only_for_a_cluster(self) -> Self:
        if self.address is not None and self.kind != "cluster":
            raise ValueError(f"address is only for kind=cluster, but kind is {self.kind}")
        if self.runtime_env and self.kind != "cluster":
            raise ValueError(f"runtime_env is only for kind=cluster, but kind is {self.kind}")
        return self
