"""Background evaluation: evaluates a checkpoint in another process or thread while training continues."""

from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from trieye.experiment.experiment import Experiment
from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.saves import SaveHandle

_MAX_TRIES = 3
_POLL_S = 0.2


class BackgroundEvaluation:
    """At most one evaluation at a time; call all methods from the training thread.

    Attributes:
        step: Step of the checkpoint under evaluation; None if there is none.
    """

    def __init__(self, experiment: Experiment[Any]) -> None:
        self._experiment = experiment
        self.step: int | None = None
        self._checkpoint: SaveHandle | Path | None = None
        self._outcome: Future[Mapping[str, float]] | None = None
        self._tries = 0

    def begin(self, step: int, checkpoint: SaveHandle | Path) -> None:
        """Evaluate a checkpoint once it is safe on disk."""
        self.step, self._checkpoint, self._outcome, self._tries = step, checkpoint, None, 0

    def take(self, *, wait: bool, stop: StopRequest) -> tuple[int, Mapping[str, float]] | None:
        """Return step and values of the evaluation, once after its end; None otherwise.

        Args:
            wait: Wait for the end of the evaluation.
            stop: Stop request that ends the wait.

        Raises:
            StepInterrupted: A stop was requested during the wait.
            CheckpointError: The checkpoint could not be saved.
            ConnectionError: The evaluating process died `_MAX_TRIES` times.
            Exception: The evaluation raised it.
        """
        while self.step is not None:
            if self._outcome is None:
                if (path := self._checkpoint_path(wait=wait)) is None:
                    return None
                self._tries += 1
                self._outcome = self._experiment.evaluate_saved(path)
            if not (wait or self._outcome.done()):
                return None
            while not futures.wait([self._outcome], _POLL_S).done:
                if stop.is_made:
                    raise StepInterrupted(f"the evaluation of step {self.step} was in progress")
            try:
                values = self._outcome.result()
            except ConnectionError as error:
                if self._tries == _MAX_TRIES:
                    raise
                say(f"the evaluation of step {self.step} is repeated: {error}")
                self._outcome = None
                continue
            step, self.step = self.step, None
            return step, values
        return None

    def _checkpoint_path(self, *, wait: bool) -> Path | None:
        if isinstance(self._checkpoint, SaveHandle):
            return self._checkpoint.wait() if wait or self._checkpoint.done else None
        return self._checkpoint
