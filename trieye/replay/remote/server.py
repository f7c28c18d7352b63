"""Server: the base class of replay servers, without Ray: snapshots and restarts; FragmentServer serves fragments."""

import functools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from trieye.checkpoints.directory import has_parts, load_parts, save_parts
from trieye.exceptions import ConfigurationError, ReplayTimeoutError, TrieyeError
from trieye.process.progress import say
from trieye.replay.fragments import FragmentBuffer, FragmentRules, Lease
from trieye.replay.limiter import RateLimiter
from trieye.replay.remote.channel import LONGEST_POLL_S, Operation, operation
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

Values = ParamSpec("Values")
Result = TypeVar("Result")


class Server(ABC):
    """Base class of replay servers; thread-safe.

    It resumes from an existing snapshot in its directory.

    Args:
        name: Name in messages.
        directory: Snapshot directory; if None, snapshots are written only on request, to a given path.
        snapshot_every_s: Interval of the snapshot thread in seconds; snapshots only on request if None.

    Attributes:
        num_written: Snapshots written.
        num_failed: Snapshots that the thread failed to write.

    Raises:
        ConfigurationError: An interval is set without a directory, or a snapshot has another kind of content.
        CheckpointError: A snapshot is damaged.
    """

    def __init__(self, name: str, directory: Path | None, snapshot_every_s: float | None) -> None:
        if snapshot_every_s is not None and directory is None:
            raise ConfigurationError(f"replay {name!r}: snapshot_every_s requires a snapshot directory")
        self.name = name
        self.num_written = self.num_failed = 0
        self._directory = directory
        self._writing = threading.Lock()  # saved while a snapshot is written; the lock of the buffer is taken inside it
        self._is_closing = threading.Event()
        self._timer: threading.Thread | None = None
        if directory is not None and has_parts(directory):
            self._restore(load_parts(directory))
        if snapshot_every_s is not None:
            self._timer = threading.Thread(
                target=self._write_snapshots, args=(snapshot_every_s,), name="trieye-replay-snapshots", daemon=True
            )
            self._timer.start()

    @operation("save")
    def snapshot(self, directory: Path | None = None) -> None:
        """Write a snapshot; data that the directory already contains is not written again.

        Args:
            directory: Target; the server's snapshot directory if None. Writers discard only rows saved in the latter.

        Raises:
            ConfigurationError: The server has no snapshot directory, or the target is not an earlier save.
            SerializationError: Writing failed; the previous snapshot is untouched.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(f"replay {self.name!r} has no snapshot directory; pass one")
        recorder = _StateRecorder(self)
        with self._writing:
            save_parts(target, recorder)
            self.num_written += 1
        if target == self._directory:
            self._is_saved(recorder.state)

    @operation("save")
    def restore(self, directory: Path) -> None:
        """Restore a snapshot and save it to the server's own directory, so that a restarted server resumes from it.

        Raises:
            CheckpointError: The snapshot does not exist or is damaged.
            ConfigurationError: It contains rows of another schema, or chunks of another length.
            SerializationError: It is incomplete, or the server's own snapshot could not be written.
        """
        self.load_state_dict(load_parts(directory))

    @operation("save")
    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""
        return self._parts(known_parts)

    @operation("save")
    def load_state_dict(self, saved_parts: SavedParts) -> None:
        """Restore a state of `state_parts`; raises what `restore` raises."""
        self._restore(saved_parts)
        if self._directory is not None:
            self.snapshot()

    def close(self) -> None:
        """Stop the snapshot thread and release the memory."""
        self.stop_snapshots()
        self._release_memory()

    def stop_snapshots(self) -> None:
        """Stop the snapshot thread."""
        self._is_closing.set()
        if self._timer is not None:
            self._timer.join()

    @abstractmethod
    def _parts(self, known_parts: Collection[str]) -> StateParts:
        """Return a snapshot."""

    @abstractmethod
    def _restore(self, saved_parts: SavedParts) -> None:
        """Replace the content."""

    @abstractmethod
    def _release_memory(self) -> None:
        """Release the memory."""

    def _is_saved(self, state: Any) -> None:  # noqa: B027 - irrelevant to servers whose writers retain nothing
        """Handle that the server's own directory contains this state of `state_parts`."""

    def _write_snapshots(self, every_s: float) -> None:
        while not self._is_closing.wait(every_s):
            try:
                self.snapshot()
            except TrieyeError as error:
                self.num_failed += 1
                say(f"replay {self.name!r}: writing a snapshot failed: {error}")


ServerType = TypeVar("ServerType", bound=Server)


