"""What a replay actor does, without Ray: tables or fragments in one process, and snapshots of them."""

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
from trieye.replay.limiter import Limiter
from trieye.replay.remote.channel import Group, operation
from trieye.replay.remote.table import Table
from trieye.replay.rows.schema import check_known
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts

Values = ParamSpec("Values")
Result = TypeVar("Result")


class Server(ABC):
    """What a replay actor of any kind holds; safe to call from threads.

    If there is a snapshot in its directory, it goes on from there.

    Args:
        name: For messages.
        directory: Where its snapshots are; without one there are only those that are asked for by path.
        snapshot_every_s: How often a thread writes one, seconds; only when asked to if None.

    Attributes:
        num_written: Snapshots written.
        num_failed: Snapshots that the thread could not write.

    Raises:
        ConfigurationError: There is an interval and no directory, or a snapshot holds something else.
        CheckpointError: A snapshot is damaged.
    """

    def __init__(self, name: str, directory: Path | None, snapshot_every_s: float | None) -> None:
        if snapshot_every_s is not None and directory is None:
            raise ConfigurationError(f"replay {name!r}: snapshot_every_s needs a directory for the snapshots")
        self.name = name
        self.num_written = self.num_failed = 0
        self._directory = directory
        self._writing = threading.Lock()  # held while a snapshot is written; the locks of tables are taken inside it
        self._is_closing = threading.Event()
        self._timer: threading.Thread | None = None
        if directory is not None and has_parts(directory):
            self._take_over(load_parts(directory))
        if snapshot_every_s is not None:
            self._timer = threading.Thread(
                target=self._write_for_ever, args=(snapshot_every_s,), name="trieye-replay-snapshots", daemon=True
            )
            self._timer.start()

    @operation("save")
    def snapshot(self, directory: Path | None = None) -> None:
        """Write a snapshot; of what the directory holds already only the new is written.

        Args:
            directory: Where to; the server's own if None. Writers keep what is not in that one.

        Raises:
            ConfigurationError: There is none.
            SerializationError: It could not be written; the one that was there is untouched.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(f"replay {self.name!r} has no directory for snapshots; name one")
        captured = _Captured(self)
        with self._writing:
            save_parts(target, captured)
            self.num_written += 1
        if target == self._directory:
            self._is_saved(captured.state)

    @operation("save")
    def restore(self, directory: Path) -> None:
        """Go on from a snapshot, also if the server dies: its own directory holds the same content afterwards.

        Raises:
            CheckpointError: There is none, or it is damaged.
            ConfigurationError: It holds other tables, rows of another schema, or chunks of another length.
            SerializationError: It is not whole, or the server's own snapshot could not be written.
        """
        self.load_state_dict(load_parts(directory))

    @operation("save")
    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot; see `StateParts`."""
        return self._parts(known)

    @operation("save")
    def load_state_dict(self, held: SavedParts) -> None:
        """Go on where `state_parts` was called; raises what `restore` raises."""
        self._take_over(held)
        if self._directory is not None:
            self.snapshot()

    def close(self) -> None:
        """End the snapshots and give the memory back."""
        self.stop_snapshots()
        self._give_back()

    def stop_snapshots(self) -> None:
        """End the thread that writes snapshots."""
        self._is_closing.set()
        if self._timer is not None:
            self._timer.join()

    @abstractmethod
    def _parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot."""

    @abstractmethod
    def _take_over(self, held: SavedParts) -> None:
        """Replace the content."""

    @abstractmethod
    def _give_back(self) -> None:
        """Give the memory back."""

    def _is_saved(self, state: Any) -> None:  # noqa: B027 - of no use to a server whose writers keep nothing
        """Take note that the server's own directory holds what `state_parts` returned as state."""

    def _write_for_ever(self, every_s: float) -> None:
        while not self._is_closing.wait(every_s):
            try:
                self.snapshot()
            except TrieyeError as error:
                self.num_failed += 1
                say(f"replay {self.name!r}: no snapshot was written: {error}")


