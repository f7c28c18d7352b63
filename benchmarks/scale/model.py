"""Cost model of the data plane: the load from explorers, its cost for each receiver, and where a receiver saturates.

Pure functions of numbers. A receiver handles its messages sequentially; a message costs a fixed time and a time that
grows with its size (`Cost`). A receiver is saturated when the messages of one second cost one second.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["replay", "hub", "learner"]
Transport = Literal["object_store", "checkpoint", "collective"]

SMALL_BYTES = 65_536
"""Maximum size of weights that are sent with each assigned fragment (`training/exploring/in_ray.py`)."""

MOST_EVENTS = 10_000
"""Maximum number of events in a batch of a flusher (`run/flusher.py`)."""

MOST = 1e9
"""Upper bound of the number of explorers."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Rates and message sizes of an explorer.

    Attributes:
        name: Name of the kind.
        steps_per_s: Environment steps per second, summed over its environments.
        fragment_rows: Rows of a fragment, which is one batch of the replay.
        row_bytes: Size of a row in a message to the replay.
        policy_bytes: Size of the weights.
        events_per_s: Values that the process of the explorer logs per second.
        flush_interval_s: Interval between batches of logged values.
    """

    name: str
    steps_per_s: float
    fragment_rows: int
    row_bytes: float
    policy_bytes: int
    events_per_s: float = 50.0
    flush_interval_s: float = 0.2

    @property
    def fragments_per_s(self) -> float:
        """Fragments per second of one explorer, each with a result and a batch of rows."""
        return self.steps_per_s / self.fragment_rows


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of a receiver for a message, in seconds.

    Attributes:
        call_s: Time per message.
        unit_s: Time per unit of a message: a byte of a batch of rows, an event of a batch of events, or a
            pair of explorers of a learner.
    """

    call_s: float
    unit_s: float = 0.0

    def seconds(self, units: float) -> float:
        """Return the time for a message."""
        return self.call_s + self.unit_s * units

    def with_share(self, processors: float) -> "Cost":
        """Return the cost for a receiver that gets a share of a processor."""
        share = min(max(processors, 1e-3), 1.0)
        return Cost(self.call_s / share, self.unit_s / share)

    @classmethod
    def of(cls, small: tuple[float, float], large: tuple[float, float]) -> "Cost":
        """Fit the cost to two measurements, each a pair of units per message and messages per CPU second."""
        (few, few_per_s), (many, many_per_s) = small, large
        unit_s = max((1 / many_per_s - 1 / few_per_s) / (many - few), 0.0)
        return cls(max(1 / few_per_s - unit_s * few, 0.0), unit_s)


