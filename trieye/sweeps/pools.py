"""WorkerPool: runs jobs, and its implementation in this process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trieye.sweeps.jobs import Done
from trieye.sweeps.working import SweepContext, work

STOP_S = 30.0
"""Seconds that interrupted jobs get for saving."""


@dataclass(frozen=True, slots=True)
class Died:
    """A job whose process was killed, with the reported reason."""

    index: int
    reason: str


Outcome = Done | Died


class WorkerPool:
    """Runs jobs; the optional methods of this base class do nothing."""

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Return whether a job with these resources may start now."""
        raise NotImplementedError

    def refusal(self, resources: Mapping[str, Any]) -> str | None:
        """Return an error message if a job requests more than there is, else None."""

    def begin(self, index: int, overrides: Sequence[str], resources: Mapping[str, Any]) -> None:
        """Start a job, which composes its config."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return ended jobs: immediately if there are any, else after at most `timeout_s`."""
        raise NotImplementedError

    def cancel(self, index: int) -> None:
        """Interrupt a job like Ctrl-C."""

    def kill(self, index: int) -> None:
        """Kill a job, and the processes that it has started."""

    def started_jobs(self) -> Collection[int] | None:
        """Return the indices of the jobs whose process has started; None if their records show it."""
        return None

    def cancel_waiting(self) -> list[int]:
        """Cancel jobs that wait for resources, and return their indices."""
        return []

    def stop(self) -> None:
        """Stop all jobs: interrupt them like Ctrl-C, and kill them after `STOP_S`."""

    def close(self) -> None:
        """End the processes that run no job."""


class ThisProcess(WorkerPool):
    """Runs jobs sequentially in this process, so none is running between two calls."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._outcomes: list[Outcome] = []

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Return whether `wait` has returned the last job, which ends before `begin` returns."""
        del resources
        return not self._outcomes

    def begin(self, index: int, overrides: Sequence[str], resources: Mapping[str, Any]) -> None:
        """Run a job to completion."""
        del resources
        try:
            self._outcomes.append(work(self._context, index, overrides, is_own_process=False))
        except Exception as error:  # noqa: BLE001 - an error outside of the job, such as in its directory or config
            self._outcomes.append(Done(index, error=error))

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the ended job, if any."""
        del timeout_s
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
