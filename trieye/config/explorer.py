"""ExplorerConfig and SyncConfig: processes that collect for a learner, and how they get its weights."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trieye.config.base import StrictModel
from trieye.config.names import ClassPath

Style = Literal["fixed", "trainer_driven", "explorer_driven", "fully_async"]
TransportName = Literal["auto", "local", "object_store", "checkpoint", "collective"]

_ALIASES = {
    "dynamic_by_trainer": "trainer_driven",
    "dynamic_by_explorer": "explorer_driven",
    "nccl": "collective",
    "memory": "object_store",
}
"""What Trinity-RFT calls the same."""


def _as_here(value: Any) -> Any:
    is_name = isinstance(value, str) and ":" not in value
    return _ALIASES.get(value.lower(), value.lower()) if is_name else value


class ExplorerConfig(StrictModel):
    """Explorers: processes with environments of their own, which collect for the learner."""

    num: int = Field(
        default=0, ge=0, le=65_536, description="How many, each with `env.num` environments; 0 = the learner collects."
    )
    fragment_steps: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="Steps per environment in a fragment, the unit that an explorer sends; null = agent.rollout_steps.",
    )
    max_in_flight: int = Field(
        default=2, ge=1, le=64, description="Maximum number of fragments assigned to an explorer and not yet received."
    )
    fragment_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="Seconds without an assigned fragment after which an explorer counts as hung and is restarted.",
    )
    max_restarts: int = Field(
        default=5,
        ge=0,
        description="Restarts of an explorer, with fewer than 10 fragments between, before it is given up.",
    )
    restart_backoff_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="Seconds before the second consecutive restart; doubled before each further restart.",
    )
    num_cpus: float = Field(default=0.0, ge=0, description="CPUs that Ray reserves for each; 0 = none.")
    num_gpus: float = Field(
        default=0.0,
        ge=0,
        description="GPUs that Ray reserves for each, which it acts on; from 1 on, others than the learner's.",
    )
    resources: dict[str, float] = Field(
        default_factory=dict,
        description="What else Ray reserves for each, such as `{collector: 1}` on nodes that were started with "
        "`--resources='{\"collector\": 8}'`.",
    )
    placement: Literal["spread", "pack", "learner"] = Field(
        default="spread",
        description="Nodes of a cluster that they go to: spread = all alike; pack = as few as there is room on; "
        "learner = that of the learner.",
    )
    replay_snapshot_interval_s: float | None = Field(
        default=60.0,
        gt=0,
        description="Seconds between snapshots of the replay actor, from which it recovers after a crash; null = no "
        "snapshots.",
    )


class SyncConfig(StrictModel):
    """When explorers get new weights, and how."""

    style: Annotated[Style, BeforeValidator(_as_here)] = Field(
        default="fixed",
        description="fixed = in step with the learner; trainer_driven = the newest ones for each fragment; "
        "explorer_driven = when explorers ask; fully_async = within a fragment that takes 0.1 s, too.",
    )
    transport: Annotated[TransportName | ClassPath, BeforeValidator(_as_here)] = Field(
        default="auto",
        description="local = within the process; object_store = of Ray; checkpoint = files; collective = a broadcast "
        "by torch.distributed; auto = local or object_store; or a class of your own, as `my_agent.ways:MyTransport`.",
    )
    interval: int = Field(
        default=1,
        ge=1,
        description="Steps of the learner between two versions; with explorer_driven, fragments until one asks.",
    )
    offset: int = Field(
        default=0, ge=0, description="Fragments that an explorer may be ahead of the learner; for style=fixed."
    )
    max_staleness: int = Field(
        default=1, ge=0, description="Versions that a fragment may be behind when it is learned from; not with fixed."
    )
    timeout_s: float = Field(
        default=60.0, ge=0, description="Seconds that an explorer which asked waits for weights; for explorer_driven."
    )
