"""Places: where explorers run; threads of this process, or what `training/exploring/in_ray.py` starts."""

import atexit
import contextlib
import platform
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from trieye.training.exploring.explorer import Explorer, Task

_EXIT_PATIENCE_S = 0.5


class Worker(Protocol):
    """An explorer somewhere.

    A call raises `ConnectionError` if the explorer is gone, and what the explorer raised otherwise.
    """

    def find(self) -> "Future[str]":
        """Return the name of the machine that it is on, as soon as there is room for it on one."""

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method of the explorer, after all that it was told before."""

    def kill(self) -> None:
        """End it at once."""


class Place(Protocol):
    """Starts explorers."""

    def start(self, task: Task, index: int, incarnation: int) -> Worker:
        """Start an explorer; what goes wrong is raised by its first call."""


class ThreadPlace:
    """Explorers in threads of this process: for environments that wait, and for looking into things."""

    def start(self, task: Task, index: int, incarnation: int) -> Worker:
        """Start a thread; see `Place`.

        The policy is made here: it draws its first weights from the global generators, as the training does.
        """
        policy = task.policy(task.config, task.spaces)
        return ThreadWorker(lambda: Explorer(task, index, incarnation, policy), f"trieye-explorer-{index}")


class ThreadWorker:
    """An object in a daemon thread, which cannot keep the process alive if a call hangs.

    Args:
        make: Makes the object, in that thread; it has a method `cancel`, which any thread may call.
        name: Of the thread.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._made: Future[Any] = Future()
        self._is_killed = False
        # a daemon: concurrent.futures joins its threads at exit, however long they hang
        thread = threading.Thread(target=self._serve, args=(make,), name=name, daemon=True)
        _threads.add(thread)
        thread.start()

    def find(self) -> "Future[str]":
        """Return the name of this machine; see `Worker`."""
        here: Future[str] = Future()
        here.set_result(platform.node())
        return here

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method; see `Worker`."""
        call: Future[Any] = Future()
        if self._is_killed:
            call.set_exception(ConnectionError("its thread was ended"))
        else:
            self._calls.put((call, method, values))
        return call

    def kill(self) -> None:
        """Cancel what it does, and let the thread end."""
        self._is_killed = True
        with contextlib.suppress(queue.Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].cancel()
        self._calls.put(None)
        if self._made.done():
            with contextlib.suppress(Exception):  # it was never made
                self._made.result().cancel()

    def _serve(self, make: Callable[[], Any]) -> None:
        _settle(self._made, make)
        while (item := self._calls.get()) is not None:
            call, method, values = item
            if call.set_running_or_notify_cancel():
                _settle(call, partial(self._do, method, values))

    def _do(self, method: str, values: tuple[Any, ...]) -> Any:
        return getattr(self._made.result(), method)(*values)


def _settle(call: "Future[Any]", work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - the border of the thread: whoever takes the result gets the error
        call.set_exception(error)
    else:
        call.set_result(result)


_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


@atexit.register
def _join_threads() -> None:
    """Give threads a moment to end before the interpreter shuts down; hanging ones are abandoned."""
    ends = time.monotonic() + _EXIT_PATIENCE_S
    for thread in list(_threads):
        thread.join(max(ends - time.monotonic(), 0.0))
