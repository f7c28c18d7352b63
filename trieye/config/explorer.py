"""ExplorerConfig and SyncConfig: processes that collect experience, and how they get the learner's weights."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trieye.config.base import StrictModel
from trieye.config.names import ClassPath, CustomResources

Style = Literal["fixed", "trainer_driven", "explorer_driven", "fully_async"]
TransportName = Literal["auto", "local", "object_store", "checkpoint", "collective"]

_ALIASES = {
    "dynamic_by_trainer": "trainer_driven",
    "dynamic_by_explorer": "explorer_driven",
    "nccl": "collective",
    "memory": "object_store",
}
"""Names of the same options in Trinity-RFT."""


def _canonical(value: Any) -> Any:
    is_name = isinstance(value, str) and ":" not in value
    return _ALIASES.get(value.lower(), value.lower()) if is_name else value


class ExplorerConfig(StrictModel):
    """Explorers: processes that step their own environments and send experience to the learner."""

    num: int = Field(
        default=0,
        ge=0,
        le=65_536,
        description="Explorers: processes (threads with runtime=local) that collect with `env.num` environments "
        "each; 0 = the learner collects.",
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
        description="Seconds an explorer may take to start or to deliver a fragment; then it is restarted as hung.",
    )
    max_restarts: int = Field(
        default=5,
        ge=0,
        description="Restarts of a failing explorer before it is abandoned; 10 fragments without a failure reset "
        "the count.",
    )
    restart_backoff_s: float = Field(
        default=1.0,
        gt=0,
        le=3600,
        description="Seconds before the second consecutive restart; doubled before each further restart.",
    )
    num_cpus: float = Field(default=0.0, ge=0, description="CPUs that Ray reserves for each explorer; 0 = none.")
    num_gpus: float = Field(
        default=0.0,
        ge=0,
        description="GPUs that Ray reserves for each explorer; 0 = it acts on the CPU; below 1 = it may "
        "share the learner's GPU; 1 or more = GPUs other than the learner's.",
    )
    resources: CustomResources = Field(
        default_factory=dict,
        description="Custom Ray resources reserved for each explorer, such as `{collector: 1}` on nodes started "
        "with `--resources='{\"collector\": 8}'`.",
    )
    placement: Literal["spread", "pack", "learner"] = Field(
        default="spread",
        description="Cluster nodes of the explorers: spread = evenly over all; pack = on as few as "
        "possible; learner = on the learner's node.",
    )
    replay_snapshot_interval_s: float | None = Field(
        default=60.0,
        gt=0,
        description="Seconds between snapshots of the replay actor, from which it recovers after a crash; null = no "
        "snapshots.",
    )


class SyncConfig(StrictModel):
    """When and how explorers get new weights."""

    style: Annotated[Style, BeforeValidator(_canonical)] = Field(
        default="fixed",
        description="When explorers get new weights: fixed = in lockstep with the learner; trainer_driven = the "
        "latest for each fragment; explorer_driven = on an explorer's request; fully_async = the latest, also "
        "during fragments of 0.1 s or more.",
    )
    transport: Annotated[TransportName | ClassPath, BeforeValidator(_canonical)] = Field(
        default="auto",
        description="How weights reach explorers: local = within the process; object_store = Ray's; checkpoint = "
        "files in the run directory; collective = torch.distributed; auto = local or object_store, by `runtime`; "
        "or your class, such as `my_agent.transport:MyTransport`.",
    )
    interval: int = Field(
        default=1,
        ge=1,
        description="Learner steps between versions of the weights; with explorer_driven, fragments between requests.",
    )
    offset: int = Field(
        default=0, ge=0, description="Fragments that explorers may be ahead of the learner, with style=fixed."
    )
    max_staleness: int = Field(
        default=1,
        ge=0,
        description="Maximum lag of a fragment's weights when the learner uses it, in versions; not with style=fixed.",
    )
    timeout_s: float = Field(
        default=60.0,
        ge=0,
        description="Seconds that an explorer waits for requested weights before it continues; for explorer_driven.",
    )
