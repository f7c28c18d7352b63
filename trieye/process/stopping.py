"""StopRequest: whether a signal requested a stop, and how long the current step may still take."""

import time
from collections.abc import Callable, Mapping

GRACE_S = 2.0
"""Grace period of the current step, in seconds."""

SAVE_PATIENCE_S = 3.5
"""Seconds after the request to wait for explorers whose state belongs to the checkpoint."""


class StepInterrupted(BaseException):
    """Raised out of a step that did not end in time after a stop was requested; the loop saves and ends.

    It is not an `Exception`, so that a step that catches exceptions does not continue.

    Attributes:
        made: Progress that the step had completed, under the names that `Experiment.step` returns.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.made: Mapping[str, float | None] = {}


class StopRequest:
    """Whether a stop was requested.

    Args:
        requested_at: Returns the time of the request, as `time.monotonic`, or None.
    """

    def __init__(self, requested_at: Callable[[], float | None] = lambda: None) -> None:
        self._requested_at = requested_at

    @property
    def is_made(self) -> bool:
        """Whether a stop was requested."""
        return self._requested_at() is not None

    def is_older_than(self, seconds: float) -> bool:
        """Return whether the request was made more than the given number of seconds ago."""
        requested_at = self._requested_at()
        return requested_at is not None and time.monotonic() - requested_at > seconds

    def check(self, waiting_for: str) -> None:
        """Interrupt the current step if its grace period is over.

        Raises:
            StepInterrupted: A stop was requested more than `GRACE_S` ago.
        """
        if self.is_older_than(GRACE_S):
            raise StepInterrupted(f"{waiting_for} did not finish within {GRACE_S:g} s of the stop request")