@dataclass(frozen=True, slots=True)
class Load:
    """Messages per second for a receiver, and the units of a message (see `Cost`)."""

    per_s: float
    units: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted throughput of a receiver under a load.

    Attributes:
        offered_per_s: Messages sent per second.
        capacity_per_s: Maximum throughput of the receiver.
        utilization: Processor time per second; a receiver above 1 is saturated.
    """

    offered_per_s: float
    capacity_per_s: float
    utilization: float

    @property
    def accepted_per_s(self) -> float:
        """Messages handled per second."""
        return min(self.offered_per_s, self.capacity_per_s)


def load_of(part: Part, num_explorers: float, kind: Kind) -> Load:
    """Return the load that explorers put on a part.

    A step of the learner consumes one fragment of each explorer and publishes a version, so an explorer receives one
    version per fragment. After each fragment result, the learner checks for each explorer whether it may start a
    fragment; each check visits all explorers (`Explorers._may_begin`), hence the square.
    """
    fragments_per_s = num_explorers * kind.fragments_per_s
    loads: dict[Part, Load] = {
        "replay": Load(fragments_per_s, kind.fragment_rows * kind.row_bytes),
        "hub": Load(num_explorers / kind.flush_interval_s, kind.events_per_s * kind.flush_interval_s),
        "learner": Load(fragments_per_s, num_explorers**2),
    }
    return loads[part]


def predict(num_explorers: float, kind: Kind, costs: Mapping[Part, Cost]) -> dict[Part, Forecast]:
    """Return the forecast for each part with a cost."""
    return {part: forecast(part, num_explorers, kind, cost) for part, cost in costs.items()}


def forecast(part: Part, num_explorers: float, kind: Kind, cost: Cost) -> Forecast:
    """Return the forecast for one part."""
    load = load_of(part, num_explorers, kind)
    seconds = cost.seconds(load.units)
    capacity_per_s = math.inf if not seconds else 1 / seconds
    if part == "hub":
        capacity_per_s = num_explorers / hub_cycle_s(num_explorers, kind, cost)
    return Forecast(load.per_s, capacity_per_s, load.per_s * seconds)


def hub_cycle_s(num_explorers: float, kind: Kind, cost: Cost) -> float:
    """Return the seconds between two batches of a client that always has one in flight.

    A flusher sends all events since its last batch, so batches grow if the hub falls behind, and their fixed cost is
    amortized: in one cycle, the hub handles `n` batches of `events_per_s * cycle` events.
    """
    busy = num_explorers * kind.events_per_s * cost.unit_s
    cycle_s = math.inf if busy >= 1 else num_explorers * cost.call_s / (1 - busy)
    return min(cycle_s, num_explorers * cost.seconds(MOST_EVENTS))


def saturates_at(part: Part, kind: Kind, cost: Cost) -> float:
    """Return the number of explorers that saturates a part; `MOST` if it never saturates.

    For the hub, this is the number above which batches wait longer than a flush interval; events accumulate only above
    `hub_events_saturate_at`.
    """
    return _first(lambda num: forecast(part, num, kind, cost).utilization >= 1)


def hub_events_saturate_at(kind: Kind, cost: Cost) -> float:
    """Return the number of explorers whose events saturate the hub in batches of the maximum size."""
    return min(1 / (kind.events_per_s * cost.seconds(MOST_EVENTS) / MOST_EVENTS), MOST)


def _first(is_full: Callable[[float], bool]) -> float:
    """Return the smallest number of explorers for which a monotonic condition holds."""
    low, high = 0.0, 1.0
    while not is_full(high):
        low, high = high, 2 * high
        if high > MOST:
            return MOST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_full(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per second into and out of the learner's machine, which also runs the replay and the hub.

    Attributes:
        rows: Rows to the replay.
        events: Events to the hub.
        weights: Weights to all receivers.
    """

    rows: float
    events: float
    weights: float

    @property
    def total(self) -> float:
        """Sum of all traffic."""
        return self.rows + self.events + self.weights


def traffic(
    num_explorers: float,
    kind: Kind,
    *,
    num_nodes: int,
    transport: Transport,
    event_bytes: float,
    versions_per_s: float | None = None,
) -> Traffic:
    """Return the network traffic if no explorer runs on the learner's machine.

    Args:
        num_explorers: Number of explorers.
        kind: Rates and message sizes of each explorer.
        num_nodes: Number of machines that run explorers.
        transport: Transport of the weights.
        event_bytes: Size of an event in a message to the hub.
        versions_per_s: Published versions per second; None: the fragments per second of an explorer.
    """
    versions = kind.fragments_per_s if versions_per_s is None else versions_per_s
    assignments = num_explorers * kind.fragments_per_s
    return Traffic(
        rows=num_explorers * kind.steps_per_s * kind.row_bytes,
        events=num_explorers * kind.events_per_s * event_bytes,
        weights=weights_bytes_per_s(kind.policy_bytes, transport, num_explorers, num_nodes, versions, assignments),
    )


def weights_bytes_per_s(
    policy_bytes: int, transport: Transport, num_explorers: float, num_nodes: int, versions: float, assignments: float
) -> float:
    """Return the bytes of weights sent per second.

    The object store sends one copy to each machine, and small weights with each assignment. Files of the checkpoint
    transport are sent to each machine at least once. A broadcast is sent to each explorer.
    """
    if transport == "collective":
        return policy_bytes * versions * num_explorers
    if transport == "object_store" and policy_bytes <= SMALL_BYTES:
        return policy_bytes * assignments
    return policy_bytes * versions * num_nodes


def save_bytes(policy_bytes: float, optimizer_bytes: float, new_rows: float, stored_row_bytes: float) -> float:
    """Return the bytes of one checkpoint: the policy, its optimizer, and the rows since the previous checkpoint."""
    return policy_bytes + optimizer_bytes + new_rows * stored_row_bytes


def explorers_of_bandwidth(bytes_per_s: float, num_explorers: float, reference: Traffic) -> float:
    """Return the number of explorers that saturates a bandwidth, given the traffic of `num_explorers` of them."""
    return bytes_per_s / (reference.total / num_explorers)


def is_within(value: float, expected: float, factor: float) -> bool:
    """Return True if two positive numbers differ by at most a factor."""
    return value > 0 and expected > 0 and 1 / factor <= value / expected <= factor
