"""The threads of a hub: one saves states in order, one makes a processing pass every so often."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from trieye.exceptions import ProcessingError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None] | None


class SaveThread:
    """Makes calls one after the other in a daemon thread.

    Not a `ThreadPoolExecutor`: Python waits for its threads when it ends, however long a write takes, and a second
    signal is to end the program at once. What was being written then has a temporary name.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="trieye-save", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Make a call after those before it; the future has its result."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                result = call(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._queue.put(work)
        return future

    def close(self) -> None:
        """Return when everything is done; nothing may be submitted afterwards."""
        self._queue.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # and with it the state that was written


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
