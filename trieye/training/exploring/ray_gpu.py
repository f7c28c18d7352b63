"""Reservation of the learner's GPU: Ray counts GPUs requested by actors, but not the one used by the driver."""

import os
from typing import Any

import ray

from trieye.exceptions import ConfigurationError
from trieye.hub.ray_start import on_this_node
from trieye.process.progress import say

_START_S = 20.0
"""Timeout for the start of a holder; after it, other jobs are assumed to occupy all GPUs."""


@ray.remote(max_restarts=0, num_cpus=0, num_gpus=1)
class _GPUHolder:
    """Occupies one GPU."""

    def gpus(self) -> list[str]:
        """Return its id, as in CUDA_VISIBLE_DEVICES."""
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def reserve_gpu(index: int, per_explorer: float) -> Any:
    """Keep Ray from giving the GPU of this process to an explorer.

    Args:
        index: Number of the GPU in torch, `cuda:<index>`.
        per_explorer: GPUs of an explorer, at least 1.

    Returns:
        The reservation, valid while this object exists; None if Ray assigned the GPU itself, as in a Tune trial, or
        has no GPUs on this node.

    Raises:
        ConfigurationError: No node has a GPU for an explorer besides the learner's.
    """
    on_node = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}
    num_local_gpus = on_node.pop(ray.get_runtime_context().get_node_id(), 0)
    is_actor = ray.get_runtime_context().get_actor_id() is not None
    if not num_local_gpus or (is_actor and ray.get_gpu_ids()):
        return None
    if max([num_local_gpus - 1, *on_node.values()]) < per_explorer:
        raise ConfigurationError(
            f"explorer.num_gpus={per_explorer:g}: Ray has no GPUs for an explorer besides the learner's cuda:{index}; "
            "set explorer.num_gpus=0 (explorers act on the CPU), a fraction such as 0.25 (they share the GPU), or "
            "agent.device=cpu"
        )
    return _holder_of(_physical(index), num_local_gpus)


def _physical(index: int) -> str:
    """Map an index among the visible GPUs to the id used by CUDA_VISIBLE_DEVICES and Ray."""
    visible = [gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return visible[index] if index < len(visible) else str(index)


def _holder_of(gpu_id: str, num_gpus: int) -> Any:
    """Start holders on this node until Ray assigns the GPU to one; return that holder."""
    other_holders = []  # each keeps its GPU until the right one is found
    for _ in range(num_gpus):
        holder: Any = _GPUHolder.options(scheduling_strategy=on_this_node()).remote()  # type: ignore[attr-defined]  # ray.remote adds it
        try:
            if gpu_id in ray.get(holder.gpus.remote(), timeout=_START_S):
                return holder
        except ray.exceptions.GetTimeoutError:
            break
        other_holders.append(holder)
    say(f"Ray has GPU {gpu_id} in use or does not list it; explorers may share it with the learner")
    return None
