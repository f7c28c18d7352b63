"""Fragment queues: hold fragment results, with or without their rows, until the learner takes them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from trieye.replay.fragments import FragmentBuffer, FragmentMeta, FragmentRules, Lease
from trieye.training.exploring.explorer import FragmentResult
from trieye.training.policy import Moments
from trieye.training.rows import Array, Rows

_NOT_STORED = ("payload", "streams")


class Reports:
    """A queue of results, learned in the order of their weights; each is taken once.

    The number of waiting results is bounded by `pace.py`, which assigns fragments.

    Args:
        num_envs: Environments of an explorer.
        device: Device of the returned rows.
        max_staleness: Largest number of versions that a result with rows may lag; None for no bound.
        publish_version: Reports the newest version to the replay that has the rows; None: the results have them.

    Attributes:
        max_staleness: The argument.
        is_bounded: Whether there is a bound and the oldest fragments are taken first, so that none becomes too stale.
    """

    def __init__(
        self,
        num_envs: int,
        device: torch.device,
        *,
        max_staleness: int | None = None,
        publish_version: Callable[[int], None] | None = None,
    ) -> None:
        self._publish_version, self.max_staleness = publish_version, max_staleness
        self.is_bounded = max_staleness is not None
        self._device, self._no_rows = device, Rows.nothing(num_envs, device)
        self._waiting: list[FragmentResult] = []
        self._schema: dict[str, str] = {}
        self._version = -1
        self._lags: list[int] = []  # of the results taken since the last `metrics`
        self._drops: Counter[str] = Counter()
        self._num_put = self._num_taken = self._num_reported = 0
        self._reported_at = time.monotonic()

    def put(self, report: FragmentResult, incarnation: int) -> str:
        """Add a result; return the reason if its fragment is refused, else an empty string."""
        del incarnation
        if self._is_stale(report):
            self._drops["stale"] += 1
            return "stale"
        if report.payload is not None:
            schema = {name: f"{array.dtype}{list(array.shape)}" for name, array in report.payload.items()}
            self._schema = self._schema or schema
            if differences := sorted({*schema.items()} ^ {*self._schema.items()}):
                raise ValueError(f"a fragment does not match the earlier ones: they differ in {differences}")
        self._waiting.append(report)
        self._num_put += 1
        return ""

    def counts(self) -> Counter[int]:
        """Return the number of waiting fragments by explorer."""
        return Counter(report.explorer for report in self._waiting)

    def versions(self) -> list[int]:
        """Return the lowest version of each waiting fragment."""
        return [report.version_min for report in self._waiting]

    def take(self, n: int) -> tuple[list[FragmentResult], Rows]:
        """Remove and return `n` results, of at least `n` waiting, and their rows; no rows if they are in the replay."""
        self._waiting.sort(key=lambda report: (report.version_min, report.number, report.explorer))
        first, self._waiting = self._waiting[:n], self._waiting[n:]
        if self._publish_version is not None:
            return first, self._no_rows
        self._num_taken += len(first)
        first.sort(key=lambda report: (report.explorer, report.number))
        rows = Rows.of_payloads([report.payload for report in first if report.payload is not None], self._device)
        for report in first:
            report.payload = None
            self._lags.append(self._version - report.version_min)
        return first, rows

    def set_version(self, version: int) -> list[FragmentResult]:
        """Set the newest version; return the results dropped as too stale. A replay enforces its bound itself."""
        self._version = version
        if self._publish_version is not None:
            self._publish_version(version)
        stale_reports = [report for report in self._waiting if self._is_stale(report)]
        self._drops["stale"] += len(stale_reports)
        self._waiting = [report for report in self._waiting if not self._is_stale(report)]
        return stale_reports

    def _is_stale(self, report: FragmentResult) -> bool:
        return self.max_staleness is not None and self._version - report.version_min > self.max_staleness

    def metrics(self) -> dict[str, float]:
        """Return counts, and rates and staleness since the last call; empty for a replay, which has metrics."""
        if self._publish_version is not None:
            return {}
        metrics: dict[str, float] = {"replay/size": len(self._waiting)}
        metrics |= {f"replay/dropped/{reason}": count for reason, count in (+self._drops).items()}
        now = time.monotonic()
        metrics["replay/inserts_per_s"] = (self._num_put - self._num_reported) / max(now - self._reported_at, 1e-6)
        self._num_reported, self._reported_at = self._num_put, now
        if self._num_put:
            metrics["replay/samples_per_insert"] = self._num_taken / self._num_put
        if self._lags:
            metrics["replay/staleness_mean"] = sum(self._lags) / len(self._lags)
            metrics["replay/staleness_max"] = max(self._lags)
            self._lags.clear()
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the results and their rows as plain data."""
        return {
            "reports": [as_data(report) for report in self._waiting],
            "payloads": [report.payload for report in self._waiting],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; results whose rows are in another queue's buffer are dropped."""
        reports = [from_data(data) for data in state["reports"]]
        for report, payload in zip(reports, state.get("payloads", ()), strict=False):
            report.payload = payload
        has_rows = self._publish_version is None
        self._waiting = [report for report in reports if report.payload is not None or not has_rows]
        self._num_put = self._num_reported = len(self._waiting)
        self._num_taken = 0
        if lost := len(reports) - len(self._waiting):
            self._drops["damaged"] += lost

    def close(self) -> None:
        """Do nothing: there are no resources."""


class Fragments:
    """A queue of results whose rows are in a `FragmentBuffer`, with `replay=fragment`.

    A result waits as long as the buffer contains its rows: until they are first taken, or dropped.

    Args:
        rules: Rules of the buffer.
        session: Name of the run.
        device: Device of the returned rows.
        seed: Seed of random draws, if the rules use them.
        min_capacity: Number of fragments that must fit, as the learner may wait for that many.
    """

    def __init__(
        self, rules: FragmentRules, session: str, device: torch.device, *, seed: int, min_capacity: int = 1
    ) -> None:
        self._buffer = FragmentBuffer(rules, seed=seed)
        self._session, self._device, self._min_capacity = session, device, min_capacity
        self._reports: dict[tuple[str, int], FragmentResult] = {}
        self._dropped_reports: list[FragmentResult] = []
        self.max_staleness = rules.max_staleness
        self.is_bounded = rules.max_staleness is not None and rules.sampler == "oldest"

    def put(self, report: FragmentResult, incarnation: int) -> str:
        """Add a result; see `Reports`."""
        key = _key(report.explorer, report.number)
        result = self._buffer.add(report.payload, FragmentMeta(*key, report.version_min, self._session, incarnation))
        if result.status == "rejected":
            raise ValueError(f"a fragment does not match the earlier ones: {result.reason}")
        report.payload = None
        if not result.is_kept:
            return result.status.replace("_", " ")
        self._reports[key] = report
        if dropped_reports := self._take_missing():
            self._dropped_reports += dropped_reports
            num_stored = int(self._buffer.metrics(reset=False)["replay/fragments"])
            if num_stored < self._min_capacity:
                raise ValueError(
                    f"replay.fragment.max_bytes={self._buffer.rules.max_bytes}: {num_stored} fragments fit, and the "
                    f"learner needs up to {self._min_capacity} at a time; set a larger value"
                )
        return ""

    def _take_missing(self) -> list[FragmentResult]:
        """Remove and return the results whose rows the buffer has dropped."""
        return [self._reports.pop(key) for key in self._buffer.missing(self._reports)]

    def counts(self) -> Counter[int]:
        """Return the number of waiting fragments; see `Reports`."""
        return Counter(report.explorer for report in self._reports.values())

    def versions(self) -> list[int]:
        """Return the versions of waiting fragments; see `Reports`."""
        return [report.version_min for report in self._reports.values()]

    def take(self, n: int) -> tuple[list[FragmentResult], Rows]:
        """Remove and return results, and those dropped before; see `Reports`."""
        lease = self._buffer.fetch(n, timeout_s=0)
        try:
            payloads = dict(sorted(_payloads_in(lease).items()))
            rows = Rows.of_payloads(list(payloads.values()), self._device)
        finally:
            self._buffer.release(lease)
        keys = [_key(*fragment) for fragment in payloads]
        return self._take_dropped() + [self._reports.pop(key) for key in keys if key in self._reports], rows

    def _take_dropped(self) -> list[FragmentResult]:
        reports, self._dropped_reports = self._dropped_reports, []
        return reports

    def set_version(self, version: int) -> list[FragmentResult]:
        """Drop fragments that are too stale or of another run; see `Reports`."""
        self._buffer.set_version(self._session, version)
        return self._take_dropped() + self._take_missing()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the buffer, such as the staleness of taken fragments."""
        return self._buffer.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer and the results."""
        reports = [*self._dropped_reports, *self._reports.values()]
        return {"reports": [as_data(report) for report in reports], "buffer": self._buffer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned, of either queue."""
        if "buffer" in state:
            self._buffer.load_state_dict(state["buffer"])
        reports = [from_data(data) for data in state["reports"]]
        for report, payload in zip(reports, state.get("payloads", ()), strict=False):
            report.payload = payload
            self.put(report, 0)
        self._reports = {_key(report.explorer, report.number): report for report in reports}
        self._dropped_reports = self._take_missing()

    def close(self) -> None:
        """Release the memory of the buffer."""
        self._buffer.close()


def _key(explorer: int, fragment_number: int) -> tuple[str, int]:
    """Return the worker and the number of a fragment in the buffer."""
    return f"explorer-{explorer}", fragment_number


def as_data(report: FragmentResult) -> dict[str, Any]:
    """Return a result as plain data, without its rows."""
    data = {name: value for name, value in asdict(report).items() if name not in _NOT_STORED}
    return {**data, "moments": [moments._asdict() for moments in report.moments]}


def from_data(data: Mapping[str, Any]) -> FragmentResult:
    """Return the result that `as_data` described."""
    return FragmentResult(**{**data, "moments": [Moments(**moments) for moments in data["moments"]], "payload": None})


def _payloads_in(lease: Lease) -> dict[tuple[int, int], Mapping[str, Array]]:
    """Return the rows of fragments by explorer and number."""
    fragments = [fragment for chunk in lease.chunks for fragment in chunk.fragments]
    return {(int(one.meta.worker.rpartition("-")[2]), one.meta.fid): one.data for one in fragments}
