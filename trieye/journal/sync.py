"""A thread that brings what was written to the disk, a few times a second."""

import os
import threading
from pathlib import Path

from trieye.exceptions import JournalError

INTERVAL_S = 0.1


class IntervalSync:
    """Syncs a file every 100 ms, if something was written to it.

    Args:
        path: The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._error: OSError | None = None
        self._path = path
        self._written = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trieye-journal-sync", daemon=True)
        self._thread.start()

    def note_written(self) -> None:
        """Let the thread know that there is something to be synced.

        Raises:
            JournalError: What was written before could not be synced.
        """
        self._written.set()
        if self._error is not None:
            error, self._error = self._error, None
            raise JournalError(f"{self._path} cannot be brought to the disk: {error.strerror}") from error

    def stop(self) -> None:
        """End the thread; SQLite syncs the rest when it closes the file."""
        self._stopped.set()
        self._written.set()
        self._thread.join()

    def _work(self) -> None:
        while self._written.wait() and not self._stopped.wait(INTERVAL_S):
            self._written.clear()
            try:
                # opened each time: SQLite deletes the file and makes another one
                descriptor = os.open(self._path, os.O_RDONLY)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._error = error
