"""What the nodes of a cluster say of themselves, compared with the node that asks."""

import socket
from dataclasses import dataclass, field
from typing import Any

from trieye.exceptions import ConfigurationError

PACKAGES = ("trieye", "ray", "torch", "numpy", "gymnasium", "hydra-core", "pydantic", "msgspec", "cloudpickle")
"""Whose versions are compared."""

_MUST_AGREE = ("trieye", "ray")
_LEAST_FREE = 0.05
_LEAST_FREE_BYTES = 2 << 30
_MOST_OFFSET_S = 0.5
"""Events carry the time of the process that logged them: beyond this, curves over time look wrong."""
_MOST_LATENCY_S = 0.02
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Node:
    """One node, as it was found.

    Attributes:
        node_id: Ray's name of it.
        address: Its IP address.
        host: Its name.
        is_here: Whether the check was started on it.
        is_alive: Whether Ray counts on it.
        resources: What it offers, by Ray's names.
        error: Why it did not answer; None if it did.
        python: Version of its Python.
        executable: Its interpreter.
        versions: Of `PACKAGES`; None where one is not installed.
        import_error: Why `import trieye` fails there; None if it does not.
        disks: {directory: (free, total)} in bytes.
        sees_root: Whether the directory of all runs is the same there.
        latency_s: The shortest way there and back, seconds.
        offset_s: How far its clock is ahead, seconds, with an error of at most half the latency.
    """

    node_id: str
    address: str
    host: str
    is_here: bool = False
    is_alive: bool = True
    resources: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    python: str = ""
    executable: str = ""
    versions: dict[str, str | None] = field(default_factory=dict)
    import_error: str | None = None
    disks: dict[str, tuple[int, int]] = field(default_factory=dict)
    sees_root: bool = True
    latency_s: float = 0.0
    offset_s: float = 0.0

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"node {self.node_id[:8]} ({self.host or self.address})"


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with a cluster, and what is worth knowing.

    Attributes:
        problems: What keeps a training from running on all nodes, with what to do.
        notes: What may be meant so.
    """

    problems: list[str]
    notes: list[str]


def offset_of(samples: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Return latency and offset of another clock, seconds, from (asked at, its time, answered at).

    The sample with the shortest way counts, and its answer is taken for half-way (F. Cristian, Probabilistic clock
    synchronization, 1989).
    """
    asked, told, answered = min(samples, key=lambda sample: sample[2] - sample[0])
    return answered - asked, told - (asked + answered) / 2.0


def compare(nodes: list[Node], here: Node, root: str) -> Findings:
    """Compare all nodes with the process that asks.

    Args:
        nodes: As they were found.
        here: What that process would say of itself.
        root: Directory of all runs.
    """
    problems, notes = [], []
    for node in nodes:
        if not node.is_alive:
            notes.append(f"{node.name} is dead: start Ray there again, if it is to take part")
        elif node.error is not None:
            problems.append(f"{node.name} does not answer: {node.error}")
        else:
            problems += misfits(node, here) + _full_disks(node)
            notes += _notes_of(node, here, root)
    return Findings(problems, notes)


def misfits(node: Node, here: Node) -> list[str]:
    """Return why what this process sends to a node cannot run there, with what to do."""
    found = []
    wanted = here.versions.get("trieye")
    if node.import_error is not None:
        found.append(
            f"{node.name}: trieye cannot be imported by {node.executable}: {node.import_error}; install there what is "
            f"installed here (trieye {wanted}), or start with runtime.env={{pip: [trieye=={wanted}]}}"
        )
    if _minor(node.python) != _minor(here.python):
        found.append(f"{node.name}: Python {node.python} there, {here.python} here: what is sent there cannot be read")
    for name in _MUST_AGREE:
        there, ours = node.versions.get(name), here.versions.get(name)
        if there != ours and not (name == "trieye" and node.import_error is not None):
            found.append(f"{node.name}: {name} {there or 'is not installed'} there, {ours} here; install the same")
    return found


def _full_disks(node: Node) -> list[str]:
    found = []
    for directory, (free, total) in node.disks.items():
        if free < min(_LEAST_FREE * total, _LEAST_FREE_BYTES):
            found.append(f"{node.name}: {_gb(free)} of {_gb(total)} are free in {directory}")
    return found


def _notes_of(node: Node, here: Node, root: str) -> list[str]:
    found = []
    for name in PACKAGES:
        there, ours = node.versions.get(name), here.versions.get(name)
        if name not in _MUST_AGREE and there != ours:
            found.append(f"{node.name}: {name} {there or 'is not installed'} there, {ours or 'not installed'} here")
    if not node.sees_root:
        found.append(
            f"{node.name}: {root} is not the same directory there: explorers need none, but the run of a sweep's job "
            "stays on the node that it ran on, unless persistence.mirror brings it elsewhere"
        )
    if abs(node.offset_s) > max(_MOST_OFFSET_S, node.latency_s):
        found.append(f"{node.name}: its clock is {node.offset_s:+.2f} s off: curves over time are shifted by that")
    if node.latency_s > _MOST_LATENCY_S:
        found.append(f"{node.name}: {node.latency_s * 1000:.0f} ms there and back: let fragments be long")
    return found


def refuse_unreachable(key: str, address: str) -> None:
    """Refuse an address at which nothing listens, at once: Ray would try for minutes; and one of Ray Client.

    Raises:
        ConfigurationError: It names the key and the address.
    """
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{key}={address}: Ray Client leaves the program outside of the cluster, where it reads neither the memory "
            "of the replay nor the files of the hub. Start it on a machine of the cluster, or send it there: "
            "`ray job submit --working-dir . -- python -m ... runtime=cluster persistence.root_data_dir=/a/shared/disk`"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto`, `local`: there is nothing to ask
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ConfigurationError(unreachable(key, address, error)) from error


def unreachable(key: str, address: str, error: object) -> str:
    """Return what to say where no cluster answers, or one that does not trust this machine."""
    if "authentication" in f"{type(error).__name__} {error}".lower():
        return (
            f"{key}={address}: the Ray cluster there wants its token: copy ~/.ray/auth_token of its head here, and set "
            f"RAY_AUTH_MODE=token ({type(error).__name__})"
        )
    return f"{key}={address}: no Ray cluster answers there ({error}); start one with `ray start --head`, or use another"


def as_plain(node: Node) -> dict[str, Any]:
    """Return a node as plain data, for JSON."""
    return {name: getattr(node, name) for name in Node.__slots__}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
