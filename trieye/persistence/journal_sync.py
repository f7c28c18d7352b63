"""A thread that brings what was written to the disk, a few times a second."""

import logging
import os
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1


class IntervalSync:
    """Syncs a file every 100 ms, if something was written to it.

    Args:
        path: The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self._path = path
        self._written = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trieye-journal-sync", daemon=True)
        self._thread.start()

    def note_written(self) -> None:
        """Let the thread know that there is something to be synced.

        Raises:
            OSError: What was written before could not be synced.
        """
        self._written.set()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

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
                logger.warning("%s could not be brought to the disk: %s", self._path, error)
                self.error = error
