"""HubStatus: reports the state of a hub as `trieye/` metrics, by `health`, and via the journal to other processes."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from heapq import nlargest
from pathlib import Path
from typing import Any

import msgspec

from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, JournalFullError, ProcessingError
from trieye.files.run_files import JOURNAL
from trieye.hub.directory import HubFiles
from trieye.hub.ledger import Ledger
from trieye.hub.requests import request
from trieye.journal.scan import read_cursors, read_meta
from trieye.process.waiting import moved_bytes
from trieye.sinks.fan_out import FanOut
from trieye.stats.aggregator import Aggregator
from trieye.stats.point import Point

logger = logging.getLogger(__name__)

STATUS_KEY = "status"
"""Journal key of the status that `trieye watch` shows, as JSON."""

MAX_SHOWN_METRICS = 200


class HubStatus:
    """Collects and publishes the state of the hub.

    Args:
        ledger: The ledger of the run.
        sinks: The sinks of the run.
        files: The files of the run.
        every_s: Seconds between two points of the hub's own metrics; 0 = none.
        clock: Monotonic clock in seconds.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        sinks: FanOut,
        files: HubFiles,
        *,
        every_s: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._ledger, self._sinks, self._files = ledger, sinks, files
        self._every_s, self._clock, self._wall_clock = every_s, clock, wall_clock
        self._logged_at = clock()
        self._full_error: str | None = None
        self._num_failed_saves = 0
        self._published: dict[str, Any] = {}
        self._activities: list[str] = []

    def update(self) -> None:
        """Log the hub's metrics if their interval has passed, and publish the status.

        Raises:
            JournalFullError: The journal is full.
        """
        now = self._clock()
        if self._every_s and now - self._logged_at >= self._every_s:
            self._logged_at = now
            self._ledger.add_points(self._hub_points())
            self._sinks.wake()
        self.publish()

    def publish(self) -> None:
        """Write the status to the journal for other processes if it has changed.

        Raises:
            JournalFullError: The journal is full.
        """
        content = {**self.health(), "metrics": self._metrics()}
        if content != self._published:
            self._files.journal.set_meta(STATUS_KEY, msgspec.json.encode({"time": self._wall_clock(), **content}))
            self._published = content

    def note_failed_save(self, step: int) -> None:
        """Count a checkpoint that could not be written."""
        self._num_failed_saves += 1
        failures = Point("persistence/save_failures", self._num_failed_saves, step, self._wall_clock())
        with suppress(JournalFullError):  # often the cause of both failures; the next point includes this count
            self._ledger.add_points([failures])
        self._sinks.wake()

    def note_full(self, error: JournalFullError | None) -> None:
        """Record whether the journal can grow, and log each change."""
        if error is not None and self._full_error is None:
            logger.error("%s; until it can be written again, new events wait in the training process", error)
        elif error is None and self._full_error is not None:
            logger.warning("the journal can be written again")
        self._full_error = None if error is None else str(error)

    @request()
    def health(self) -> dict[str, Any]:
        """Return the state of sinks, journal and mirror, and counts of events, late events, drops and failed saves."""
        late_counts, drop_counts = self._ledger.read(
            lambda stats: (dict(stats.late_by_metric), dict(stats.drops.by_reason))
        )
        journal = self._files.journal
        return {
            "pid": os.getpid(),
            "attempt": self._files.record.attempt,
            "sinks": [asdict(health) for health in self._sinks.health()],
            **self._ledger.counts,
            "late_by_metric": late_counts,
            "dropped": drop_counts,
            "points": self._files.history.end,
            "journal_bytes": journal.size_bytes,
            "journal_error": self._full_error,
            "journal_damage": list(journal.damage),
            "save_failures": self._num_failed_saves,
            "mirror": None if self._files.mirror is None else self._files.mirror.health(),
        }

    @request()
    def check_sinks(self, required: Sequence[str], *, is_end: bool = False) -> None:
        """Check that the sinks of `sinks.required` exist and work, and at the end that they received everything.

        Raises:
            ConfigurationError: A required sink does not exist.
            ProcessingError: A required sink fails, refused points, or at the end lacks some.
        """
        sinks = {sink.name: sink for sink in self._sinks.health()}
        for name in required:
            if name not in sinks:
                raise ConfigurationError(
                    f"sinks.required: this run has no sink {name!r}{did_you_mean(name, sinks)} "
                    f"(its sinks: {', '.join(sinks) or 'none'})"
                )
            sink, reason = sinks[name], sinks[name].error
            if reason is None and sink.refused:
                reason = f"it refused {sink.refused} points or other items (see the log)"
            if reason is None and is_end and sink.backlog:
                reason = f"it did not receive {sink.backlog:,} items in time"
            if reason is not None:
                raise ProcessingError(
                    f"run {self._files.record.run_name!r} stops because the sink {name!r} of sinks.required does not "
                    f"work: {reason}; all logged values are stored, and the next start delivers them"
                )

    @contextmanager
    def doing(self, activity: str) -> Iterator[None]:
        """Include an activity in `progress` while the block runs; safe to use from several threads."""
        self._activities.append(activity)
        try:
            yield
        finally:
            self._activities.remove(activity)

    def activity(self) -> object:
        """Return a value that changes while a sink makes progress, or waits for another writer that does."""
        return self._sinks.activity()

    @request("wait")
    def progress(self) -> str:
        """Return a description of the current work and its progress; never waits for that work."""
        parts = list(self._activities)
        parts += [f"{sink.name}: {sink.backlog:,} items to go" for sink in self._sinks.health() if sink.backlog]
        if self._files.mirror is not None and (pending := self._files.mirror.health()["pending"]):
            parts.append(f"{pending} checkpoints left for the mirror")
        return f"{', '.join(parts) or 'idle'}; {moved_bytes() / 2**30:.2f} GiB read and written so far"

    def _metrics(self) -> dict[str, Any]:
        def newest_summaries(stats: Aggregator) -> dict[str, Any]:
            newest = nlargest(MAX_SHOWN_METRICS, stats.summary.items(), key=lambda item: item[1]["step"])
            return {name: dict(summary) for name, summary in newest}

        return self._ledger.read(newest_summaries)

    def _hub_points(self) -> list[Point]:
        step, now = max(self._ledger.read(lambda stats: stats.highest_step), 0), self._wall_clock()
        values: dict[str, float] = {**self._ledger.counts, "journal_bytes": self._files.journal.size_bytes}
        for sink in self._sinks.health():
            values[f"sink_lag/{sink.name}"] = sink.backlog
            values[f"sink_lag_s/{sink.name}"] = sink.lag_s
        return [Point(f"trieye/{name}", float(value), step, now, count=0) for name, value in values.items()]


def read_status(run_dir: Path) -> dict[str, Any]:
    """Return the last published `HubStatus.health()` with `time` and `metrics`; {} if none was published yet.

    Raises:
        JournalError: The journal cannot be read.
    """
    status_json = read_meta(run_dir / JOURNAL, STATUS_KEY)
    status: dict[str, Any] = {} if status_json is None else json.loads(status_json)
    return status


def last_status(run_dir: Path) -> dict[str, Any]:
    """Return `read_status` with the final backlog of each sink: sinks deliver more after the last publication.

    Raises:
        JournalError: The journal cannot be read.
    """
    status, cursors = read_status(run_dir), read_cursors(run_dir / JOURNAL)
    for sink in status.get("sinks", ()):
        sink["backlog"] = max(status["points"] - cursors.get(sink["name"], 0), 0)
        sink["lag_s"] = 0.0
        sink["error"] = sink["error"] if sink["backlog"] else None
    return status
