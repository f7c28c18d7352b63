"""The model of the data plane: what explorers send, what that costs each receiver, and where a receiver is full.

Pure functions of numbers. Every receiver takes its messages one after the other, and needs for each a time that is
fixed, and one that grows with the message: `Cost`. A part is full where the messages of a second take a second.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["replay", "hub", "learner", "board"]
Transport = Literal["object_store", "checkpoint", "collective"]

SMALL_BYTES = 65_536
"""Weights up to here travel with each fragment that is granted (`training/exploring/in_ray.py`)."""

MOST_EVENTS = 10_000
"""In one batch of a flusher (`run/flusher.py`)."""

MOST = 1e9
"""More explorers than anybody has."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What one explorer does.

    Attributes:
        name: Of the kind.
        steps_per_s: Environment steps, of all its environments together.
        fragment_rows: Rows of a fragment, which goes to the replay as one batch.
        row_bytes: Of a row on its way to the replay.
        policy_bytes: Of the weights.
        events_per_s: Values that code in the process of the explorer logs.
        flush_interval_s: How often they are sent.
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
        """Fragments, reports and batches of rows of one explorer."""
        return self.steps_per_s / self.fragment_rows


@dataclass(frozen=True, slots=True)
class Cost:
    """What a receiver needs for a message, in seconds of one processor.

    Attributes:
        call_s: For each message.
        unit_s: For each unit of it: a byte of a batch of rows, an event of a batch of events, a
            pair of explorers of a learner.
    """

    call_s: float
    unit_s: float = 0.0

    def seconds(self, units: float) -> float:
        """Return how long a message takes."""
        return self.call_s + self.unit_s * units

    def with_share(self, processors: float) -> "Cost":
        """Return the cost for a receiver that gets so much of a machine, one processor at most."""
        share = min(max(processors, 1e-3), 1.0)
        return Cost(self.call_s / share, self.unit_s / share)

    @classmethod
    def of(cls, small: tuple[float, float], large: tuple[float, float]) -> "Cost":
        """Return the cost that explains two measurements, each of units in a message and messages per second of CPU."""
        (few, few_per_s), (many, many_per_s) = small, large
        unit_s = max((1 / many_per_s - 1 / few_per_s) / (many - few), 0.0)
        return cls(max(1 / few_per_s - unit_s * few, 0.0), unit_s)


