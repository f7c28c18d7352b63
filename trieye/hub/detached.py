"""What a hub that outlives its driver leaves for the next one: where Ray finds it, which drivers it has."""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.process.lock import RunLock, describe_process


def describe_hub() -> None:
    """Say in the records of the locks that this process takes which actor of which cluster it is."""
    context = ray.get_runtime_context()
    describe_process(
        kind="hub",
        address=context.gcs_address,
        namespace=context.namespace,
        actor=context.get_actor_name() or "",
        actor_id=context.get_actor_id() or "",
    )


def find_hub(lock: RunLock) -> Any | None:
    """Return the actor that holds a run, from whichever namespace; None if it is none of this cluster, or dead.

    Args:
        lock: The lock of the run.
    """
    holder = lock.holder() or {}
    if not lock.is_of_hub or not holder.get("actor"):
        return None
    try:
        actor = ray.get_actor(holder["actor"], namespace=holder.get("namespace"))
    except ValueError:
        return None
    # another cluster may have an actor of that name
    return actor if actor._actor_id.hex() == holder.get("actor_id") else None  # noqa: SLF001 - there is no public way


def on_this_node() -> NodeAffinitySchedulingStrategy:
    """Return where the hub of a run belongs: on the node of the caller, and nowhere else, since its files are there."""
    return NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)


def this_job() -> str:
    """Return the id under which Ray knows the driver of this process."""
    return str(ray.get_runtime_context().get_job_id())


class Drivers:
    """The drivers of a hub; made in its process, where the first one is the one that started it."""

    def __init__(self) -> None:
        self._jobs = {this_job()}

    def add(self, job_id: str) -> None:
        """Count a driver that goes on with the hub."""
        self._jobs.add(job_id)

    def living(self) -> list[str]:
        """Return those that live, for people: their process and its machine."""
        table = ray._private.state.jobs()  # noqa: SLF001 - the public way needs the dashboard
        return [
            f"process {job['DriverPid']} on {job['DriverIPAddress']}"
            for job in table
            if job["JobID"] in self._jobs and not job["IsDead"]
        ]
