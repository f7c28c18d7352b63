"""ReplayServer: named tables in one process, and their snapshots."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from trieye.checkpoints.directory import load_parts
from trieye.config.base import did_you_mean
from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.buffer import ReplayBuffer
from trieye.replay.limiter import Limiter
from trieye.replay.remote.messages import Ack, Memory, Plan, Rows
from trieye.replay.remote.snapshots import Snapshots
from trieye.replay.remote.table import Table
from trieye.replay.samplers.base import Ids
from trieye.snapshot.nodes import StateParts
from trieye.snapshot.parts import SavedParts


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
