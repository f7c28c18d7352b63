"""Threads that work in rounds: RoundWorker, whose progress others can await, and Ticker; calls in other threads.

The main thread runs signal handlers, whose exceptions interrupt it anywhere; `uninterrupted` protects a call from them.
"""

import logging
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 1.0
"""Seconds to wait for the thread to exit; it may be in a call that never returns."""

_SLICE_S = 0.5

_Bell = SimpleQueue[None]
T = TypeVar("T")


class RoundWorker:
    """A thread that works in rounds until it is stopped or a round fails.

    It uses no `Condition` and no `Event`: Ctrl-C inside their Python code leaves them locked forever. A waiting thread
    puts a new queue into `_waiting`, and the worker puts an item into that queue.

    Args:
        name: Name of the thread.
        work: Does one round; returns whether waiting threads should check their conditions again, because the round
            made progress or had nothing to do.
        pause_s: Returns the time to sleep before a round that was not requested, in seconds.
        on_end: Called by the thread before it exits, with the exception of the failed round, or None if it was stopped.

    Attributes:
        failure: Reason why no further round starts, from `stop` or a failed round; else None.
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
        """Start a round now, or right after the current one."""
        self._alarm.put(None)

    def wait_for(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Request a round, wait until a condition holds, and return whether it holds.

        Args:
            is_true: The condition; evaluated in the waiting thread at each `tell`.
            timeout_s: Time limit in seconds; None waits until the worker exits.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_true():
            bell: _Bell = SimpleQueue()
            self._waiting.put(bell)
            self.wake()
            if is_true() or self.failure is not None:  # the worker may have called `tell` for the last time
                break
            if not rings(bell, deadline):
                break
        return is_true()

    def next_round(self) -> Callable[[], bool]:
        """Return a function that returns whether a round that started after this call has ended."""
        round_number = self._num_begun + 1
        return lambda: self._num_ended >= round_number

    def tell(self) -> None:
        """Make waiting threads check their conditions, in the middle of a round; called by the worker thread only."""
        for _ in range(self._waiting.qsize()):
            self._waiting.get().put(None)

    def stop(self, reason: Exception) -> None:
        """Start no further round; sets `failure`, unless the worker has failed before."""
        self.failure = self.failure or reason
        self.wake()

    def join(self) -> None:
        """Wait at most `JOIN_TIMEOUT_S` for the thread to exit."""
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while self._sleep():
                self._num_begun += 1
                made_progress = self._work()
                self._num_ended = self._num_begun
                if made_progress:
                    self.tell()
        except Exception as caught:  # noqa: BLE001 - a remote call: waiting threads raise it
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


def rings(bell: _Bell, deadline: float | None = None) -> bool:
    """Wait for an item in a queue and return whether it came in time; signal handlers run meanwhile."""
    while True:
        left_s = math.inf if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            # in slices: Python handles a signal that arrives just before the wait only after the wait
            bell.get(timeout=min(left_s, _SLICE_S))
        except Empty:
            if left_s <= _SLICE_S:
                return False
        else:
            return True


class Ticker:
    """Calls a function at a fixed interval in a daemon thread, until it is stopped; errors do not end the thread.

    Args:
        name: Name of the thread.
        tick: Function to call.
        interval_s: Seconds between two calls.
    """

    def __init__(self, name: str, tick: Callable[[], None], interval_s: float) -> None:
        self._tick = tick
        self._interval_s = min(interval_s, threading.TIMEOUT_MAX)
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """End the thread after the call in progress, and return whether it ended in time; None waits without limit."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_failure(self) -> Exception | None:
        """Return the last exception since the previous call of this method."""
        failure, self._failure = self._failure, None
        return failure

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._tick()
            except Exception as error:  # no caller waits: `take_failure` returns it, and the next tick may succeed
                logger.exception("%s failed", self._thread.name)
                self._failure = error


def settle(outcome: "Future[T]", call: Callable[[], T]) -> None:
    """Call a function, and set its result or exception on a future."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - `result()` raises it
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


_Calls = SimpleQueue[Callable[[], None]]

_idle: deque[_Calls] = deque()
"""Queues of the daemon threads that have no call; there is more than one only after an abandoned or a nested call."""


def uninterrupted(call: Callable[[], T], *, is_patient: bool = True) -> T:
    """Make a call and return its result; a signal handler that raises neither ends it nor leaves its locks acquired.

    The main thread makes the call in another thread. Signal handlers may make further calls at the same time.

    Args:
        call: The call.
        is_patient: Raise the exception of a signal handler only after the call has ended; raise a second one at once.
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return call()
    outcome, ended, bell = Future[T](), list[bool](), _Bell()
    try:
        calls = _idle.pop() if _idle else _new_thread()
    except RuntimeError:  # the interpreter is shutting down and cannot start threads
        return call()
    calls.put(partial(_answer, calls, call, outcome, ended, bell))
    interruption: BaseException | None = None
    while not ended:  # `outcome.done()` uses a lock that an interrupted thread leaves acquired
        try:
            rings(bell)
        except BaseException as error:
            if interruption is not None or not is_patient:
                raise
            interruption = error
    if interruption is not None:
        raise interruption
    return outcome.result()


def _new_thread() -> _Calls:
    calls: _Calls = SimpleQueue()
    threading.Thread(target=_work, args=(calls,), name="trieye-calls", daemon=True).start()
    return calls


def _work(calls: _Calls) -> None:
    while True:
        calls.get()()


def _answer(calls: _Calls, call: Callable[[], T], outcome: "Future[T]", ended: list[bool], bell: _Bell) -> None:
    settle(outcome, call)
    _idle.append(calls)  # first: the main thread may make its next call at once
    ended.append(True)
    bell.put(None)


os.register_at_fork(after_in_child=_idle.clear)
