"""Where jobs run: what all places have in common, and the one in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trieye.sweeps.jobs import Done
from trieye.sweeps.working import Composed, Shared, work


@dataclass(frozen=True, slots=True)
class Died:
    """A job whose process was killed, and how that was noticed."""

    index: int
    reason: str


Outcome = Done | Died


class Places(Protocol):
    """Where jobs run."""

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Tell whether a job that asks for these resources may be begun before another one has ended."""

    def begin(
        self, index: int, overrides: Sequence[str], resources: Mapping[str, Any], config: Composed | None = None
    ) -> None:
        """Begin a job, with its config if that is composed already."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the jobs that have ended, at once if there are some, else within the time."""

    def cancel(self, index: int) -> None:
        """Stop a job, as by Ctrl-C."""

    def stop(self) -> None:
        """Stop all jobs."""


class ThisProcess:
    """Runs one job after another in this process."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._ended: list[Outcome] = []

    def has_room(self, resources: Mapping[str, Any]) -> bool:
        """Tell whether the last job, which has ended when `begin` returns, was heard of."""
        del resources
        return not self._ended

    def begin(
        self, index: int, overrides: Sequence[str], resources: Mapping[str, Any], config: Composed | None = None
    ) -> None:
        """Run a job to its end."""
        del resources
        try:
            self._ended.append(work(self._shared, index, overrides, config, is_own_process=False))
        except Exception as error:  # noqa: BLE001 - what is around the job: its directory, its config
            self._ended.append(Done(index, error=error))

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Return the job that has ended."""
        del timeout_s
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, index: int) -> None:
        """Do nothing: none runs."""

    def stop(self) -> None:
        """Do nothing: none runs."""
