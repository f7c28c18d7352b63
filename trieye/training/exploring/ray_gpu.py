"""The learner's GPU in Ray, which knows of GPUs that actors asked for, and not of the one that the driver uses."""

import os
from typing import Any

import ray

from trieye.exceptions import ConfigurationError
from trieye.hub.ray_start import on_this_node
from trieye.process.progress import say

_START_S = 20.0
"""How long the holder of a GPU may take to start; longer means that another job has all of them."""


@ray.remote(max_restarts=0, num_cpus=0, num_gpus=1)
class _GPUHolder:
    """Has a GPU and does nothing with it."""

    def gpus(self) -> list[str]:
        """Return its id, as in CUDA_VISIBLE_DEVICES."""
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def reserve_gpu(index: int, per_explorer: float) -> Any:
    """Keep Ray from giving the GPU of this process to an explorer.

    Args:
        index: Number of the GPU in torch, `cuda:<index>`.
        per_explorer: GPUs of an explorer, at least 1.

    Returns:
        The reservation, which holds as long as this object exists; None where Ray knows of the GPU, as in a trial of
        Tune, or has no GPUs on this node.

    Raises:
        ConfigurationError: No node has a GPU for an explorer beside that of the learner.
    """
    on_node = _gpus_of_nodes()
    here = on_node.pop(ray.get_runtime_context().get_node_id(), 0)
    is_actor = ray.get_runtime_context().get_actor_id() is not None
    if not here or (is_actor and ray.get_gpu_ids()):
        return None
    if max([here - 1, *on_node.values()]) < per_explorer:
        raise ConfigurationError(
            f"explorer.num_gpus={per_explorer:g}: Ray has no GPUs for an explorer beside the learner's cuda:{index}; "
            "set explorer.num_gpus=0 (explorers act on the CPU), a fraction such as 0.25 (they share the GPU), or "
            "agent.device=cpu"
        )
    return _holder_of(_physical(index), here)


def _gpus_of_nodes() -> dict[str, int]:
    return {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}


def _physical(index: int) -> str:
    """Return the id that the driver gives a GPU, which CUDA numbers among the visible ones."""
    visible = [gpu.strip() for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return visible[index] if index < len(visible) else str(index)


def _holder_of(wanted: str, num_gpus: int) -> Any:
    """Return the actor to which Ray gave a GPU, one of those on this node."""
    others = []  # they keep theirs until the right one is found
    for _ in range(num_gpus):
        holder: Any = _GPUHolder.options(scheduling_strategy=on_this_node()).remote()  # type: ignore[attr-defined]  # ray.remote adds it
        try:
            if wanted in ray.get(holder.gpus.remote(), timeout=_START_S):
                return holder
        except ray.exceptions.GetTimeoutError:
            break
        others.append(holder)
    say(f"Ray has GPU {wanted} in use or does not list it; explorers may share it with the learner")
    return None
