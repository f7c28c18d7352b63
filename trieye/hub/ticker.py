"""Ticker: makes a processing pass every so often on a thread of its own."""

import logging
import threading
from collections.abc import Callable

from trieye.exceptions import ProcessingError

logger = logging.getLogger(__name__)


class Ticker:
    """Calls `tick` every `interval_s` until it is stopped.

    Args:
        tick: What to call.
        interval_s: Seconds between two calls.
        run_name: For messages.
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
        """End the thread; returns when no call is under way."""
        self._stop.set()
        self._thread.join()

    def report(self) -> None:
        """Raise what `tick` raised since the last report.

        Raises:
            ProcessingError: A processing pass failed.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise ProcessingError(f"metrics of run {self._run_name!r} could not be processed") from failure

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._tick()
            except Exception as error:  # nobody waits here: kept for whoever asks, and the next tick may do better
                logger.exception("a processing pass failed")
                self._failure = error
