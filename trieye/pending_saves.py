"""PendingSaves: checkpoints that are being written, and those of which the user does not know yet how they ended."""

from concurrent.futures import Future

from trieye.exceptions import CheckpointError

MAX_IN_FLIGHT = 2
"""Never more states in memory than that: a save beyond it waits for the oldest."""


class PendingSaves:
    """The saves of a run that were handed over and not yet reported.

    Args:
        run_name: For messages.
    """

    def __init__(self, run_name: str) -> None:
        self._run_name = run_name
        self._saves: list[Future[str]] = []

    def add(self, save: "Future[str]") -> None:
        """Take a save that was handed over."""
        self._saves.append(save)

    def make_room(self) -> None:
        """Wait until another save may begin.

        Raises:
            CheckpointError: A save failed.
        """
        self.report(wait=False)
        while len(self._saves) >= MAX_IN_FLIGHT:
            self._finish(self._saves.pop(0))

    def report(self, *, wait: bool) -> None:
        """Forget the saves that went well.

        Args:
            wait: Wait for those under way.

        Raises:
            CheckpointError: A save failed.
        """
        done = [save for save in self._saves if wait or save.done()]
        self._saves = [save for save in self._saves if save not in done]
        for save in done:
            self._finish(save)

    def _finish(self, save: "Future[str]") -> None:
        try:
            save.result()
        except CheckpointError:
            raise
        except Exception as error:  # a remote call wraps what happened there
            raise CheckpointError(f"a checkpoint of run {self._run_name!r} was not saved: {error}") from error