@dataclass(frozen=True, slots=True)
class Load:
    """Messages per second for a receiver, and the units of each; see `Cost`."""

    per_s: float
    units: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What becomes of the load of a receiver.

    Attributes:
        offered_per_s: Messages that are sent.
        capacity_per_s: Messages that the receiver could take.
        utilization: Seconds of work in a second; above 1 the receiver is full.
    """

    offered_per_s: float
    capacity_per_s: float
    utilization: float

    @property
    def accepted_per_s(self) -> float:
        """Messages that are taken."""
        return min(self.offered_per_s, self.capacity_per_s)


def load_of(part: Part, num_explorers: float, kind: Kind) -> Load:
    """Return what explorers send to a part.

    The learner learns from one fragment of each explorer in a step and publishes after each, so every explorer hears of
    as many versions as it collects fragments. With each report the learner looks which explorers may begin a fragment,
    and for each of them counts all (`Explorers._may_begin`), hence the square.
    """
    fragments_per_s = num_explorers * kind.fragments_per_s
    loads: dict[Part, Load] = {
        "replay": Load(fragments_per_s, kind.fragment_rows * kind.row_bytes),
        "hub": Load(num_explorers / kind.flush_interval_s, kind.events_per_s * kind.flush_interval_s),
        "learner": Load(fragments_per_s, num_explorers**2),
        "board": Load(fragments_per_s, 0.0),
    }
    return loads[part]


def predict(num_explorers: float, kind: Kind, costs: Mapping[Part, Cost]) -> dict[Part, Forecast]:
    """Return what becomes of the load of each part whose cost is known."""
    return {part: forecast(part, num_explorers, kind, cost) for part, cost in costs.items()}


def forecast(part: Part, num_explorers: float, kind: Kind, cost: Cost) -> Forecast:
    """Return what becomes of the load of a part."""
    load = load_of(part, num_explorers, kind)
    seconds = cost.seconds(load.units)
    capacity_per_s = math.inf if not seconds else 1 / seconds
    if part == "hub":
        capacity_per_s = num_explorers / hub_cycle_s(num_explorers, kind, cost)
    return Forecast(load.per_s, capacity_per_s, load.per_s * seconds)


def hub_cycle_s(num_explorers: float, kind: Kind, cost: Cost) -> float:
    """Return the seconds between two batches of a client that always has one under way.

    A flusher sends all that was logged since its last batch, so batches grow where the hub is behind, and their fixed
    cost counts less: the hub takes `n` batches of `events_per_s * cycle` events in a cycle.
    """
    busy = num_explorers * kind.events_per_s * cost.unit_s
    cycle_s = math.inf if busy >= 1 else num_explorers * cost.call_s / (1 - busy)
    return min(cycle_s, num_explorers * cost.seconds(MOST_EVENTS))


def saturates_at(part: Part, kind: Kind, cost: Cost) -> float:
    """Return the number of explorers from which on a part is full; `MOST` if it never is.

    The hub is full in this sense where values are accepted later than after one more flush interval;
    `hub_events_saturate_at` says where values pile up.
    """
    return _first(lambda num: forecast(part, num, kind, cost).utilization >= 1)


def hub_events_saturate_at(kind: Kind, cost: Cost) -> float:
    """Return the number of explorers whose values the hub can just take in batches as large as they get."""
    return min(1 / (kind.events_per_s * cost.seconds(MOST_EVENTS) / MOST_EVENTS), MOST)


def _first(is_full: Callable[[float], bool]) -> float:
    """Return where something that grows with the number of explorers begins to hold."""
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
    """Bytes per second into and out of the machine of the learner, where replay and hub are, too.

    Attributes:
        rows: Of rows to the replay.
        events: To the hub.
        weights: Of weights, all receivers together.
    """

    rows: float
    events: float
    weights: float

    @property
    def total(self) -> float:
        """All together."""
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
    """Return what goes over the network if all explorers are on other machines than the learner.

    Args:
        num_explorers: How many.
        kind: Of what kind.
        num_nodes: Machines on which they are.
        transport: Brings the weights.
        event_bytes: Of an event on its way to the hub.
        versions_per_s: How often weights are published; as often as an explorer collects a fragment if None.
    """
    versions = kind.fragments_per_s if versions_per_s is None else versions_per_s
    grants = num_explorers * kind.fragments_per_s
    return Traffic(
        rows=num_explorers * kind.steps_per_s * kind.row_bytes,
        events=num_explorers * kind.events_per_s * event_bytes,
        weights=weights_bytes_per_s(kind.policy_bytes, transport, num_explorers, num_nodes, versions, grants),
    )


def weights_bytes_per_s(
    policy_bytes: int, transport: Transport, num_explorers: float, num_nodes: int, versions: float, grants: float
) -> float:
    """Return the bytes of weights that travel in a second.

    The object store brings one copy to each machine, and small weights with each grant; files of the checkpoint
    transport are read by each explorer, and travel to each machine at least once; a broadcast reaches each explorer.
    """
    if transport == "collective":
        return policy_bytes * versions * num_explorers
    if transport == "object_store" and policy_bytes <= SMALL_BYTES:
        return policy_bytes * grants
    return policy_bytes * versions * num_nodes


def save_bytes(policy_bytes: float, optimizer_bytes: float, new_rows: float, stored_row_bytes: float) -> float:
    """Return what one checkpoint writes: the policy, its optimizer, and the rows since the checkpoint before."""
    return policy_bytes + optimizer_bytes + new_rows * stored_row_bytes


def explorers_of_bandwidth(bytes_per_s: float, num_explorers: float, found: Traffic) -> float:
    """Return how many explorers a network can carry, of which some make so much traffic."""
    return bytes_per_s / (found.total / num_explorers)


def is_within(found: float, expected: float, factor: float) -> bool:
    """Tell whether two positive numbers differ by a factor at most."""
    return found > 0 and expected > 0 and 1 / factor <= found / expected <= factor
