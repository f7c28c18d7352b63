"""Worker: a thread that works in rounds, and the threads that wait for what it does."""

import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

LONGEST_FAREWELL_S = 1.0
"""The thread may be in a call that is never answered."""

_SLICE_S = 0.5

_Bell = SimpleQueue[None]


class Worker:
    """A thread that works in rounds until it is stopped or a round fails.

    No `Condition` and no `Event`: Ctrl-C inside their Python code leaves them locked for ever. Whoever waits puts a
    queue of its own into `_waiting`, and the thread puts something into that queue.

    Args:
        name: Of the thread.
        work: Does one round; returns whether those that wait should look again, as it has got on or has nothing to do.
        pause_s: Returns how long the thread sleeps before a round that nobody asks for, seconds.
        on_end: Called by the thread at its end, with what a round raised; with None if it was stopped before.

    Attributes:
        failure: Why no further round begins; None while they do.
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
        """Whether a thread has begun to wait since the last `tell`."""
        return not self._waiting.empty()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Begin a round at once, or after the present one."""
        self._alarm.put(None)

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Let a round begin at once, wait until something is true, and tell whether it is.

        Args:
            is_true: Called again at each `tell`, in the thread that waits.
            timeout_s: How long to wait at most, seconds; until the worker ends if None.
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
        """Return what tells whether a round is over that began after this call."""
        number = self._num_begun + 1
        return lambda: self._num_ended >= number

    def tell(self) -> None:
        """Let all that wait look again, in the middle of a round; only the thread itself calls this."""
        for _ in range(self._waiting.qsize()):
            self._waiting.get().put(None)

    def stop(self, why: Exception) -> None:
        """Begin no further round; `failure` is this, unless the thread has failed before."""
        self.failure = self.failure or why
        self.wake()

    def join(self) -> None:
        """Wait for the end of the thread, for a moment only."""
        self._thread.join(LONGEST_FAREWELL_S)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while self._sleep():
                self._num_begun += 1
                has_got_on = self._work()
                self._num_ended = self._num_begun
                if has_got_on:
                    self.tell()
        except Exception as caught:  # noqa: BLE001 - a remote call: kept for those that wait, who raise it
            error = caught
        self._on_end(error if self.failure is None else None)
        self.failure = self.failure or error
        self.tell()

    def _sleep(self) -> bool:
        """Wait until a round is asked for or due; tell whether there is one."""
        try:
            self._alarm.get(timeout=self._pause_s())
            while True:
                self._alarm.get_nowait()
        except Empty:
            return self.failure is None


def _rings(bell: _Bell, until: float | None) -> bool:
    """Wait for a bell, and tell whether it rang in time."""
    while True:
        left_s = math.inf if until is None else max(until - time.monotonic(), 0.0)
        try:
            # in slices: a signal that comes just before Python begins to wait is looked at when the waiting ends
            bell.get(timeout=min(left_s, _SLICE_S))
        except Empty:
            if left_s <= _SLICE_S:
                return False
        else:
            return True
