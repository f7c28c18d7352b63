"""What a replay actor does, without Ray: named tables or fragments in one process, and their snapshots."""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from trieye.checkpoints.directory import has_parts, load_parts, save_parts
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError, TrieyeError
from trieye.process.progress import say
from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.fragments import FragmentBuffer, FragmentRules
from trieye.replay.limiter import Limiter
from trieye.replay.remote.delivery import Ack
from trieye.replay.remote.messages import Memory, Plan, Rows
from trieye.replay.remote.table import Table
from trieye.replay.samplers.base import Ids
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import Growing, SavedParts


class Snapshots:
    """Writes and reads the snapshots of one server.

    Args:
        name: Of the server, for messages.
        directory: Where they are; without one there are only those that are asked for by path.
        every_s: How often they are written, seconds; only when asked for if None.

    Attributes:
        num_written: Snapshots written.
        num_failed: Snapshots that the timer could not write.

    Raises:
        ConfigurationError: There is an interval and no directory.
    """

    def __init__(self, name: str, directory: Path | None, every_s: float | None) -> None:
        if every_s is not None and directory is None:
            raise ConfigurationError(f"replay {name!r}: snapshot_every_s needs a directory for the snapshots")
        self.num_written = self.num_failed = 0
        self._name, self._directory, self._every_s = name, directory, every_s
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._timer: threading.Thread | None = None

    @property
    def has_directory(self) -> bool:
        """Whether there is one from which the server would go on."""
        return self._directory is not None

    def begin(self, load: Callable[[Any], None], write: Callable[[], None]) -> None:
        """Load what is in the directory, if anything is, and start the timer.

        Args:
            load: Takes over the `SavedParts`.
            write: Writes a snapshot.

        Raises:
            CheckpointError: What is there is damaged.
        """
        directory = self._directory
        if directory is not None and has_parts(directory):
            load(load_parts(directory))
        if self._every_s is not None:
            arguments = (self._every_s, write)
            self._timer = threading.Thread(
                target=self._write_for_ever, args=arguments, name="trieye-replay-snapshots", daemon=True
            )
            self._timer.start()

    def write(self, growing: Growing, directory: Path | None) -> bool:
        """Write a snapshot; of what the directory holds already only the new is written.

        Args:
            growing: What to save.
            directory: Where to; the server's own if None.

        Returns:
            Whether it is the one from which the server would go on.

        Raises:
            ConfigurationError: There is no directory.
            SerializationError: It could not be written; the one that was there is untouched.
        """
        target = directory or self._directory
        if target is None:
            raise ConfigurationError(f"replay {self._name!r} has no directory for snapshots; name one")
        with self._lock:
            save_parts(target, growing)
            self.num_written += 1
        return target == self._directory

    def close(self) -> None:
        """End the timer."""
        self._is_closing.set()
        if self._timer is not None:
            self._timer.join()

    def _write_for_ever(self, every_s: float, write: Callable[[], None]) -> None:
        while not self._is_closing.wait(every_s):
            try:
                write()
            except TrieyeError as error:
                self.num_failed += 1
                say(f"replay {self._name!r}: no snapshot was written: {error}")