class LocalChannel(Generic[ServerType]):
    """Connection to a server in this process; every call runs immediately, or in its own thread if it may wait.

    Args:
        server: A `ReplayServer` or a `FragmentServer`.
    """

    def __init__(self, server: ServerType) -> None:
        self.name = server.name
        self._server = server

    def begin(
        self, operation: Operation[ServerType, Values, Result], /, *values: Values.args, **options: Values.kwargs
    ) -> "Future[Result]":
        """Run the operation."""
        call: Future[Result] = Future()
        call.set_running_or_notify_cancel()

        def run() -> None:
            try:
                call.set_result(operation(self._server, *values, **options))
            except Exception as error:  # noqa: BLE001 - as in a remote call, the future raises every error
                call.set_exception(error)

        if vars(operation)["group"] == "wait":
            threading.Thread(target=run, name="trieye-replay-wait", daemon=True).start()
        else:
            run()
        return call

    def kill(self) -> None:
        """Close the server."""
        self._server.close()


class _StateRecorder:
    """Forwards to a server while it is saved, and records the saved state."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: Any = None

    def state_parts(self, known_parts: Collection[str]) -> StateParts:
        parts = self._server.state_parts(known_parts)
        self.state = parts.state
        return parts


def _buffer_operation(act: Operation[FragmentBuffer, Values, Result]) -> "Operation[FragmentServer, Values, Result]":
    """Return a server operation that forwards to the buffer."""

    @operation()
    @functools.wraps(act)
    def forward(server: "FragmentServer", /, *values: Values.args, **options: Values.kwargs) -> Result:
        return act(server.buffer, *values, **options)

    return forward


class FragmentServer(Server):
    """Serves a `FragmentBuffer`; its attributes are the remote operations of a fragment actor.

    Args:
        rules: The arguments of `FragmentRules`.
        limiter: The arguments of a `RateLimiter`; None for no limiter.
        seed: Seed of the draws.
        name: As in `Server`, which validates the arguments.
        directory: As in `Server`.
        snapshot_every_s: As in `Server`.
    """

    def __init__(
        self,
        rules: Mapping[str, Any],
        *,
        limiter: Mapping[str, Any] | None = None,
        seed: int = 0,
        name: str = "fragments",
        directory: Path | None = None,
        snapshot_every_s: float | None = None,
    ) -> None:
        # A restarted server must not reuse the ids of chunks that were lost. Servers make less than a chunk per
        # microsecond, so its ids are above all earlier ones.
        self.buffer = FragmentBuffer(
            FragmentRules(**rules),
            seed=seed,
            limiter=None if limiter is None else RateLimiter(**limiter),
            first_id=time.time_ns() // 1000,
        )
        self._is_announced = False  # True once this process has received a `set_version`
        super().__init__(name, directory, snapshot_every_s)

    add_batch = _buffer_operation(FragmentBuffer.add_batch)
    read = _buffer_operation(FragmentBuffer.read)
    release = _buffer_operation(FragmentBuffer.release)
    update_priorities = _buffer_operation(FragmentBuffer.update_priorities)
    metrics = _buffer_operation(FragmentBuffer.metrics)
    leave = _buffer_operation(FragmentBuffer.leave)

    @operation()
    def set_version(self, session: str, version: int) -> None:
        """Announce weights; see `FragmentBuffer.set_version`."""
        self.buffer.set_version(session, version)
        self._is_announced = True

    @operation("wait")
    def fetch(
        self, reader: str, n: int, left_s: float, *, strict: bool, announced: tuple[str, int] | None
    ) -> Lease | None:
        """Lease chunks, in one of several calls: a reader that dies between two of them takes no chunks.

        Args:
            reader: Name of the reader during this fetch.
            n: Number of chunks.
            left_s: Seconds left of the fetch.
            strict: If False, the last call returns fewer chunks rather than none.
            announced: Session and version of the last `set_version` of the reader's handle, None before the first. The
                server repeats it until it receives a `set_version` itself, since a crash may have lost it.

        Returns:
            The lease, or None if the reader must call again.
        """
        if announced is not None and not self._is_announced:
            self.buffer.repeat_version(*announced)
        is_last = left_s <= LONGEST_POLL_S
        try:
            return self.buffer.fetch(n, min(left_s, LONGEST_POLL_S), strict or not is_last, reader=reader)
        except ReplayTimeoutError:
            if is_last:
                self.buffer.leave(reader)
                raise
            return None

    def _parts(self, known_parts: Collection[str]) -> StateParts:
        return self.buffer.state_parts(known_parts)

    def _restore(self, saved_parts: SavedParts) -> None:
        self.buffer.load_state_dict(saved_parts)

    def _release_memory(self) -> None:
        self.buffer.close()
