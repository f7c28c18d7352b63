"""Calls that signals do not interrupt: another thread makes them, because the main thread runs signal handlers."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from trieye.process.worker import rings, settle

T = TypeVar("T")

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
    outcome, ended, bell = Future[T](), list[bool](), SimpleQueue[None]()
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


def _answer(
    calls: _Calls, call: Callable[[], T], outcome: "Future[T]", ended: list[bool], bell: SimpleQueue[None]
) -> None:
    settle(outcome, call)
    _idle.append(calls)  # first: the main thread may make its next call at once
    ended.append(True)
    bell.put(None)


os.register_at_fork(after_in_child=_idle.clear)