class ReplayServer:
    """Everything a replay actor does, as a plain object; safe to call from threads.

    If there is a snapshot in its directory, it goes on from there.

    Args:
        tables: The arguments of a `ReplayBuffer` for each table, by name; besides, `limiter` with those of a `Limiter`.
        name: For messages.
        directory: Where the snapshots are, all tables together; without one there are none.
        snapshot_every_s: How often they are written, seconds; only when asked to if None.

    Raises:
        ConfigurationError: The name of a table or an argument is not usable, or a snapshot holds another schema.
        CheckpointError: A snapshot is damaged.
    """

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        *,
        name: str = "replay",
        directory: Path | None = None,
        snapshot_every_s: float | None = None,
    ) -> None:
        self.name = name
        self._tables = {table: _make_table(table, **spec) for table, spec in tables.items()}
        self._snapshots = Snapshots(name, directory, snapshot_every_s)
        self._snapshots.begin(self._take_over, self.snapshot)

    def add_batch(self, table: str, client: str, first: int, oldest: int, rows: Rows) -> Ack:
        """Take rows of a writer; see `Table.add_batch`."""
        return self._table(table).add_batch(client, first, oldest, rows)

    def await_insert(self, table: str, client: str, count: int, timeout_s: float) -> Ack:
        """Wait for room; see `Table.await_insert`."""
        return self._table(table).await_insert(client, count, timeout_s)

    def leave(self, table: str, client: str) -> None:
        """Forget a writer."""
        self._table(table).leave(client)

    def plan(self, table: str, k: int, n: int, timeout_s: float) -> Plan | str:
        """Draw rows; see `Table.plan`."""
        return self._table(table).plan(k, n, timeout_s)

    def batches(
        self, table: str, k: int, n: int, keys: Sequence[str] | None, timeout_s: float
    ) -> list[tuple[str, Batch]] | str:
        """Draw rows and copy them; see `Table.batches`."""
        return self._table(table).batches(k, n, keys, timeout_s)

    def await_rows(self, table: str, min_size: int, timeout_s: float) -> int:
        """Wait for rows; see `Table.await_rows`."""
        return self._table(table).await_rows(min_size, timeout_s)

    def update_priorities(self, table: str, generation: str, ids: Ids, priorities: ArrayLike) -> None:
        """Set priorities; see `Table.update_priorities`."""
        self._table(table).update_priorities(generation, ids, priorities)

    def set_version(self, table: str, version: int) -> None:
        """Tell the version of the model; see `Table.set_version`."""
        self._table(table).set_version(version)

    def memory(self, table: str) -> Memory:
        """Return where the rows of a table are."""
        return self._table(table).memory()

    def stats(self, table: str) -> dict[str, float]:
        """Return counts of a table and of the snapshots, and the process."""
        return {
            **self._table(table).stats(),
            "snapshots": self._snapshots.num_written,
            "failed_snapshots": self._snapshots.num_failed,
            "pid": os.getpid(),
        }

    def metrics(self, table: str) -> dict[str, float]:
        """Return the metrics of a table."""
        return self._table(table).metrics()

    def snapshot(self, directory: Path | None = None) -> None:
        """Write a snapshot of all tables; of what the directory holds already only the new is written.

        Args:
            directory: Where to; the server's own if None. Writers keep what is not in that one.

        Raises:
            ConfigurationError: There is none.
            SerializationError: It could not be written; the one that was there is untouched.
        """
        snapshot = _Snapshot(self)
        if self._snapshots.write(snapshot, directory):
            for name, ends in snapshot.ends.items():
                self._tables[name].are_saved(ends)

    def restore(self, directory: Path) -> None:
        """Go on from a snapshot, also if the server dies: its own directory holds the same content afterwards.

        Raises:
            CheckpointError: There is none, or it is damaged.
            ConfigurationError: It holds tables of other names, or rows of another schema.
            SerializationError: The server's own snapshot could not be written.
        """
        self.load_state_dict(load_parts(directory))

    def state_parts(self, known: Collection[str]) -> StateParts:
        """Return a snapshot of all tables; see `StateParts`."""
        found = {name: table.state_parts(known) for name, table in self._tables.items()}
        state = {name: {"state": parts.state, "parts": [*parts.kept, *parts.new]} for name, parts in found.items()}
        kept = tuple(part for parts in found.values() for part in parts.kept)
        return StateParts(state, kept, {part: arrays for parts in found.values() for part, arrays in parts.new.items()})

    def load_state_dict(self, held: SavedParts) -> None:
        """Go on where `state_parts` was called; raises what `restore` raises."""
        self._take_over(held)
        if self._snapshots.has_directory:
            self.snapshot()

    def _take_over(self, held: SavedParts) -> None:
        for name in held.state:
            self._table(name)
        for name, saved in held.state.items():
            self._tables[name].load_state_dict(replace(held, state=saved["state"], names=tuple(saved["parts"])))

    def close(self) -> None:
        """End the snapshots and give the memory back."""
        self._snapshots.close()
        for table in self._tables.values():
            table.close()

    def _table(self, name: str) -> Table:
        table = self._tables.get(name)
        if table is None:
            raise ConfigurationError(
                f"replay table {name!r} is unknown{did_you_mean(name, self._tables)} (known: {', '.join(self._tables)})"
            )
        return table


def _make_table(name: str, *, limiter: Mapping[str, Any] | None = None, **buffer: Any) -> Table:
    # what HER makes of the rows, only the process that has the buffer can make
    is_shared = buffer.get("her") is None
    return Table(
        name, ReplayBuffer(**buffer), limiter=None if limiter is None else Limiter(**limiter), is_shared=is_shared
    )


class _Snapshot:
    """The server as what is being saved; remembers how far its writers were by then."""

    def __init__(self, server: ReplayServer) -> None:
        self._server = server
        self.ends: dict[str, Mapping[str, int]] = {}

    def state_parts(self, known: Collection[str]) -> StateParts:
        parts = self._server.state_parts(known)
        self.ends = {name: saved["state"]["receipts"]["ends"] for name, saved in parts.state.items()}
        return parts

    def load_state_dict(self, state: Any) -> None:
        self._server.load_state_dict(state)


class FragmentServer:
    """A `FragmentBuffer` with snapshots; if there is one in its directory, it goes on from there.

    Args:
        rules: The arguments of `FragmentRules`.
        limiter: Those of a `Limiter`; None for none.
        seed: Of the generator that chooses.
        name: For messages.
        directory: Where the snapshots are; without one there are none.
        snapshot_every_s: How often they are written, seconds; only when asked to if None.

    Raises:
        ConfigurationError: An argument is not usable.
        CheckpointError: A snapshot is damaged.
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
        self.name = name
        self.buffer = FragmentBuffer(
            FragmentRules(**rules), seed=seed, limiter=None if limiter is None else Limiter(**limiter)
        )
        self._snapshots = Snapshots(name, directory, snapshot_every_s)
        self._snapshots.begin(self.buffer.load_state_dict, self.snapshot)

    def snapshot(self, directory: Path | None = None) -> None:
        """Write a snapshot.

        Args:
            directory: Where to; the server's own if None.

        Raises:
            ConfigurationError: There is none.
            SerializationError: It could not be written.
        """
        self._snapshots.write(self.buffer, directory)

    def load_state_dict(self, held: SavedParts) -> None:
        """Go on from a snapshot, also if the server dies: its own directory holds the same content afterwards.

        Raises:
            ConfigurationError: It has chunks of another length or schema.
            SerializationError: It is not whole, or the server's own snapshot could not be written.
        """
        self.buffer.load_state_dict(held)
        if self._snapshots.has_directory:
            self.snapshot()

    def metrics(self, reset: bool) -> dict[str, float]:
        """Return plain numbers; see `FragmentBuffer.metrics`."""
        return self.buffer.metrics(reset=reset)

    def close(self) -> None:
        """End the snapshots and give the memory back."""
        self._snapshots.close()
        self.buffer.close()

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_") or method == "buffer":
            raise AttributeError(method)
        return getattr(self.buffer, method)
