"""Replay servers without Ray: tables or fragments in one process, and their snapshots."""

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from trieye.checkpoints.directory import has_parts, load_parts, save_parts
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.progress import say
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.fragments import FragmentBuffer, FragmentRules
from trieye.replay.limiter import RateLimiter
from trieye.replay.remote.channel import Group, operation
from trieye.replay.remote.table import ReplayTable
from trieye.replay.rows.schema import check_known
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
        self._writing = threading.Lock()  # saved while a snapshot is written; the locks of tables are taken inside it
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
            ConfigurationError: The server has no snapshot directory.
            SerializationError: Writing failed; the previous snapshot is untouched.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(f"replay {self.name!r} has no snapshot directory; pass one")
        captured = _StateRecorder(self)
        with self._writing:
            save_parts(target, captured)
            self.num_written += 1
        if target == self._directory:
            self._is_saved(captured.state)

    @operation("save")
    def restore(self, directory: Path) -> None:
        """Restore a snapshot and save it to the server's own directory, so that a restarted server resumes from it.

        Raises:
            CheckpointError: The snapshot does not exist or is damaged.
            ConfigurationError: It contains other tables, rows of another schema, or chunks of another length.
            SerializationError: It is incomplete, or the server's own snapshot could not be written.
        """
        self.load_state_dict(load_parts(directory))

    @operation("save")
    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""
        return self._parts(known)

    @operation("save")
    def load_state_dict(self, saved: SavedParts) -> None:
        """Restore a state of `state_parts`; raises what `restore` raises."""
        self._restore(saved)
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
    def _restore(self, saved: SavedParts) -> None:
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


class _StateRecorder:
    """Forwards to a server while it is saved, and records the saved state."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: Any = None

    def state_parts(self, known: Collection[str]) -> StateParts:
        parts = self._server.state_parts(known)
        self.state = parts.state
        return parts

    def load_state_dict(self, state: Any) -> None:
        self._server.load_state_dict(state)


def _table_operation(
    act: Callable[Concatenate[ReplayTable, Values], Result], group: Group | None = None
) -> "Callable[Concatenate[ReplayServer, str, Values], Result]":
    """Return a server operation that forwards to a table; its first argument is the table's name."""

    @operation(group)
    @functools.wraps(act)
    def forward(server: "ReplayServer", table: str, /, *values: Values.args, **options: Values.kwargs) -> Result:
        return act(server.table(table), *values, **options)

    return forward


class ReplayServer(Server):
    """Serves named tables; its attributes are the remote operations of a replay actor with their thread groups.

    Args:
        tables: The arguments of a `ReplayBuffer` for each table by name, optionally with `limiter`, a
            dict of `RateLimiter` arguments.
        name: As in `Server`, which validates the arguments.
        directory: As in `Server`; shared by all tables.
        snapshot_every_s: As in `Server`.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        *,
        name: str = "replay",
        directory: Path | None = None,
        snapshot_every_s: float | None = None,
    ) -> None:
        self._tables = {table: _make_table(table, **spec) for table, spec in tables.items()}
        super().__init__(name, directory, snapshot_every_s)

    add_batch = _table_operation(ReplayTable.add_batch, "ingest")
    await_insert = _table_operation(ReplayTable.await_insert, "wait")
    await_rows = _table_operation(ReplayTable.await_rows, "wait")
    plan = _table_operation(ReplayTable.plan, "draw")
    batches = _table_operation(ReplayTable.batches, "draw")
    update_priorities = _table_operation(ReplayTable.update_priorities, "update")
    set_version = _table_operation(ReplayTable.set_version, "update")
    leave = _table_operation(ReplayTable.leave)
    memory = _table_operation(ReplayTable.memory)
    metrics = _table_operation(ReplayTable.metrics)

    @operation()
    def stats(self, table: str) -> dict[str, float]:
        """Return the counts of a table and of the snapshots, and the process id."""
        return {
            **self.table(table).stats(),
            "snapshots": self.num_written,
            "failed_snapshots": self.num_failed,
            "pid": os.getpid(),
        }

    def _parts(self, known_parts: Collection[str]) -> StateParts:
        snapshots = {name: table.state_parts(known_parts) for name, table in self._tables.items()}
        state = {name: {"state": parts.state, "parts": [*parts.kept, *parts.new]} for name, parts in snapshots.items()}
        reused = tuple(part for parts in snapshots.values() for part in parts.kept)
        new_parts = {part: arrays for parts in snapshots.values() for part, arrays in parts.new.items()}
        return StateParts(state, reused, new_parts)

    def table(self, name: str) -> ReplayTable:
        """Return a table.

        Raises:
            ConfigurationError: There is no table of that name.
        """
        if name not in self._tables:
            check_known(f"replay table {name!r}", name, self._tables)
        return self._tables[name]

    def _restore(self, saved: SavedParts) -> None:
        for name in saved.state:
            self.table(name)
        for name, entry in saved.state.items():
            self._tables[name].load_state_dict(replace(saved, state=entry["state"], names=tuple(entry["parts"])))

    def _is_saved(self, state: Any) -> None:
        for name, entry in state.items():
            self._tables[name].are_saved(entry["state"]["receipts"]["ends"])

    def _release_memory(self) -> None:
        for table in self._tables.values():
            table.close()


def _make_table(name: str, *, limiter: Mapping[str, Any] | None = None, **buffer: Any) -> ReplayTable:
    # hindsight relabelling needs the buffer, so other processes cannot copy such rows themselves
    is_shared = buffer.get("her") is None
    rate_limiter = None if limiter is None else RateLimiter(**limiter)
    return ReplayTable(name, ReplayBuffer(limiter=rate_limiter, **buffer), is_shared=is_shared)


def _buffer_operation(
    act: Callable[Concatenate[FragmentBuffer, Values], Result],
) -> "Callable[Concatenate[FragmentServer, Values], Result]":
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
        self.buffer = FragmentBuffer(
            FragmentRules(**rules), seed=seed, limiter=None if limiter is None else RateLimiter(**limiter)
        )
        super().__init__(name, directory, snapshot_every_s)

    add_batch = _buffer_operation(FragmentBuffer.add_batch)
    set_version = _buffer_operation(FragmentBuffer.set_version)
    fetch = _buffer_operation(FragmentBuffer.fetch)
    read = _buffer_operation(FragmentBuffer.read)
    release = _buffer_operation(FragmentBuffer.release)
    update_priorities = _buffer_operation(FragmentBuffer.update_priorities)
    metrics = _buffer_operation(FragmentBuffer.metrics)

    async def answer(self, operation: str, *values: Any, **options: Any) -> Any:
        """Run an operation in an event loop, where any number of fetches may wait."""
        if operation == "fetch":
            return await self.buffer.afetch(*values, **options)
        return getattr(self, operation)(*values, **options)

    def _parts(self, known_parts: Collection[str]) -> StateParts:
        return self.buffer.state_parts(known_parts)

    def _restore(self, saved: SavedParts) -> None:
        self.buffer.load_state_dict(saved)

    def _release_memory(self) -> None:
        self.buffer.close()
