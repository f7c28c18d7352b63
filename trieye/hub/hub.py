"""Channel and Hub: interfaces through which a run and its clients reach a hub; LocalHub: a hub in this process."""

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.hub.logic import HubLogic
from trieye.hub.requests import GROUP
from trieye.process.worker import settle, uninterrupted
from trieye.sinks.base import Sink

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None] | None


class EventChannel(ABC):
    """Sends logged values to a hub, from this or another process; safe to use from several threads.

    `send` returns once the hub has accepted the values, which then survive the death of every process. A sender may
    repeat a call with the same number or key: the hub accepts it once. `send` raises

    - ConnectionError: The hub is unreachable at present; it may have accepted the values.
    - JournalError: The hub cannot store anything at present.
    - TrieyeError: The hub was closed or is dead, and will never accept the values.

    Attributes:
        key: Unique key of the hub.
        run_name: Name of the run.
        works_at_exit: Whether exit handlers of the process can still use the channel.
    """

    key: str
    run_name: str
    works_at_exit: bool

    @abstractmethod
    def send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send a request, such as `Ledger.log_columns`, and return once the hub has accepted it."""


class SaveThread:
    """Runs calls one after another in a daemon thread.

    Not a `ThreadPoolExecutor`: Python waits for its threads at exit, however long a write takes, but a second signal
    must end the program at once. A partially written checkpoint then has a temporary name.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="trieye-save", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Run a call after the earlier ones, and return a future of its result."""
        future: Future[T] = Future()
        self._queue.put(lambda: settle(future, call))
        return future

    def close(self) -> None:
        """Wait for all submitted calls and end the thread; no call may be submitted afterwards."""
        self._queue.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # frees the state that was written


class Hub(EventChannel):
    """A run's interface to its hub, in this process or in a Ray actor; safe to use from several threads."""

    def __init__(self) -> None:
        self._saving = SaveThread()

    @abstractmethod
    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Send a request and return the hub's answer.

        Args:
            request: A method of a part of the hub, such as `HubLogic.flush`; see `trieye.hub.requests`.
            *args: Positional arguments of the method.
            **kwargs: Keyword arguments of the method.
        """

    def begin(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Send a request in a thread, after earlier calls of `begin`, and return a future of the answer.

        Neither Ray's copy of a state nor its write blocks the caller.
        """
        return self._saving.submit(lambda: self.ask(request, *args, **kwargs))

    @abstractmethod
    def progress(self) -> str:
        """Return a description of the current work and its progress; it changes while the work progresses."""

    @abstractmethod
    def close(self, status: RunStatus, *, required_sinks: Sequence[str] = ()) -> None:
        """Log the remaining events, record how the run ended, and release the hub.

        Raises:
            ProcessingError: A required sink did not receive everything; the run is recorded as failed.
        """


class LocalHub(Hub):
    """A hub in threads of this process, without Ray: deterministic, for debugging, tests and small runs.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: Further content of configs.json.
        sinks: Sinks in addition to the config's.
    """

    works_at_exit = True

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any], sinks: Sequence[Sink] = ()) -> None:
        self.key = uuid.uuid4().hex
        self.run_name = config.run_name
        self._logic = HubLogic(config, sinks=sinks).open(owns_run=False, extra_config=extra_config)
        super().__init__()

    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the method; signals never interrupt it."""
        call = partial(request, self._logic.parts[request.__name__], *args, **kwargs)
        return uninterrupted(call, is_patient=getattr(request, GROUP) != "wait")

    def send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the method, as `ask` does."""
        self.ask(request, *args, **kwargs)

    def progress(self) -> str:
        """Return a description of the current work and its progress."""
        return self._logic.status.progress()

    def close(self, status: RunStatus, *, required_sinks: Sequence[str] = ()) -> None:
        """Wait for saves, log the remaining events and close the sinks."""
        try:
            self._saving.close()
        finally:  # also if Ctrl-C interrupts the wait
            self._logic.shutdown(status, patient=status != "KILLED", required_sinks=required_sinks)

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError(
            f"run {self.run_name!r} lives in this process (runtime=local), so neither it nor its client can be sent to "
            "another process; use threads, or set runtime=ray and pass it to Ray tasks or actors"
        )
