"""Beside: the evaluation of a checkpoint that is under way while the training goes on."""

from collections.abc import Mapping
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from trieye.process.progress import say
from trieye.process.stopping import StepInterrupted, StopRequest
from trieye.run.saves import SaveHandle

_MAX_TRIES = 3
_POLL_S = 0.2


class Evaluates(Protocol):
    """What evaluates a checkpoint elsewhere; an `Experiment` is one."""

    def evaluate_saved(self, checkpoint: Path) -> "Future[Mapping[str, float]]":
        """Begin to evaluate a checkpoint."""


class Beside:
    """One evaluation at a time; all methods are called by the thread that trains.

    Attributes:
        step: Of the checkpoint that is being evaluated; None while none is.
    """

    def __init__(self, experiment: Evaluates) -> None:
        self._experiment = experiment
        self.step: int | None = None
        self._checkpoint: SaveHandle | Path | None = None
        self._outcome: Future[Mapping[str, float]] | None = None
        self._tries = 0

    def begin(self, step: int, checkpoint: SaveHandle | Path) -> None:
        """Evaluate a checkpoint, as soon as it is safe on disk."""
        self.step, self._checkpoint, self._outcome, self._tries = step, checkpoint, None, 0

    def take(self, *, wait: bool, stop: StopRequest) -> tuple[int, Mapping[str, float]] | None:
        """Return step and values of the evaluation if it has ended, which is then forgotten; None if there is none.

        Args:
            wait: Wait for the end.
            stop: Whether the run was asked to stop, which nobody keeps waiting.

        Raises:
            StepInterrupted: The run was asked to stop meanwhile.
            CheckpointError: The checkpoint could not be saved.
            ConnectionError: The process that evaluates died again and again.
            Exception: What the evaluation raised.
        """
        while self.step is not None:
            if self._outcome is None:
                if (path := self._saved(wait=wait)) is None:
                    return None
                self._tries += 1
                self._outcome = self._experiment.evaluate_saved(path)
            if not (wait or self._outcome.done()):
                return None
            while not futures.wait([self._outcome], _POLL_S).done:
                if stop.is_made:
                    raise StepInterrupted(f"the evaluation of step {self.step} was under way")
            try:
                values = self._outcome.result()
            except ConnectionError as error:
                if self._tries == _MAX_TRIES:
                    raise
                say(f"the evaluation of step {self.step} is done again: {error}")
                self._outcome = None
                continue
            step, self.step = self.step, None
            return step, values
        return None

    def _saved(self, *, wait: bool) -> Path | None:
        if isinstance(self._checkpoint, SaveHandle):
            return self._checkpoint.wait() if wait or self._checkpoint.done else None
        return self._checkpoint
