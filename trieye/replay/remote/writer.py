"""Writer: collects rows and brings them to a table of a replay server, each of them once."""

import math
import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.remote.channel import Channel, Client
from trieye.replay.remote.courier import Courier
from trieye.replay.remote.messages import DEFAULT_TABLE, INTERRUPTION, Block
from trieye.replay.remote.server import ReplayServer
from trieye.replay.rows.ring import row_count
from trieye.replay.rows.schema import Column

MAX_BLOCK_BYTES = 4 << 20
"""Larger batches are not faster, and several of them are kept."""


class Writer(Client):
    """Takes rows as a `ReplayBuffer` does, and sends them in batches from a thread of its own.

    `add` returns at once; a row is *acknowledged* when `flush` has returned after it, and is then in the ring. A batch
    that got no answer is sent again, and recognized if it had arrived. After the death of the actor, what its last
    snapshot does not hold is sent again, too, as far as it was kept. Threads may share a writer. Other processes make
    one of their own out of what is sent to them; its rows are those of other environments. The rows of a writer that is
    neither flushed nor closed at the end may be lost.

    Attributes:
        table: Name of the table.
        client: Name of this writer, different from every other one's.
        timeout_s: How long `add` and `flush` wait at most, seconds.
        version: Of the model that makes the rows from now on, for tables with `max_staleness`; None = the one that the
            table was told when they arrive there.

    Example:
        >>> from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer
        >>> replay = RemoteReplay(LocalChannel(ReplayServer({"default": {"capacity": 1000}})))
        >>> with replay.writer() as writer:
        ...     for step in range(100):
        ...         writer.add(obs=np.full(1, step, np.float32), action=1, reward=0.5, terminated=False)
        >>> replay.reader().sample(32)["obs"].shape
        (32, 1)
    """

    def __init__(
        self,
        channel: Channel[ReplayServer],
        table: str = DEFAULT_TABLE,
        *,
        flush_rows: int = 256,
        flush_ms: float = 50.0,
        max_inflight: int = 4,
        keep_bytes: int = 32 << 20,
        timeout_s: float = 60.0,
    ) -> None:
        """Make a writer; it knows its keys from the first row on.

        Args:
            channel: The way to the server.
            table: Name of the table.
            flush_rows: Rows in a batch; fewer if that were more than 4 MiB.
            flush_ms: After which time a batch is sent though it is not full, milliseconds.
            max_inflight: Batches that may wait for their acknowledgement; beyond that `add` waits.
            keep_bytes: Memory for acknowledged batches that no snapshot holds, to send them again if the actor dies.
            timeout_s: How long `add` and `flush` wait at most, seconds.

        Raises:
            ConfigurationError: One of the numbers is out of range.
        """
        for name, value in (("flush_rows", flush_rows), ("max_inflight", max_inflight)):
            if value < 1:
                raise ConfigurationError(f"writer: {name} is {value}; it must be at least 1")
        ways = {"flush_rows": flush_rows, "flush_ms": flush_ms, "max_inflight": max_inflight, "keep_bytes": keep_bytes}
        super().__init__(channel, table, timeout_s=timeout_s, **ways)
        self.client = uuid.uuid4().hex
        self.version: int | None = None
        self._flush_rows = flush_rows
        self._columns: list[Column] | None = None
        self._num_rows = 0
        self._lock = threading.Lock()  # guards the block that is being filled, the columns and the number of rows
        self._block: Block | None = None
        self._first_env = 0  # added to the numbers of environments; each interruption raises it
        self._is_closed = False
        self._courier = Courier(
            channel,
            table,
            self.client,
            max_inflight=max_inflight,
            keep_bytes=keep_bytes,
            flush_s=flush_ms / 1000,
            collect=self._hand_over,
        )
        self._pid = os.getpid()

    def add(self, env_id: int = 0, /, **row: Any) -> None:
        """Copy one row in.

        Args:
            env_id: Which of the writer's environments it comes from, below 2**32; each writer counts its own.
            **row: A value for each key.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value has the wrong shape or kind; nothing was added.
            ReplayTimeoutError: There was no room for `timeout_s`; nothing was added.
            ReplayClosedError: The writer is closed.
            TrieyeError: The server will never take what was sent.
        """
        while True:
            with self._lock:
                block = self._block or self._begin(row, rows=False)
                if block is not None:
                    block.add(row, self._first_env + env_id, self.version)
                    self._note_added(block, 1)
                    return
            self._await_room()

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None = None, priorities: ArrayLike | None = None
    ) -> None:
        """Copy rows in, arrays `[n, ...]` by key; raises what `add` raises, some rows may have been added by then.

        Args:
            batch: An array for each key.
            env_ids: int64 `[n]`, as in `add`.
            priorities: float `[n]`, of prioritized tables.
        """
        arrays = {name: np.asarray(values) for name, values in batch.items()}
        count = row_count(arrays)
        envs = None if env_ids is None else np.asarray(env_ids, np.int64)
        if self._first_env:
            envs = self._first_env + (np.zeros(count, np.int64) if envs is None else envs)
        weights = None if priorities is None else np.asarray(priorities, np.float64)
        for name, found in (("env_ids", envs), ("priorities", weights)):
            if found is not None and found.shape != (count,):
                raise ConfigurationError(f"extend: {name} must be [{count}], found {list(found.shape)}")
        if weights is not None and not (np.isfinite(weights) & (weights >= 0)).all():
            raise ConfigurationError("extend: priorities must be finite and at least 0")
        start = 0
        while start < count:
            with self._lock:
                block = self._block or self._begin(arrays, rows=True)
                if block is not None:
                    cut = slice(start, start + min(block.room, count - start))
                    block.extend(
                        {name: array[cut] for name, array in arrays.items()},
                        None if envs is None else envs[cut],
                        None if weights is None else weights[cut],
                        self.version,
                    )
                    self._note_added(block, cut.stop - start)
                    start = cut.stop
                    continue
            self._await_room()

    def interrupt(self) -> None:
        """Let the next row of each environment begin an episode, for example after environments were rebuilt."""
        self._first_env += INTERRUPTION

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when every row added before is in the ring.

        Args:
            timeout_s: How long to wait at most; the writer's own if None.

        Raises:
            ReplayTimeoutError: It took longer; the rows are kept, and sent on.
            ReplayClosedError: The writer was closed before they were.
            TrieyeError: The server will never take what was sent.
        """
        self._check_process()
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._courier.await_taken(self._num_rows, wait_s):
            raise self._overdue("flush()", wait_s)

    def close(self) -> None:
        """Send what is left and end the thread; a second call does nothing.

        The server forgets the writer: if it dies later, rows that no snapshot holds are not sent again.

        Raises:
            ReplayTimeoutError: The server did not take it in time; nothing is sent any more.
        """
        if self._is_closed or self._pid != os.getpid():
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._courier.stop()

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready to be logged."""
        return {"added": self._num_rows, **self._courier.stats()}

    def _begin(self, row: Mapping[str, Any], *, rows: bool) -> Block | None:
        """Begin a block; return None if there is no room for one."""
        self._check_process()
        if self._is_closed:
            raise ReplayClosedError(f"the writer of table {self.table!r} is closed; make a new one")
        columns = self._columns or [Column.from_value(name, value, rows=rows) for name, value in row.items()]
        self._block = self._courier.new_block(lambda: Block(rows_of_a_block(self._flush_rows, columns), columns))
        return self._block

    def _note_added(self, block: Block, count: int) -> None:
        self._columns = self._columns or list(block.columns.values())
        self._num_rows += count
        if not block.room:
            self._block = None
            self._courier.send(block)

    def _hand_over(self) -> None:
        """Let the thread send what was collected so far."""
        with self._lock:
            block = self._block
            if block is not None and block.count:
                self._block = None
                self._courier.send(block)

    def _await_room(self) -> None:
        if not self._courier.await_room(self.timeout_s):
            raise self._overdue("add()", self.timeout_s)

    def _overdue(self, call: str, wait_s: float) -> ReplayTimeoutError:
        return ReplayTimeoutError(
            f"table {self.table!r} of {self._channel.name!r}: {call} waited {wait_s:g} s, and "
            f"{self._num_rows - self._courier.taken} rows are not acknowledged: "
            f"{self._courier.trouble or 'it does not answer'}"
        )

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ReplayClosedError("a writer does not work in a forked process; send it there, or make one there")


def rows_of_a_block(flush_rows: int, columns: Iterable[Column]) -> int:
    """Return how many rows a batch has, of so many that are wished for."""
    row_bytes = sum(column.dtype.itemsize * math.prod(column.shape) for column in columns)
    return max(min(flush_rows, MAX_BLOCK_BYTES // max(row_bytes, 1)), 1)
