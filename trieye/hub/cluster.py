"""Checks whether the nodes of a Ray cluster can run a training: compares their answers with the calling process."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from trieye.exceptions import ConfigurationError

PACKAGES = ("trieye", "ray", "torch", "numpy", "gymnasium", "hydra-core", "pydantic", "msgspec", "cloudpickle")
"""Distributions whose versions are compared."""

_MUST_AGREE = ("trieye", "ray")
_LEAST_FREE = 0.05
_LEAST_FREE_BYTES = 2 << 30
_NOTHING_FREE_BYTES = 100 << 20
_SHOWN = 8
_MOST_OFFSET_S = 0.5
"""Events carry the clock of the process that logged them; a larger offset visibly shifts curves over time."""
_MOST_LATENCY_S = 0.02
_CONNECT_S = 5.0
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Node:
    """State of one node at the time of the check.

    Attributes:
        node_id: Ray's id of the node.
        address: IP address.
        host: Host name.
        is_here: Whether the check was started on this node.
        is_alive: Whether Ray reports the node as alive.
        resources: Total resources by Ray's names, such as `CPU`.
        error: Why the node did not answer; None if it did.
        is_unfit: Whether `error` means that no worker can be started on the node.
        python: Python version.
        executable: Path of the interpreter.
        versions: Version of each of `PACKAGES`; None if it is not installed.
        import_error: Why `import trieye` fails on the node; None if it succeeds.
        disks: {directory: (free, total)} in bytes.
        sees_root: Whether the root directory of runs is the same directory on the node.
        can_write: Whether that directory, or its nearest existing parent, is writable.
        latency_s: Shortest measured round-trip time in seconds.
        offset_s: Lead of the node's clock in seconds, accurate to half the latency.
    """

    node_id: str
    address: str
    host: str
    is_here: bool = False
    is_alive: bool = True
    resources: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    is_unfit: bool = False
    python: str = ""
    executable: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    import_error: str | None = None
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)
    sees_root: bool = True
    can_write: bool = True
    latency_s: float = 0.0
    offset_s: float = 0.0

    @property
    def name(self) -> str:
        """Name of the node in messages."""
        return f"node {self.node_id[:8]} ({self.host or self.address})"


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a cluster check, as lines for the user.

    Attributes:
        problems: Reasons why a training cannot run on all nodes, each with the next step.
        notes: Differences that may be intended.
    """

    problems: list[str]
    notes: list[str]


