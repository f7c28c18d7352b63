"""Worker: a thread that works in rounds while other threads wait for its results."""

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

LONGEST_FAREWELL_S = 1.0
"""Maximum time to join the thread, which may be in a call that never returns."""

_SLICE_S = 0.5

_Bell = SimpleQueue[None]


class Worker:
    """A thread that works in rounds until it is stopped or a round fails.

    It uses neither `Condition` nor `Event`, because Ctrl-C inside their Python code leaves them locked forever. A
    waiting thread puts a queue into `_waiting`, and the worker puts an item into that queue to wake it.

    Args:
        name: Name of the thread.
        work: Executes one round; returns whether waiting threads should check again, because it made progress or is
            idle.
        pause_s: Returns the pause before an unrequested round in seconds.
        on_end: Called by the thread when it ends, with the exception of a round, or None if it was stopped before.

    Attributes:
        failure: Why no further round begins; None while the worker runs.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        pause_s: Callable[[], float],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.failure: Exception | None = None
        self._work, self._pause_s, self._on_end = work, pause_s, on_end
        self._alarm: _Bell = SimpleQueue()
        self._waiting: SimpleQueue[_Bell] = SimpleQueue()
        self._num_begun = self._num_ended = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread has started to wait since the last `tell`."""
        return not self._waiting.empty()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Request a round immediately, or after the current one."""
        self._alarm.put(None)

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Request a round, wait until a condition holds, and return whether it holds.

        Args:
            is_true: The condition; evaluated at each `tell`, in the waiting thread.
            timeout_s: Maximum wait in seconds; None: until the worker ends.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_true():
            bell: _Bell = SimpleQueue()
            self._waiting.put(bell)
            self.wake()
            if is_true() or self.failure is not None:  # the thread may have called `tell` for the last time
                break
            if not _rings(bell, until):
                break
        return is_true()

    def next_round(self) -> Callable[[], bool]:
        """Return a condition that holds once a round that began after this call has ended."""
        number = self._num_begun + 1
        return lambda: self._num_ended >= number

    def tell(self) -> None:
        """Wake all waiting threads to check their conditions; only the worker thread itself calls this."""
        for _ in range(self._waiting.qsize()):
            self._waiting.get().put(None)

    def stop(self, why: Exception) -> None:
        """Begin no further round; sets `failure` to `why`, unless the thread has already failed."""
        self.failure = self.failure or why
        self.wake()

    def join(self) -> None:
        """Wait for the end of the thread, at most `LONGEST_FAREWELL_S`."""
        self._thread.join(LONGEST_FAREWELL_S)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while self._sleep():
                self._num_begun += 1
                should_check = self._work()
                self._num_ended = self._num_begun
                if should_check:
                    self.tell()
        except Exception as caught:  # noqa: BLE001 - a remote call: stored for the waiting threads, which raise it
            error = caught
        self._on_end(error if self.failure is None else None)
        self.failure = self.failure or error
        self.tell()

    def _sleep(self) -> bool:
        """Wait until a round is requested or due; return False if the worker was stopped."""
        try:
            self._alarm.get(timeout=self._pause_s())
            while True:
                self._alarm.get_nowait()
        except Empty:
            return self.failure is None


def _rings(bell: _Bell, until: float | None) -> bool:
    """Wait for a bell; return whether it rang in time."""
    while True:
        left_s = math.inf if until is None else max(until - time.monotonic(), 0.0)
        try:
            # in slices: Python handles a signal that arrives just before a blocking wait only when the wait ends
            bell.get(timeout=min(left_s, _SLICE_S))
        except Empty:
            if left_s <= _SLICE_S:
                return False
        else:
            return True
