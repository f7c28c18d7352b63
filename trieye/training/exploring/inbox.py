"""Fragment queues: hold fragment results until the learner takes them; rows are in the replay or a fragment buffer."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch

from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules, Lease
from trieye.training.exploring.explorer import Report
from trieye.training.policy import Moments
from trieye.training.rows import Rows

_NOT_STORED = ("payload",)


class FragmentQueue(Protocol):
    """Fragment results, in the order of learning.

    Attributes:
        max_staleness: Largest number of versions that a taken fragment may lag; None for no bound.
        is_bounded: Whether there is a bound and the oldest fragments are taken first, so that none becomes too stale.
    """

    max_staleness: int | None
    is_bounded: bool

    def put(self, report: Report, incarnation: int) -> str:
        """Add a result; return the reason if its fragment is refused, else an empty string."""

    def counts(self) -> Counter[int]:
        """Return the number of waiting fragments by explorer."""

    def versions(self) -> list[int]:
        """Return the lowest version of each waiting fragment."""

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Remove and return `n` results, of at least `n` waiting, and their rows; no rows if they are in the replay."""

    def set_version(self, version: int) -> list[Report]:
        """Set the newest version; return the results whose rows were dropped as too stale."""


class Reports:
    """A queue of results whose rows are in the replay.

    Args:
        num_envs: Environments of an explorer.
        device: Device of the learner.
        publish_version: Reports the newest version to the replay.
    """

    def __init__(self, num_envs: int, device: torch.device, publish_version: Callable[[int], None]) -> None:
        self._publish_version, self.max_staleness, self.is_bounded = publish_version, None, False
        self._waiting: list[Report] = []
        self._no_rows = Rows.nothing(num_envs, device)

    def put(self, report: Report, incarnation: int) -> str:
        """Add a result; see `FragmentQueue`."""
        del incarnation
        self._waiting.append(report)
        return ""

    def counts(self) -> Counter[int]:
        """Return the number of waiting fragments; see `FragmentQueue`."""
        return Counter(report.explorer for report in self._waiting)

    def versions(self) -> list[int]:
        """Return the versions of waiting fragments; see `FragmentQueue`."""
        return [report.version_min for report in self._waiting]

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Remove and return results; see `FragmentQueue`."""
        self._waiting.sort(key=lambda report: report.order)
        first, self._waiting = self._waiting[:n], self._waiting[n:]
        return first, self._no_rows

    def set_version(self, version: int) -> list[Report]:
        """Report the version to the replay, which enforces the bound itself; return no results."""
        self._publish_version(version)
        return []

    def metrics(self) -> dict[str, float]:
        """Return an empty dict: the replay has separate metrics."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the results as plain data."""
        return {"reports": [as_data(report) for report in self._waiting]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._waiting = [from_data(data) for data in state["reports"]]

    def close(self) -> None:
        """Do nothing: there are no resources."""


class Fragments:
    """A queue of results whose rows are in a `FragmentBuffer`.

    Args:
        rules: Rules of the buffer.
        session: Name of the run.
        device: Device of the returned rows.
        seed: Seed of random draws, if the rules use them.
    """

    def __init__(self, rules: FragmentRules, session: str, device: torch.device, *, seed: int) -> None:
        self._buffer = FragmentBuffer(rules, seed=seed)
        self._session, self._device = session, device
        self._reports: dict[tuple[int, int], Report] = {}
        self.max_staleness = rules.max_staleness
        self.is_bounded = rules.max_staleness is not None and rules.sampler == "oldest"

    def put(self, report: Report, incarnation: int) -> str:
        """Add a result; see `FragmentQueue`."""
        meta = FragmentMeta(
            f"explorer-{report.explorer}", report.number, report.version_min, self._session, incarnation
        )
        result = self._buffer.add(report.payload, meta)
        if result.status == "rejected":
            raise ValueError(f"a fragment does not match the earlier ones: {result.reason}")
        report.payload = None
        if result.is_kept:
            self._reports[report.explorer, report.number] = report
        return "" if result.is_kept else result.status.replace("_", " ")

    def counts(self) -> Counter[int]:
        """Return the number of waiting fragments; see `FragmentQueue`."""
        return Counter(explorer for explorer, _ in self._reports)

    def versions(self) -> list[int]:
        """Return the versions of waiting fragments; see `FragmentQueue`."""
        return [report.version_min for report in self._reports.values()]

    def take(self, n: int) -> tuple[list[Report], Rows]:
        """Remove and return results; see `FragmentQueue`."""
        lease = self._buffer.fetch(n, timeout_s=0)
        try:
            return self._rows_of_lease(lease)
        finally:
            self._buffer.release(lease)

    def _rows_of_lease(self, lease: Lease) -> tuple[list[Report], Rows]:
        fragments = [fragment for chunk in lease.chunks for fragment in chunk.fragments]
        keys = [(int(fragment.meta.worker.rpartition("-")[2]), fragment.meta.fid) for fragment in fragments]
        order = sorted(range(len(keys)), key=lambda index: keys[index])
        rows = Rows.of_payloads([fragments[index].data for index in order], self._device)
        reports = [self._reports.pop(keys[index]) for index in order if keys[index] in self._reports]
        return reports, rows

    def set_version(self, version: int) -> list[Report]:
        """Drop fragments that are too stale; see `FragmentQueue`."""
        self._buffer.set_version(self._session, version)
        bound = self._buffer.rules.max_staleness
        if bound is None:
            return []
        stale = [key for key, report in self._reports.items() if version - report.version_min > bound]
        return [self._reports.pop(key) for key in stale]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the buffer, such as the staleness of taken fragments."""
        return self._buffer.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer and the results."""
        return {"reports": [as_data(report) for report in self._reports.values()], "buffer": self._buffer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if "buffer" in state:
            self._buffer.load_state_dict(state["buffer"])
        reports = [from_data(data) for data in state["reports"]]
        self._reports = {(report.explorer, report.number): report for report in reports}

    def close(self) -> None:
        """Release the memory of the buffer."""
        self._buffer.close()


def as_data(report: Report) -> dict[str, Any]:
    """Return a result as plain data, without its rows."""
    data = {name: value for name, value in asdict(report).items() if name not in _NOT_STORED}
    return {**data, "moments": [moments._asdict() for moments in report.moments]}


def from_data(data: Mapping[str, Any]) -> Report:
    """Return the result that `as_data` described."""
    return Report(**{**data, "moments": [Moments(**moments) for moments in data["moments"]], "payload": None})
