"""Inboxes: reports that wait to be learned from; their rows are in the replay, or in a buffer of fragments."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch

from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules, Lease
from trieye.training.exploring.explorer import Report
from trieye.training.policy import Moments
from trieye.training.rows import Rows

_CONTENT = ("payload",)


class Inbox(Protocol):
    """Reports in the order in which they are learned from.

    Attributes:
        max_staleness: Versions that a fragment may be behind when it is learned from; None for no bound.
        is_bounded: Whether there is such a bound, and fragments can be learned from in time: the oldest ones first.
    """

    max_staleness: int | None
    is_bounded: bool

    def put(self, report: Report, incarnation: int) -> str:
        """Take a report; return why its fragment is refused, empty if it is not."""

    def counts(self) -> Counter[int]:
        """Return how many wait, by explorer."""

    def versions(self) -> list[int]:
        """Return the lowest version of each that waits."""

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Hand out `n` reports, at least so many wait, and their rows; no rows if those went to the replay."""

    def set_version(self, version: int) -> list[Report]:
        """Take note of the newest version; return the reports whose rows were dropped, as they are too stale now."""


class Reports:
    """Reports whose rows are in the replay.

    Args:
        num_envs: Environments of an explorer.
        device: Of the learner.
        tell: Tells the replay the newest version.
    """

    def __init__(self, num_envs: int, device: torch.device, tell: Callable[[int], None]) -> None:
        self._tell, self.max_staleness, self.is_bounded = tell, None, False
        self._waiting: list[Report] = []
        self._nothing = Rows.nothing(num_envs, device)

    def put(self, report: Report, incarnation: int) -> str:
        """Take a report; see `Inbox`."""
        del incarnation
        self._waiting.append(report)
        return ""

    def counts(self) -> Counter[int]:
        """Return how many wait; see `Inbox`."""
        return Counter(report.explorer for report in self._waiting)

    def versions(self) -> list[int]:
        """Return the versions of those that wait; see `Inbox`."""
        return [report.version_min for report in self._waiting]

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Hand out reports; see `Inbox`."""
        self._waiting.sort(key=lambda report: report.order)
        taken, self._waiting = self._waiting[:n], self._waiting[n:]
        return taken, self._nothing

    def set_version(self, version: int) -> list[Report]:
        """Tell the replay, which bounds staleness by itself."""
        self._tell(version)
        return []

    def metrics(self) -> dict[str, float]:
        """Return nothing; the replay has metrics of its own."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the reports as plain data."""
        return {"reports": [as_data(report) for report in self._waiting]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back what `state_dict` returned."""
        self._waiting = [from_data(data) for data in state["reports"]]

    def close(self) -> None:
        """Do nothing."""


class Fragments:
    """Reports with their rows, in a `FragmentBuffer`.

    Args:
        rules: Of the buffer.
        session: Of the run.
        device: Where rows are handed out.
        seed: Of the draws, where the rules choose at random.
    """

    def __init__(self, rules: FragmentRules, session: str, device: torch.device, *, seed: int) -> None:
        self._buffer = FragmentBuffer(rules, seed=seed)
        self._session, self._device = session, device
        self._reports: dict[tuple[int, int], Report] = {}
        self.max_staleness = rules.max_staleness
        self.is_bounded = rules.max_staleness is not None and rules.sampler == "oldest"

    def put(self, report: Report, incarnation: int) -> str:
        """Take a report; see `Inbox`."""
        meta = FragmentMeta(
            f"explorer-{report.explorer}", report.number, report.version_min, self._session, incarnation
        )
        result = self._buffer.add(report.payload, meta)
        if result.status == "rejected":
            raise ValueError(f"a fragment does not fit those before it: {result.reason}")
        report.payload = None
        if result.is_kept:
            self._reports[report.explorer, report.number] = report
        return "" if result.is_kept else result.status.replace("_", " ")

    def counts(self) -> Counter[int]:
        """Return how many wait; see `Inbox`."""
        return Counter(explorer for explorer, _ in self._reports)

    def versions(self) -> list[int]:
        """Return the versions of those that wait; see `Inbox`."""
        return [report.version_min for report in self._reports.values()]

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Hand out reports; see `Inbox`."""
        lease = self._buffer.fetch(n, timeout_s=0)
        try:
            return self._opened(lease)
        finally:
            self._buffer.release(lease)

    def _opened(self, lease: Lease) -> tuple[list[Report], Rows]:
        fragments = [fragment for chunk in lease.chunks for fragment in chunk.fragments]
        keys = [(int(fragment.meta.worker.rpartition("-")[2]), fragment.meta.fid) for fragment in fragments]
        order = sorted(range(len(keys)), key=lambda place: keys[place])
        rows = Rows.of_payloads([fragments[place].data for place in order], self._device)
        reports = [self._reports.pop(keys[place]) for place in order if keys[place] in self._reports]
        return reports, rows

    def set_version(self, version: int) -> list[Report]:
        """Let go what is too stale; see `Inbox`."""
        self._buffer.set_version(self._session, version)
        bound = self._buffer.rules.max_staleness
        if bound is None:
            return []
        stale = [key for key, report in self._reports.items() if version - report.version_min > bound]
        return [self._reports.pop(key) for key in stale]

    def metrics(self) -> dict[str, float]:
        """Return those of the buffer, such as the staleness of what was handed out."""
        return self._buffer.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer and the reports."""
        return {"reports": [as_data(report) for report in self._reports.values()], "buffer": self._buffer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back what `state_dict` returned."""
        if "buffer" in state:
            self._buffer.load_state_dict(state["buffer"])
        found = [from_data(data) for data in state["reports"]]
        self._reports = {(report.explorer, report.number): report for report in found}

    def close(self) -> None:
        """Give the memory back."""
        self._buffer.close()


def as_data(report: Report) -> dict[str, Any]:
    """Return a report as plain data, without its rows."""
    data = {name: value for name, value in asdict(report).items() if name not in _CONTENT}
    return {**data, "moments": [moments._asdict() for moments in report.moments]}


def from_data(data: Mapping[str, Any]) -> Report:
    """Return the report that `as_data` described."""
    return Report(**{**data, "moments": [Moments(**moments) for moments in data["moments"]], "payload": None})
