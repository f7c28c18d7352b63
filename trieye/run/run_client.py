"""RunClient: what the threads, tasks and actors that work for a run hold to log to it."""

from types import TracebackType
from typing import Any, Self

from trieye.config import RuntimeConfig
from trieye.exceptions import RunClosedError, noted
from trieye.hub.hub import Channel
from trieye.run.flusher import Flusher, flusher_of
from trieye.run.recorder import Recorder


class RunClient(Recorder):
    """Logs to a run from wherever it is sent to; made by `Run.client`.

    With `runtime=ray` it can be given to Ray tasks and actors. Each process has one thread that brings its values to
    the hub, however many copies of the client it holds; what the death of the process can take with it is one
    `runtime.flush_interval_s`. A hub that is restarted costs nothing.

    Values that are still to be sent when the run is closed are refused, and so are those that wait when a process of
    Ray ends, since nothing can be sent from its exit handlers. So use the client as a context manager, or `flush` or
    `close` it; an actor that holds one does so in its method `__ray_shutdown__`.

    A SIGTERM that a scheduler sends to every process of a job ends Ray's workers, and with them what they logged within
    the last flush interval; SIGUSR1 (`--signal=USR1@120` of Slurm) leaves those alone that belong to a Ray which the
    run started.

        @ray.remote
        def collect(client):
            with client:
                for step in range(1000):
                    client.log("episode/return", play(), step=step)

    Args:
        channel: The way to the hub.
        runtime: Interval and bounds.
        flusher: The one that this process has for the hub; None: it is found or made at first use.

    Attributes:
        name: Name of the run.
        step: Global step of what is logged without one; set it, since a client does not know how far the run is.
    """

    def __init__(self, channel: Channel, runtime: RuntimeConfig, *, flusher: Flusher | None = None) -> None:
        super().__init__(channel.run_name, runtime.max_pending_events)
        self._channel = channel
        self._runtime = runtime
        self._is_closed = False
        if flusher is not None:
            self._use(flusher, self._end)

    def flush(self) -> None:
        """Return when everything that this process logged so far is accepted by the hub.

        Raises:
            RunClosedError: The client was closed.
            ProcessingError: The hub takes nothing; the values are kept, and sent as soon as it does.
        """
        self._open_flusher().flush()

    def close(self) -> None:
        """Return when everything is accepted, and log no more through this copy; a second call does nothing.

        Raises:
            ProcessingError: The hub takes nothing.
        """
        if self._is_closed:
            return
        flusher = self._flusher
        self._end()
        if flusher is not None:
            flusher.flush()

    def _open_flusher(self) -> Flusher:
        if self._is_closed:
            raise RunClosedError(f"this client of run {self.name!r} is closed, and nothing can be logged through it")
        if self._flusher is None:
            self._use(flusher_of(self._channel, self._runtime), self._end)
        return super()._open_flusher()

    def _end(self) -> None:
        self._is_closed = True
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with noted(error, f"closing the client of run {self.name!r}"):
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._channel, self._runtime), {"step": self.step}

    def __repr__(self) -> str:
        return f"<trieye.RunClient of run {self.name!r} at step {self.step}{', closed' if self._is_closed else ''}>"
