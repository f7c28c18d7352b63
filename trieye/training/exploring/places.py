"""Explorer pools: start explorers in threads; `in_ray.py` starts them in Ray actors."""

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

from trieye.process.worker import settle
from trieye.training.exploring.explorer import Explorer, Task

_EXIT_PATIENCE_S = 0.5


class WorkerHandle(Protocol):
    """Handle of an object in a thread or a process, such as an explorer.

    Calls raise `ConnectionError` if the worker is gone, otherwise the error of the object.
    """

    def find(self) -> "Future[str]":
        """Return the name of the worker's machine, once it has been placed on one."""

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method of the object; calls run in order."""

    def tell(self, method: str, *values: Any) -> None:
        """Call a method of the object beside the current call, and drop its result."""

    def kill(self) -> None:
        """Stop the worker immediately."""


class ExplorerPool(Protocol):
    """Starts explorers."""

    def start(self, task: Task, index: int, incarnation: int) -> WorkerHandle:
        """Start an explorer; its first call raises errors of the start."""


class ThreadExplorerPool:
    """Runs explorers in threads of this process, for environments that wait and for debugging."""

    def start(self, task: Task, index: int, incarnation: int) -> WorkerHandle:
        """Start a thread; see `ExplorerPool`.

        The policy is created in the calling thread: its initial weights come from the global generators, as in the
        learner.
        """
        policy = task.policy(task.config, task.spaces)
        return ThreadWorker(lambda: Explorer(task, index, incarnation, policy), f"trieye-explorer-{index}")


class ThreadWorker:
    """An object in a daemon thread, so that a hanging call cannot keep the process alive.

    Args:
        make: Creates the object, in the thread; any thread may call its methods `cancel` and `announce`.
        name: Name of the thread.
    """

    def __init__(self, make_object: Callable[[], Any], name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._object: Future[Any] = Future()
        self._is_killed = False
        # a daemon thread: concurrent.futures joins its threads at exit, even hanging ones
        thread = threading.Thread(target=self._serve, args=(make_object,), name=name, daemon=True)
        _threads.add(thread)
        thread.start()

    def find(self) -> "Future[str]":
        """Return the name of this machine; see `WorkerHandle`."""
        machine: Future[str] = Future()
        machine.set_result(platform.node())
        return machine

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method; see `WorkerHandle`."""
        call: Future[Any] = Future()
        if self._is_killed:
            call.set_exception(ConnectionError("its thread was stopped"))
        else:
            self._calls.put((call, method, values))
        return call

    def tell(self, method: str, *values: Any) -> None:
        """Call a method in the caller's thread; see `WorkerHandle`."""
        if self._object.done():
            with contextlib.suppress(Exception):  # the constructor failed
                self._call(method, values)

    def kill(self) -> None:
        """Cancel the current and waiting calls, and stop the thread."""
        self._is_killed = True
        with contextlib.suppress(queue.Empty):
            while (waiting := self._calls.get_nowait()) is not None:
                waiting[0].cancel()
        self._calls.put(None)
        self.tell("cancel")

    def _serve(self, make_object: Callable[[], Any]) -> None:
        settle(self._object, make_object)
        while (item := self._calls.get()) is not None:
            call, method, values = item
            if call.set_running_or_notify_cancel():
                settle(call, partial(self._call, method, values))

    def _call(self, method: str, values: tuple[Any, ...]) -> Any:
        return getattr(self._object.result(), method)(*values)


_threads: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


@atexit.register
def _join_threads() -> None:
    """Give threads time to end before the interpreter shuts down; abandon hanging ones."""
    ends = time.monotonic() + _EXIT_PATIENCE_S
    for thread in list(_threads):
        thread.join(max(ends - time.monotonic(), 0.0))
