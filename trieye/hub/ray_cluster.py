"""Joins a Ray cluster and probes every node: versions, clock, disks, and whether code sent from here can run there."""

import contextlib
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
from trieye.hub.cluster import PACKAGES, Node, by_text, incompatibilities, offset_of, refuse_unreachable, unreachable
from trieye.process.progress import say
from trieye.process.signals import children_outlive_signals

NUM_SAMPLES = 7
"""Clock requests per node; the fastest answer counts."""


def ask_cluster(address: str, root: Path, timeout_s: float) -> list[Node]:
    """Join a cluster, probe its nodes and leave again; no file of the project is sent.

    Args:
        address: Address of the cluster, as `runtime.address`.
        root: Root directory of runs; a temporary file in it identifies the nodes that share it.
        timeout_s: Seconds that a node may take to answer.

    Raises:
        ConfigurationError: No cluster answers at the address.
    """
    setting = f"address={address}"
    resolved_address = address_to_join(setting, address)
    try:
        with children_outlive_signals():
            ray.init(address=resolved_address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigurationError(unreachable(setting, error)) from error
    try:
        return ask_nodes(root, timeout_s)
    finally:
        ray.shutdown()


def address_to_join(setting: str, address: str) -> str:
    """Return the address that `ray.init` should join, after checking that something listens there.

    For `auto`, Ray uses the address of the last start, and retries for minutes if that Ray has ended.

    Args:
        setting: Key and value as the user typed them, for messages.
        address: Address of a cluster, as `runtime.address`.

    Raises:
        ConfigurationError: Nothing listens at the address, or `auto` finds no Ray on this machine.
    """
    refuse_unreachable(setting, address)
    if address != "auto":
        return address
    try:
        detected_address = ray._private.services.get_ray_address_from_environment(address, None)  # noqa: SLF001 - docs/private_apis.md
    except AttributeError:
        return address
    except ConnectionError as error:
        raise ConfigurationError(
            f"{setting}: no Ray runs on this machine; start one with `ray start --head`, or join one with "
            "`ray start --address=HEAD:6379`"
        ) from error
    refuse_unreachable(f"{setting}, which was {detected_address} when Ray was started here", detected_address)
    return str(detected_address)


def ask_nodes(root: Path, timeout_s: float) -> list[Node]:
    """Probe the nodes of the cluster that this process has joined; see `ask_cluster`."""
    own_node_id = ray.get_runtime_context().get_node_id()
    entries = sorted(_ray_nodes(), key=lambda node: (node["NodeID"] != own_node_id, not node["Alive"], node["NodeID"]))
    ray.cloudpickle.register_pickle_by_value(ray_probe)
    existing_dir = next(directory for directory in (root, *root.parents) if directory.is_dir())
    token = existing_dir / f".trieye-seen-{uuid.uuid4().hex[:12]}"
    try:
        with contextlib.suppress(OSError):  # a directory that cannot be written identifies no node
            token.touch()
        probes = [(node, _start_probe(node["NodeID"], existing_dir, token.name)) for node in entries if node["Alive"]]
        deadline = time.monotonic() + timeout_s
        answers = {node["NodeID"]: _answer(probe, description, deadline) for node, (probe, description) in probes}
        for _, (probe, _) in probes:
            ray.kill(probe)
    finally:
        with contextlib.suppress(OSError):
            token.unlink()
        ray.cloudpickle.unregister_pickle_by_value(ray_probe)
    return [_node(node, answers.get(node["NodeID"], {}), is_here=node["NodeID"] == own_node_id) for node in entries]


def _ray_nodes() -> list[dict[str, Any]]:
    """Return Ray's list of nodes without dead ones on whose machine Ray was started again."""
    nodes: list[dict[str, Any]] = ray.nodes()
    alive = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    return [node for node in nodes if node["Alive"] or node["NodeManagerAddress"] not in alive]


def this_process(root: Path) -> Node:
    """Return this process as a node, for comparison with the others."""
    description = ray_probe.Probe().describe(list(PACKAGES), str(root), "")
    return Node("here", "", platform.node(), python=description["python"], versions=description["versions"])


def refuse_incompatible_nodes(timeout_s: float, *, skips_single_node: bool = True) -> list[Node]:
    """Refuse a cluster with a node that cannot run code sent from here; return the nodes that answered.

    A node that does not answer in time is only reported: it may be starting or about to leave.

    Args:
        timeout_s: Seconds that a node may take to answer.
        skips_single_node: Skip the check if the cluster has one node. The check is needed if `runtime.runtime_env`
            prepares its workers.

    Raises:
        ConfigurationError: A node cannot run the code; the message names each such node and the next step.
    """
    if skips_single_node and sum(node["Alive"] for node in ray.nodes()) < 2:  # noqa: PLR2004 - this one, and another
        return []
    nodes, local_node = ask_nodes(Path.cwd(), timeout_s), this_process(Path.cwd())
    unfit_nodes: list[tuple[Node, str]] = []
    for node in nodes:
        if not node.is_alive:
            continue
        if node.error is None:
            unfit_nodes += [(node, text) for text in incompatibilities(node, local_node)]
        elif node.is_unfit:
            unfit_nodes.append((node, node.error))
        else:
            say(f"{node.name} does not answer: {node.error}")
    if problems := by_text(unfit_nodes):
        raise ConfigurationError("; ".join(problems) + " (`trieye cluster check` shows the details)")
    return [node for node in nodes if node.is_alive and node.error is None]


def _start_probe(node_id: str, root: Path, token: str) -> tuple[Any, Any]:
    strategy = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    probe: Any = ray.remote(num_cpus=0, scheduling_strategy=strategy)(ray_probe.Probe).remote()
    return probe, probe.describe.remote(list(PACKAGES), str(root), token)


def _answer(probe: Any, description: Any, deadline: float) -> dict[str, Any]:
    """Return the description of a node with the offset of its clock, or why it did not answer."""
    try:
        answer = dict(ray.get(description, timeout=max(deadline - time.monotonic(), 1.0)))
        samples = []
        for _ in range(NUM_SAMPLES):
            sent_at = time.time()
            remote_time = ray.get(probe.now.remote(), timeout=max(deadline - time.monotonic(), 1.0))
            samples.append((sent_at, remote_time, time.time()))
    except ray.exceptions.GetTimeoutError:
        return {"error": "no worker started there in time; see Ray's logs on that node"}
    except ray.exceptions.RuntimeEnvSetupError as error:
        reason = [line for line in str(error).splitlines() if line.strip()][-1]  # most of it is a log of pip
        return {"error": f"its runtime environment cannot be created: {reason.strip()}", "is_unfit": True}
    except ray.exceptions.RayError as error:
        return {"error": " ".join(str(error).split())[:300]}
    latency_s, offset_s = offset_of(samples)
    return {**answer, "latency_s": latency_s, "offset_s": offset_s}


def _node(entry: Mapping[str, Any], answer: Mapping[str, Any], *, is_here: bool) -> Node:
    return Node(
        node_id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        host=entry["NodeManagerHostname"],
        is_here=is_here,
        is_alive=entry["Alive"],
        resources=dict(entry.get("Resources") or {}),
        **answer,
    )
