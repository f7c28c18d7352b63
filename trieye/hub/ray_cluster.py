"""Asking every node of a Ray cluster how it is."""

import logging
import platform
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trieye.exceptions import ConfigurationError
from trieye.hub import ray_probe
from trieye.hub.cluster import PACKAGES, Node, by_text, misfits, offset_of, refuse_unreachable, unreachable
from trieye.process.progress import say
from trieye.process.signals import children_outlive_signals

NUM_SAMPLES = 7
"""Questions for the time of a node: the fastest answer counts."""


def ask_cluster(address: str, root: Path, timeout_s: float) -> list[Node]:
    """Join a cluster and ask its nodes; nothing of the project is sent there.

    Args:
        address: Of the cluster, as `runtime.address`.
        root: Directory of all runs; a file is made there for a moment, to see which nodes see it.
        timeout_s: How long a node may take to answer.

    Raises:
        ConfigurationError: No cluster answers at the address.
    """
    asked = f"address={address}"
    place = address_to_join(asked, address)
    try:
        with children_outlive_signals():
            ray.init(address=place, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigurationError(unreachable(asked, error)) from error
    try:
        return ask_nodes(root, timeout_s)
    finally:
        ray.shutdown()


def address_to_join(asked: str, address: str) -> str:
    """Return at which address Ray is joined, after a look whether something listens there.

    Ray remembers for `auto` where it was started last, also when that is gone, and then tries for minutes.

    Args:
        asked: What was typed, for messages.
        address: Of a cluster, as `runtime.address`.

    Raises:
        ConfigurationError: Nothing listens there, or no Ray runs here.
    """
    refuse_unreachable(asked, address)
    if address != "auto":
        return address
    try:
        found = ray._private.services.get_ray_address_from_environment(address, None)  # noqa: SLF001 - docs/private_apis.md
    except AttributeError:
        return address
    except ConnectionError as error:
        raise ConfigurationError(
            f"{asked}: no Ray runs on this machine; start one with `ray start --head`, or join one with "
            "`ray start --address=HEAD:6379`"
        ) from error
    refuse_unreachable(f"{asked}, which was {found} when Ray was started here", found)
    return str(found)


def ask_nodes(root: Path, timeout_s: float) -> list[Node]:
    """Ask the nodes of the cluster that this process has joined; see `ask_cluster`."""
    here = ray.get_runtime_context().get_node_id()
    found = sorted(_known(), key=lambda node: (node["NodeID"] != here, not node["Alive"], node["NodeID"]))
    ray.cloudpickle.register_pickle_by_value(ray_probe)
    existing = next(place for place in (root, *root.parents) if place.is_dir())
    token = existing / f".trieye-seen-{uuid.uuid4().hex[:12]}"
    try:
        token.touch()
        asked = [(node, _begin(node["NodeID"], existing, token.name)) for node in found if node["Alive"]]
        until = time.monotonic() + timeout_s
        answers = {node["NodeID"]: _answer(probe, told, until) for node, (probe, told) in asked}
        for _, (probe, _) in asked:
            ray.kill(probe)
    finally:
        token.unlink(missing_ok=True)
        ray.cloudpickle.unregister_pickle_by_value(ray_probe)
    return [_node(node, answers.get(node["NodeID"], {}), is_here=node["NodeID"] == here) for node in found]


def _known() -> list[dict[str, Any]]:
    """Return the nodes that Ray knows of, but for those that are dead and were begun again on the same machine."""
    known: list[dict[str, Any]] = ray.nodes()
    there = {node["NodeManagerAddress"] for node in known if node["Alive"]}
    return [node for node in known if node["Alive"] or node["NodeManagerAddress"] not in there]


def this_process(root: Path) -> Node:
    """Return what this process says of itself, with which nodes are compared."""
    told = ray_probe.Probe().describe(list(PACKAGES), str(root), "")
    return Node("here", "", platform.node(), python=told["python"], versions=told["versions"])


def refuse_misfits(timeout_s: float, *, is_alone_enough: bool = True) -> list[Node]:
    """Refuse a cluster on some node of which nothing that is sent from here can run; return the nodes that answered.

    A node that does not answer in time is told of: it may be starting, or be about to leave.

    Args:
        timeout_s: How long a node may take to answer.
        is_alone_enough: Whether a single node needs no look; it needs one where its workers are prepared first.

    Raises:
        ConfigurationError: It names each such node, and what to do.
    """
    if is_alone_enough and sum(node["Alive"] for node in ray.nodes()) < 2:  # noqa: PLR2004 - this one, and another
        return []
    nodes, here = ask_nodes(Path.cwd(), timeout_s), this_process(Path.cwd())
    unfit: list[tuple[Node, str]] = []
    for node in nodes:
        if not node.is_alive:
            continue
        if node.error is None:
            unfit += [(node, text) for text in misfits(node, here)]
        elif node.is_unfit:
            unfit.append((node, node.error))
        else:
            say(f"{node.name} does not answer: {node.error}")
    found = by_text(unfit)
    if found:
        raise ConfigurationError("; ".join(found) + " (`trieye cluster check` says more)")
    return [node for node in nodes if node.is_alive and node.error is None]


def _begin(node_id: str, root: Path, token: str) -> tuple[Any, Any]:
    where = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    probe: Any = ray.remote(num_cpus=0, scheduling_strategy=where)(ray_probe.Probe).remote()
    return probe, probe.describe.remote(list(PACKAGES), str(root), token)


def _answer(probe: Any, told: Any, until: float) -> dict[str, Any]:
    """Return what a node says, and how late its clock is; or why it does not."""
    try:
        answer = dict(ray.get(told, timeout=max(until - time.monotonic(), 1.0)))
        samples = []
        for _ in range(NUM_SAMPLES):
            asked = time.time()
            now = ray.get(probe.now.remote(), timeout=max(until - time.monotonic(), 1.0))
            samples.append((asked, now, time.time()))
    except ray.exceptions.GetTimeoutError:
        return {"error": "no worker started there in time; see Ray's logs on it"}
    except ray.exceptions.RuntimeEnvSetupError as error:
        reason = [line for line in str(error).splitlines() if line.strip()][-1]  # most of it is a log of pip
        return {"error": f"its runtime environment cannot be made: {reason.strip()}", "is_unfit": True}
    except ray.exceptions.RayError as error:
        return {"error": " ".join(str(error).split())[:300]}
    latency_s, offset_s = offset_of(samples)
    answer["disks"] = {place: (free, total) for place, (free, total) in answer["disks"].items()}
    answer["import_error"] = answer.pop("error")
    return {**answer, "latency_s": latency_s, "offset_s": offset_s}


def _node(found: Mapping[str, Any], answer: Mapping[str, Any], *, is_here: bool) -> Node:
    return Node(
        node_id=found["NodeID"],
        address=found["NodeManagerAddress"],
        host=found["NodeManagerHostname"],
        is_here=is_here,
        is_alive=found["Alive"],
        resources=dict(found.get("Resources") or {}),
        **answer,
    )
