"""SaveThread: one thread that works off calls in order, and dies with the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

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
