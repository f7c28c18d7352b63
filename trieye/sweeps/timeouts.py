"""Timeouts: which jobs have run longer than `hydra.launcher.timeout_min`."""

import time
from pathlib import Path

from trieye.config.launcher import LauncherConfig
from trieye.sweeps.jobs import JobLimitError, JobRecord
from trieye.sweeps.pools import STOP_S, WorkerPool

_MINUTE_S = 60.0


class Timeouts:
    """Interrupts jobs that run too long, and kills those that do not stop.

    The clock of a job starts with its process.

    Args:
        options: The options of the launcher.
        directory: Directory of the sweep.
    """

    def __init__(self, options: LauncherConfig, directory: Path) -> None:
        self._timeout_min, self._directory = options.timeout_min, directory
        self._submitted: dict[int, float] = {}  # jobs whose process has not started, with the wall time
        self._stop_at: dict[int, float] = {}
        self._kill_at: dict[int, float] = {}

    def began(self, index: int) -> None:
        """Record that a job is being submitted."""
        if self._timeout_min is not None:
            self._submitted[index] = time.time()

    def ended(self, index: int) -> JobLimitError | None:
        """Stop the clock of a job; return the error if it had timed out."""
        self._submitted.pop(index, None)
        self._stop_at.pop(index, None)
        if self._kill_at.pop(index, None) is None:
            return None
        return JobLimitError(f"timed out after {self._timeout_min:g} min (hydra.launcher.timeout_min)")

    def enforce(self, pool: WorkerPool) -> None:
        """Interrupt or kill the jobs whose time is over."""
        if self._timeout_min is None:
            return
        now, started = time.monotonic(), pool.started_jobs() if self._submitted else ()
        for index, submitted_at in list(self._submitted.items()):
            if self._has_started(index, submitted_at) if started is None else index in started:
                del self._submitted[index]
                self._stop_at[index] = now + self._timeout_min * _MINUTE_S
        for index in [index for index, stop_at in self._stop_at.items() if now > stop_at]:
            del self._stop_at[index]
            self._kill_at[index] = now + STOP_S
            pool.cancel(index)
        for index in [index for index, kill_at in self._kill_at.items() if now > kill_at]:
            self._kill_at[index] = now + STOP_S
            pool.kill(index)

    def _has_started(self, index: int, submitted_at: float) -> bool:
        record = JobRecord.read(self._directory / str(index))
        return record is not None and record.started >= submitted_at
