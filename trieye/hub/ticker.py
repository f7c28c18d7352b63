"""Ticker: calls something every so often on a thread of its own."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Ticker:
    """Calls `tick` every `interval_s` until it is stopped.

    Args:
        tick: What to call.
        interval_s: Seconds between two calls.
    """

    def __init__(self, tick: Callable[[], None], interval_s: float) -> None:
        self._tick = tick
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trieye-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when no call is under way."""
        self._stop.set()
        self._thread.join()

    def take_failure(self) -> Exception | None:
        """Return what `tick` raised since the last call, and forget it."""
        failure, self._failure = self._failure, None
        return failure

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._tick()
            except Exception as error:  # nobody waits here: kept for whoever asks, and the next tick may do better
                logger.exception("a processing pass failed")
                self._failure = error
