"""Hub: what a run and its clients ask, wherever their hub lives; LocalHub, a hub in threads of this process."""

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Concatenate, ParamSpec, TypeVar

from trieye.config import TrieyeConfig
from trieye.exceptions import ConfigurationError
from trieye.files.run_record import RunStatus
from trieye.hub.ledger import Ledger
from trieye.hub.logic import HubLogic
from trieye.sinks.base import Sink
from trieye.stats.batch import EventBatch
from trieye.stats.operations import Operation

P = ParamSpec("P")
T = TypeVar("T")

_Work = Callable[[], None] | None


class Channel(ABC):
    """The way on which logged values reach a hub, from any process that it can be sent to; safe to use from threads.

    Each method returns when the hub has accepted what it was given, which then survives the death of every process. A
    sender may repeat a call with the same number or key: the hub takes it once. All methods raise

    - ConnectionError: The hub cannot be reached now; it may have accepted what was sent.
    - JournalError: It cannot store anything now.
    - TrieyeError: It will never take it, since it was closed or is dead.

    Attributes:
        key: What tells this hub from every other one.
        run_name: Name of the run.
        works_at_exit: Whether it can still be used when the process ends.
    """

    key: str
    run_name: str
    works_at_exit: bool

    @abstractmethod
    def _send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Return when the hub has accepted what a request brings."""

    def log(self, batch: EventBatch, *, client: str, seq: int) -> None:
        """Hand over events.

        Args:
            batch: The events.
            client: Who sends them.
            seq: Number of the batch, one more than that of the client's last one.

        Raises:
            SequenceGapError: The hub does not know the batch before it.
        """
        self._send(Ledger.log_columns, batch, client=client, seq=seq)

    def count_dropped(self, reason: str, count: int, *, key: str) -> None:
        """Count events that had to be dropped before they reached the hub."""
        self._send(HubLogic.count_dropped, reason, count, key=key)

    def log_operation(self, operation: Operation, *, key: str) -> None:
        """Hand over a histogram, a picture or a text."""
        self._send(HubLogic.log_operation, operation, key=key)


class Hub(Channel):
    """What a `Run` holds of its hub, wherever that lives; safe to call from several threads."""

    @abstractmethod
    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a request and return the hub's answer.

        Args:
            request: A method of a part of the hub, such as `HubLogic.flush`; see `trieye.hub.requests`.
            *args: Its arguments.
            **kwargs: Likewise.
        """

    @abstractmethod
    def begin(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Make a request in the background, after the requests that were begun before; the future has the answer."""

    @abstractmethod
    def progress(self) -> str:
        """Return what takes long at the moment and how far it is, in words; it changes as long as work goes on."""

    @abstractmethod
    def close(self, status: RunStatus) -> None:
        """Log what is left, record how the run ended, and let go of the hub."""


def settle(outcome: "Future[T]", call: Callable[[], T]) -> None:
    """Make a call, and give a future what the call returns or raises."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


class SaveThread:
    """Makes calls one after the other in a daemon thread.

    Not a `ThreadPoolExecutor`: Python waits for its threads when it ends, however long a write takes, and a second
    signal is to end the program at once. A checkpoint that is half written then has a temporary name.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="trieye-save", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Make a call after the calls before; the future has its result."""
        future: Future[T] = Future()
        self._queue.put(lambda: settle(future, lambda: call(*args, **kwargs)))
        return future

    def close(self) -> None:
        """Return when everything is done; nothing may be submitted afterwards."""
        self._queue.put(None)
        self._thread.join()

    def _main(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            del work  # and with it the state that was written


class LocalHub(Hub):
    """A hub as threads of this process: deterministic, for debugging, tests and small runs; no Ray.

    Args:
        config: The config of the run, whose lock this process holds.
        extra_config: What configs.json holds besides.
        sinks: Sinks besides those of the config.
    """

    works_at_exit = True

    def __init__(self, config: TrieyeConfig, extra_config: Mapping[str, Any], sinks: Sequence[Sink] = ()) -> None:
        self.key = uuid.uuid4().hex
        self.run_name = config.run_name
        self._logic = HubLogic(config, sinks=sinks).open(owns_run=False, extra_config=extra_config)
        self._saving = SaveThread()

    def ask(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the method in this thread."""
        return request(self._logic.parts[request.__name__], *args, **kwargs)

    def _send(self, request: Callable[Concatenate[Any, P], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.ask(request, *args, **kwargs)

    def begin(self, request: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Call the method on the thread that saves."""
        return self._saving.submit(lambda: self.ask(request, *args, **kwargs))

    def progress(self) -> str:
        """Return what takes long at the moment and how far it is."""
        return self._logic.status.progress()

    def close(self, status: RunStatus) -> None:
        """Wait for saves, log what is left and close the sinks."""
        try:
            self._saving.close()
        finally:  # also when Ctrl-C ends the waiting
            self._logic.shutdown(status, patient=status != "KILLED")

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError(
            f"run {self.run_name!r} lives in this process (runtime=local), so neither it nor its client can be sent to "
            "another one; set runtime=ray, or use threads"
        )
