"""StopRequest: whether a signal asked a run to stop, and how long whatever is under way may still take."""

import time
from collections.abc import Callable, Mapping

GRACE_S = 2.0
"""How long the step that is under way may take to end by itself."""

SAVE_PATIENCE_S = 3.5
"""How long after the request others are waited for whose state belongs to the checkpoint."""


class StepInterrupted(BaseException):
    """Raised out of a step that did not end in time after a stop was requested; the loop saves and ends.

    No `Exception`, so that a step which catches those does not continue.

    Attributes:
        made: What the step had completed by then, by the names that `Experiment.step` returns it under.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.made: Mapping[str, float | None] = {}


class StopRequest:
    """Whether a run was asked to stop.

    Args:
        requested_at: Returns when, as `time.monotonic`; None as long as it was not.
    """

    def __init__(self, requested_at: Callable[[], float | None] = lambda: None) -> None:
        self._requested_at = requested_at

    @property
    def is_made(self) -> bool:
        """Whether it was."""
        return self._requested_at() is not None

    def is_older_than(self, seconds: float) -> bool:
        """Tell whether it was made more than so many seconds ago."""
        requested_at = self._requested_at()
        return requested_at is not None and time.monotonic() - requested_at > seconds

    def check(self, waiting_for: str) -> None:
        """Leave the step that is under way if its time is over.

        Raises:
            StepInterrupted: A stop was requested more than `GRACE_S` ago.
        """
        if self.is_older_than(GRACE_S):
            raise StepInterrupted(f"{waiting_for} did not end within {GRACE_S:g} s")
