"""Orphans: jobs that a process of an earlier start, or of another part of the sweep, may still be running."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trieye.process.identity import Liveness
from trieye.process.progress import say
from trieye.process.text import counted
from trieye.sweeps.jobs import ORPHAN_WAIT_S, Job, JobElsewhereError, JobRecord

SILENT_AFTER_S = 90.0
"""Seconds without a heartbeat, on the clock of this process, after which a job on another machine counts as dead.

The file systems of clusters cache files for up to 60 s.
"""


@dataclass(slots=True)
class _Orphan:
    job: Job
    record: JobRecord
    seen_since: float
    has_beaten: bool = False


class Orphans:
    """Observes jobs that another process may still be running, and prevents duplicate starts.

    Heartbeats are only compared with earlier heartbeats of the same machine, since clocks may differ.

    Args:
        directory: Directory of the sweep.
        observes_unknown: Whether to observe jobs that may run on another machine; tasks of an array do it themselves.
    """

    def __init__(self, directory: Path, *, observes_unknown: bool = True) -> None:
        self._directory, self._observes_unknown = directory, observes_unknown
        self._orphans: dict[int, _Orphan] = {}
        self._waiting_since: float | None = None

    def __bool__(self) -> bool:
        return bool(self._orphans)

    def add(self, job: Job, record: JobRecord) -> bool:
        """Observe a job if another process may be running it; return whether it is observed.

        Args:
            job: The job.
            record: Its record.
        """
        liveness = record.liveness(self._directory / str(job.index))
        if liveness == "dead" or (liveness == "unknown" and not self._observes_unknown):
            return False
        self._orphans[job.index] = _Orphan(job, record, time.monotonic())
        return True

    def ended(self) -> list[Job]:
        """Remove and return the jobs that no process runs any longer."""
        indices = [index for index, orphan in self._orphans.items() if self._liveness(orphan) == "dead"]
        return [self._orphans.pop(index).job for index in indices]

    def wait(self) -> None:
        """Start the timeout, since no other jobs are left; the first call reports the awaited jobs."""
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
            jobs = ", ".join(f"{index} ({_process(orphan)})" for index, orphan in sorted(self._orphans.items()))
            say(f"sweep: waiting for {counted(len(self._orphans), 'job')} of other processes: {jobs}")

    def timed_out(self) -> list[tuple[Job, JobElsewhereError]]:
        """Remove and return the jobs that another process still runs after `ORPHAN_WAIT_S`."""
        if self._waiting_since is None or time.monotonic() - self._waiting_since < ORPHAN_WAIT_S:
            return []
        return self.skipped(index for index, orphan in self._orphans.items() if self._liveness(orphan) == "alive")

    def skipped(self, indices: Iterable[int] | None = None) -> list[tuple[Job, JobElsewhereError]]:
        """Remove and return observed jobs, by default all, with the errors for not running them."""
        indices = list(self._orphans if indices is None else indices)
        return [(self._orphans[index].job, _error(index, self._orphans.pop(index))) for index in indices]

    def _liveness(self, orphan: _Orphan) -> Liveness:
        directory = self._directory / str(orphan.job.index)
        record = JobRecord.read(directory)
        if record is None:
            return "dead"
        if record != orphan.record:
            orphan.has_beaten, orphan.record, orphan.seen_since = True, record, time.monotonic()
        liveness = record.liveness(directory)
        if liveness != "unknown":
            return liveness
        if time.monotonic() - orphan.seen_since > SILENT_AFTER_S:
            return "dead"
        return "alive" if orphan.has_beaten else "unknown"


def _process(orphan: _Orphan) -> str:
    return f"process {orphan.record.pid} on {orphan.record.host}"


def _error(index: int, orphan: _Orphan) -> JobElsewhereError:
    return JobElsewhereError(
        f"skipped, because {_process(orphan)} is still running job {index}; wait for that process, or stop it"
    )
