"""What the nodes of a cluster say of themselves, compared with the node that asks."""

import os
import socket
from dataclasses import dataclass, field

from trieye.exceptions import ConfigurationError

PACKAGES = ("trieye", "ray", "torch", "numpy", "gymnasium", "hydra-core", "pydantic", "msgspec", "cloudpickle")
"""Whose versions are compared."""

_MUST_AGREE = ("trieye", "ray")
_LEAST_FREE = 0.05
_LEAST_FREE_BYTES = 2 << 30
_NOTHING_FREE_BYTES = 100 << 20
_SHOWN = 8
_MOST_OFFSET_S = 0.5
"""Events carry the time of the process that logged them: beyond this, curves over time look wrong."""
_MOST_LATENCY_S = 0.02
_CONNECT_S = 5.0
_LONGEST_REASON = 300


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
        is_unfit: Whether what it said instead is that no worker can be started there.
        python: Version of its Python.
        executable: Its interpreter.
        versions: Of `PACKAGES`; None where one is not installed.
        import_error: Why `import trieye` fails there; None if it does not.
        disks: {directory: (free, total)} in bytes.
        sees_root: Whether the directory of all runs is the same there.
        can_write: Whether that directory, or the nearest one above it that is there, can be written.
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
    """Compare all nodes with the process that asks; what is the same of several nodes is said once.

    Args:
        nodes: As they were found.
        here: What that process would say of itself.
        root: Directory of all runs.
    """
    problems: list[tuple[Node, str]] = []
    notes: list[tuple[Node, str]] = []
    for node in nodes:
        if not node.is_alive:
            notes.append((node, "it is dead: start Ray there again, if it is to take part"))
        elif node.error is not None:
            problems.append((node, f"it does not answer: {node.error}"))
        else:
            problems += [(node, text) for text in misfits(node, here) + _full_disks(node)]
            notes += [(node, text) for text in _notes_of(node, here, root)]
    return Findings(by_text(problems), by_text(notes))


def by_text(found: list[tuple[Node, str]]) -> list[str]:
    """Return lines that say of which nodes each text holds."""
    held: dict[str, list[Node]] = {}
    for node, text in found:
        held.setdefault(text, []).append(node)
    return [f"{_names(nodes)}: {text}" for text, nodes in held.items()]


def _names(nodes: list[Node]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    shown = ", ".join(node.host or node.address for node in nodes[:_SHOWN])
    return f"{len(nodes)} nodes ({shown}{', ...' if len(nodes) > _SHOWN else ''})"


def misfits(node: Node, here: Node) -> list[str]:
    """Return why what this process sends to a node cannot run there, with what to do."""
    found = []
    wanted = here.versions.get("trieye")
    if node.import_error is not None:
        found.append(
            f"trieye cannot be imported by {node.executable}: {node.import_error}; install there what is installed "
            f"here (trieye {wanted}), or start with 'runtime.runtime_env={{pip: [trieye=={wanted}]}}'"
        )
    if _minor(node.python) != _minor(here.python):
        found.append(f"Python {node.python} there, {here.python} here: what is sent there cannot be read")
    for name in _MUST_AGREE:
        there, ours = node.versions.get(name), here.versions.get(name)
        if there != ours and not (name == "trieye" and node.import_error is not None):
            found.append(f"{name} {there or 'is not installed'} there, {ours} here; install the same")
    return found


def _full_disks(node: Node) -> list[str]:
    found = []
    for directory, (free, total) in node.disks.items():
        if free < max(min(_LEAST_FREE * total, _LEAST_FREE_BYTES), _NOTHING_FREE_BYTES):
            found.append(f"{_gb(free)} of {_gb(total)} are free in {directory}")
    return found


def _notes_of(node: Node, here: Node, root: str) -> list[str]:
    found = []
    for name in PACKAGES:
        there, ours = node.versions.get(name), here.versions.get(name)
        if name not in _MUST_AGREE and there != ours:
            found.append(f"{name} {there or 'is not installed'} there, {ours or 'not installed'} here")
    if not node.can_write:
        found.append(f"{root} cannot be written there: jobs of a sweep fail there; explorers need no directory")
    elif not node.sees_root:
        found.append(
            f"{root} is not the same directory there: explorers need none, but the run of a sweep's job stays on the "
            "node that it ran on, unless persistence.mirror brings it elsewhere"
        )
    if abs(node.offset_s) > max(_MOST_OFFSET_S, node.latency_s):
        found.append(f"its clock is {node.offset_s:+.2f} s off: curves over time are shifted by that")
    if node.latency_s > _MOST_LATENCY_S:
        found.append(f"{node.latency_s * 1000:.0f} ms there and back: let fragments be long")
    return found


def refuse_unreachable(asked: str, address: str) -> None:
    """Refuse an address at which nothing listens, at once: Ray would try for minutes; and one of Ray Client.

    `auto` is what `RAY_ADDRESS` says, where that is set.

    Args:
        asked: What was typed, such as `runtime.address=10.0.0.5:6379`.
        address: The address in it.

    Raises:
        ConfigurationError: It says what was asked.
    """
    if address == "auto" and (told := os.environ.get("RAY_ADDRESS")):
        asked, address = f"RAY_ADDRESS={told}", told
    if address.startswith("ray://"):
        raise ConfigurationError(
            f"{asked}: Ray Client leaves the program outside of the cluster, where it reads neither the memory of the "
            "replay nor the files of the hub. Start it on a machine of the cluster, or send it there: "
            "`ray job submit --working-dir . -- python -m ... runtime=cluster persistence.root_data_dir=/a/shared/disk`"
        )
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigurationError(f"{asked}: the address of a Ray cluster is HOST:PORT, such as 10.0.0.5:6379, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        raise ConfigurationError(unreachable(asked, error)) from error


def unreachable(asked: str, error: Exception) -> str:
    """Return what to say where no cluster answers, or one that does not let this program in."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"{asked}: no Ray cluster answers there ({error}); start one with `ray start --head`, or use another"
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
    if isinstance(error, ConnectionError) or "authentication" in reason.lower():  # Ray often does not say which
        return (
            f"{asked}: what listens there does not let this program in ({reason}); a cluster that wants its token does "
            "so: `export RAY_AUTH_MODE=token` here, and copy ~/.ray/auth_token of its head here"
        )
    return f"{asked}: Ray cannot be joined there ({reason})"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
