"""Ticker: runs a processing pass at a fixed interval in a daemon thread."""

import logging
import threading
from collections.abc import Callable

from trieye.exceptions import ProcessingError

logger = logging.getLogger(__name__)


class Ticker:
    """Calls a function every `interval_s` seconds until it is stopped.

    Args:
        tick: Function to call.
        interval_s: Seconds between two calls.
        run_name: Name of the run, for messages.
    """

    def __init__(self, tick: Callable[[], None], interval_s: float, *, run_name: str) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._run_name = run_name
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trieye-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after waiting for a call in progress."""
        self._stop.set()
        self._thread.join()

    def report(self) -> None:
        """Raise the last exception of `tick` since the previous report.

        Raises:
            ProcessingError: A processing pass failed.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise ProcessingError(
                f"run {self._run_name!r}: the hub could not process logged values: {failure!r}; accepted values are "
                "stored in the journal, and the log has the traceback"
            ) from failure

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._tick()
            except Exception as error:  # no caller waits: `report` raises it, and the next tick may succeed
                logger.exception("a processing pass failed")
                self._failure = error