class _Captured:
    """A server as what is being saved; remembers the state that it had then."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.state: Any = None

    def state_parts(self, known: Collection[str]) -> StateParts:
        parts = self._server.state_parts(known)
        self.state = parts.state
        return parts

    def load_state_dict(self, state: Any) -> None:
        self._server.load_state_dict(state)


def _of_table(
    act: Callable[Concatenate[Table, Values], Result], group: Group | None = None
) -> "Callable[Concatenate[ReplayServer, str, Values], Result]":
    """Return an operation of the server which one of its tables does; the name of the table comes first."""

    @operation(group)
    @functools.wraps(act)
    def forward(server: "ReplayServer", table: str, /, *values: Values.args, **options: Values.kwargs) -> Result:
        return act(server.table(table), *values, **options)

    return forward


class ReplayServer(Server):
    """Named tables; what stands here is what a replay actor can be asked for, and on which of its threads.

    Args:
        tables: The arguments of a `ReplayBuffer` for each table, by name; besides, `limiter` with those of a `Limiter`.
        name: As in `Server`, which raises what is wrong with the arguments.
        directory: As in `Server`; all tables together.
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

    add_batch = _of_table(Table.add_batch, "ingest")
    await_insert = _of_table(Table.await_insert, "wait")
    await_rows = _of_table(Table.await_rows, "wait")
    plan = _of_table(Table.plan, "draw")
    batches = _of_table(Table.batches, "draw")
    update_priorities = _of_table(Table.update_priorities, "update")
    set_version = _of_table(Table.set_version, "update")
    leave = _of_table(Table.leave)
    memory = _of_table(Table.memory)
    metrics = _of_table(Table.metrics)

    @operation()
    def stats(self, table: str) -> dict[str, float]:
        """Return counts of a table and of the snapshots, and the process."""
        return {
            **self.table(table).stats(),
            "snapshots": self.num_written,
            "failed_snapshots": self.num_failed,
            "pid": os.getpid(),
        }

    def _parts(self, known: Collection[str]) -> StateParts:
        found = {name: table.state_parts(known) for name, table in self._tables.items()}
        state = {name: {"state": parts.state, "parts": [*parts.kept, *parts.new]} for name, parts in found.items()}
        kept = tuple(part for parts in found.values() for part in parts.kept)
        return StateParts(state, kept, {part: arrays for parts in found.values() for part, arrays in parts.new.items()})

    def table(self, name: str) -> Table:
        """Return a table.

        Raises:
            ConfigurationError: There is none of that name.
        """
        check_known(f"replay table {name!r}", name, self._tables)
        return self._tables[name]

    def _take_over(self, held: SavedParts) -> None:
        for name in held.state:
            self.table(name)
        for name, saved in held.state.items():
            self._tables[name].load_state_dict(replace(held, state=saved["state"], names=tuple(saved["parts"])))

    def _is_saved(self, state: Any) -> None:
        for name, saved in state.items():
            self._tables[name].are_saved(saved["state"]["receipts"]["ends"])

    def _give_back(self) -> None:
        for table in self._tables.values():
            table.close()


def _make_table(name: str, *, limiter: Mapping[str, Any] | None = None, **buffer: Any) -> Table:
    # what HER makes of the rows, only the process that has the buffer can make
    is_shared = buffer.get("her") is None
    return Table(
        name, ReplayBuffer(**buffer), limiter=None if limiter is None else Limiter(**limiter), is_shared=is_shared
    )


def _of_buffer(
    act: Callable[Concatenate[FragmentBuffer, Values], Result],
) -> "Callable[Concatenate[FragmentServer, Values], Result]":
    """Return an operation of the server which its buffer does."""

    @operation()
    @functools.wraps(act)
    def forward(server: "FragmentServer", /, *values: Values.args, **options: Values.kwargs) -> Result:
        return act(server.buffer, *values, **options)

    return forward


class FragmentServer(Server):
    """A `FragmentBuffer`; what stands here is what an actor for fragments can be asked for.

    Args:
        rules: The arguments of `FragmentRules`.
        limiter: Those of a `Limiter`; None for none.
        seed: Of the generator that chooses.
        name: As in `Server`, which raises what is wrong with the arguments.
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
            FragmentRules(**rules), seed=seed, limiter=None if limiter is None else Limiter(**limiter)
        )
        super().__init__(name, directory, snapshot_every_s)

    add_batch = _of_buffer(FragmentBuffer.add_batch)
    set_version = _of_buffer(FragmentBuffer.set_version)
    fetch = _of_buffer(FragmentBuffer.fetch)
    read = _of_buffer(FragmentBuffer.read)
    release = _of_buffer(FragmentBuffer.release)
    update_priorities = _of_buffer(FragmentBuffer.update_priorities)
    metrics = _of_buffer(FragmentBuffer.metrics)

    async def answer(self, operation: str, *values: Any, **options: Any) -> Any:
        """Do an operation in an event loop, where any number of fetches may wait."""
        if operation == "fetch":
            return await self.buffer.afetch(*values, **options)
        return getattr(self, operation)(*values, **options)

    def _parts(self, known: Collection[str]) -> StateParts:
        return self.buffer.state_parts(known)

    def _take_over(self, held: SavedParts) -> None:
        self.buffer.load_state_dict(held)

    def _give_back(self) -> None:
        self.buffer.close()
