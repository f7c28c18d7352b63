"""Places: where explorers run; threads of this process, or what `training/exploring/in_ray.py` starts."""

import contextlib
import platform
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from trieye.training.exploring.explorer import Explorer, Task


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
    """Something in a thread of its own.

    Args:
        make: Makes it, in that thread; it has a method `cancel`, which any thread may call.
        name: Of the thread.
    """

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._made = self._pool.submit(make)

    def find(self) -> "Future[str]":
        """Return the name of this machine; see `Worker`."""
        here: Future[str] = Future()
        here.set_result(platform.node())
        return here

    def begin(self, method: str, *values: Any) -> "Future[Any]":
        """Call a method; see `Worker`."""
        try:
            return self._pool.submit(lambda: getattr(self._made.result(), method)(*values))
        except RuntimeError as error:  # it was killed
            gone: Future[Any] = Future()
            gone.set_exception(ConnectionError(str(error)))
            return gone

    def kill(self) -> None:
        """Cancel what it does, and let the thread end."""
        if self._made.done():
            with contextlib.suppress(Exception):  # it was never made
                self._made.result().cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