def offset_of(samples: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the latency and the offset of a remote clock in seconds, from samples (sent at, remote time, received at).

    Uses the sample with the shortest round trip and assumes that the remote clock was read halfway through it
    (F. Cristian, Probabilistic clock synchronization, 1989).
    """
    sent_at, remote_time, received_at = min(samples, key=lambda sample: sample[2] - sample[0])
    return received_at - sent_at, remote_time - (sent_at + received_at) / 2.0


def compare(nodes: list[Node], local_node: Node, root: str) -> Findings:
    """Compare all nodes with the calling process; nodes with the same finding share one line.

    Args:
        nodes: The nodes of the cluster.
        local_node: The calling process (`ray_cluster.this_process`).
        root: Root directory of runs.
    """
    problems: list[tuple[Node, str]] = []
    notes: list[tuple[Node, str]] = []
    for node in nodes:
        if not node.is_alive:
            notes.append((node, "it is dead: start Ray on it again if it should take part"))
        elif node.error is not None:
            problems.append((node, f"it does not answer: {node.error}"))
        else:
            problems += [(node, text) for text in incompatibilities(node, local_node) + _full_disks(node)]
            notes += [(node, text) for text in _notes_of(node, local_node, root)]
    return Findings(by_text(problems), by_text(notes))


def by_text(findings: list[tuple[Node, str]]) -> list[str]:
    """Return one line per text, which begins with the names of its nodes."""
    nodes_by_text: dict[str, list[Node]] = {}
    for node, text in findings:
        nodes_by_text.setdefault(text, []).append(node)
    return [f"{_names(nodes)}: {text}" for text, nodes in nodes_by_text.items()]


def _names(nodes: list[Node]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    node_names = ", ".join(node.host or node.address for node in nodes[:_SHOWN])
    return f"{len(nodes)} nodes ({node_names}{', ...' if len(nodes) > _SHOWN else ''})"


def incompatibilities(node: Node, local_node: Node) -> list[str]:
    """Return why code sent from this process cannot run on a node, each reason with the next step."""
    reasons = []
    version = local_node.versions.get("trieye")
    if node.import_error is not None:
        reasons.append(
            f"{node.executable} cannot import trieye: {node.import_error}; install trieye {version} there, the version "
            f"that is installed here, or start with 'runtime.runtime_env={{pip: [trieye=={version}]}}'"
        )
    if _minor(node.python) != _minor(local_node.python):
        reasons.append(
            f"Python {node.python} there, {local_node.python} here: pickles differ; install the same minor version"
        )
    names = [name for name in _MUST_AGREE if name != "trieye" or node.import_error is None]
    return reasons + [f"{text}; install the same version on both" for text in _differing(names, node, local_node)]


def _differing(names: Sequence[str], node: Node, local_node: Node) -> list[str]:
    """Return a text for each distribution whose versions differ."""
    versions = ((name, node.versions.get(name), local_node.versions.get(name)) for name in names)
    return [
        f"{name} {remote or 'is not installed'} there, {local or 'not installed'} here"
        for name, remote, local in versions
        if remote != local
    ]


def _full_disks(node: Node) -> list[str]:
    warnings = []
    for directory, (free_bytes, total_bytes) in node.disks.items():
        if free_bytes < max(min(_LEAST_FREE * total_bytes, _LEAST_FREE_BYTES), _NOTHING_FREE_BYTES):
            warnings.append(f"only {_gb(free_bytes)} of {_gb(total_bytes)} are free in {directory}; free some space")
    return warnings


def _notes_of(node: Node, local_node: Node, root: str) -> list[str]:
    notes = _differing([name for name in PACKAGES if name not in _MUST_AGREE], node, local_node)
    if not node.can_write:
        notes.append(f"{root} cannot be written there: jobs of a sweep fail there; explorers need no directory")
    elif not node.sees_root:
        notes.append(
            f"{root} is not the same directory there: explorers need none, but a sweep job's run stays on its node "
            "unless persistence.mirror copies it elsewhere"
        )
    if abs(node.offset_s) > max(_MOST_OFFSET_S, node.latency_s):
        notes.append(f"its clock is {node.offset_s:+.2f} s off, which shifts curves over time by as much")
    if node.latency_s > _MOST_LATENCY_S:
        notes.append(f"the round trip takes {node.latency_s * 1000:.0f} ms: use long fragments")
    return notes


def refuse_unreachable(setting: str, address: str) -> None:
    """Fail at once if nothing listens at an address, where Ray would retry for minutes, or if it is of Ray Client.

    `auto` means the value of `RAY_ADDRESS` if that is set.

    Args:
        setting: Key and value as the user typed them, such as `runtime.address=10.0.0.5:6379`; for messages.
        address: The address in the setting.

    Raises:
        ConfigurationError: The address is unreachable, malformed or of Ray Client.
    """
    if address == "auto" and (env_address := os.environ.get("RAY_ADDRESS")):
        setting, address = f"RAY_ADDRESS={env_address}", env_address
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{setting}: Ray Client leaves the program outside the cluster, where it can access neither the replay's "
            "shared memory nor the hub's files. Start the program on a machine of the cluster, or submit it: "
            "`ray job submit --working-dir . -- python -m ... runtime=cluster persistence.root_data_dir=/a/shared/disk`"
        )
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigurationError(
            f"{setting}: the address of a Ray cluster is HOST:PORT, such as 10.0.0.5:6379, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that DNS cannot encode
        raise ConfigurationError(unreachable(setting, error)) from error


def unreachable(setting: str, error: Exception) -> str:
    """Return the message for a cluster that does not answer, or that rejects this program."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"{setting}: no Ray cluster answers there ({error}); run `ray start --head`, or correct the address"
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
    if isinstance(error, ConnectionError) or "authentication" in reason.lower():  # Ray often names no cause
        return (
            f"{setting}: the cluster does not let this program in ({reason}); if it requires a token, run "
            "`export RAY_AUTH_MODE=token` here and copy ~/.ray/auth_token from its head node to this machine"
        )
    return f"{setting}: Ray cannot be joined there ({reason})"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
