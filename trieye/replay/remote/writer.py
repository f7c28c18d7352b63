"""Writer: collects rows and sends them to a replay server, exactly once."""

import math
import os
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.remote.channel import ReplayChannel, ReplayUser
from trieye.replay.remote.courier import BatchSender
from trieye.replay.remote.messages import INTERRUPTION, LOST_ROWS, Block
from trieye.replay.remote.replay_server import ReplayServer
from trieye.replay.rows.ring import row_count
from trieye.replay.rows.schema import Column
from trieye.replay.rows.store import row_integers
from trieye.replay.samplers.base import checked_priorities

MAX_BLOCK_BYTES = 4 << 20
"""Larger batches are not faster, and several of them are kept in memory."""


class Writer(ReplayUser[ReplayServer]):
    """Accepts rows like a `ReplayBuffer`, and sends them in batches from a background thread.

    `add` returns immediately; a later return of `flush` means that the row is *acknowledged*: it is in the buffer. A
    batch without an answer is sent again, and recognized if it had arrived. After the actor crashes, rows that its last
    snapshot lacks are sent again if they still fit into `keep_bytes`. Thread-safe. A pickled writer becomes a new
    writer in the process that receives it; its environments are separate. Rows of a writer that is neither
    flushed nor closed may be lost at exit.

    Attributes:
        client: Unique name of this writer.
        timeout_s: Maximum wait of `add` and `flush` in seconds.
        version: Version of the model that makes rows from now on, for `max_staleness`; None: the server's version when
            the rows arrive.

    Example:
        >>> from trieye.replay.remote import LocalChannel, RemoteReplay, ReplayServer
        >>> replay = RemoteReplay(LocalChannel(ReplayServer({"capacity": 1000})))
        >>> with replay.writer() as writer:
        ...     for step in range(100):
        ...         writer.add(obs=np.full(1, step, np.float32), action=1, reward=0.5, terminated=False)
        >>> replay.reader().sample(32)["obs"].shape
        (32, 1)
    """

    def __init__(
        self,
        channel: ReplayChannel[ReplayServer],
        *,
        flush_rows: int = 256,
        flush_ms: float = 50.0,
        max_inflight: int = 4,
        keep_bytes: int = 32 << 20,
        timeout_s: float = 60.0,
    ) -> None:
        """Create a writer; the first row determines its keys.

        Args:
            channel: Connection to the server.
            flush_rows: Rows per batch; fewer if they would exceed 4 MiB.
            flush_ms: Time in milliseconds after which an incomplete batch is sent.
            max_inflight: Maximum number of unacknowledged batches; `add` waits when it is reached.
            keep_bytes: Memory for acknowledged batches that no snapshot contains, to resend them if the actor dies.
            timeout_s: Maximum wait of `add` and `flush` in seconds.

        Raises:
            ConfigurationError: A number is out of range.
        """
        for name, value in (("flush_rows", flush_rows), ("max_inflight", max_inflight)):
            if value < 1:
                raise ConfigurationError(f"writer: {name} is {value}; it must be at least 1")
        options = {
            "flush_rows": flush_rows, "flush_ms": flush_ms, "max_inflight": max_inflight, "keep_bytes": keep_bytes
        }  # fmt: skip
        super().__init__(channel, timeout_s=timeout_s, **options)
        self.client = uuid.uuid4().hex
        self.version: int | None = None
        self._flush_rows = flush_rows
        self._columns: list[Column] | None = None
        self._num_rows = 0
        self._lock = threading.Lock()  # guards the block being filled, the columns and the number of rows
        self._block: Block | None = None
        self._first_env = 0  # offset of environment numbers; each interruption raises it
        self._is_closed = False
        self._sender = BatchSender(
            channel,
            self.client,
            max_inflight=max_inflight,
            keep_bytes=keep_bytes,
            flush_s=flush_ms / 1000,
            collect=self._send_partial_block,
        )
        self._pid = os.getpid()

    def add(self, env_id: int = 0, /, **row: Any) -> None:
        """Copy one row into the current batch.

        Args:
            env_id: The writer's environment that produced the row, from 0 to 2**40 - 1; numbered per writer.
            **row: A value for each key.

        Raises:
            ConfigurationError: A key is unknown or missing, or a value or `env_id` is invalid; no row was added.
            ReplayTimeoutError: There was no room for `timeout_s`; no row was added.
            ReplayClosedError: The writer is closed.
            TrieyeError: The server permanently rejected an earlier batch.
        """
        if type(env_id) is not int or not 0 <= env_id < INTERRUPTION:
            env_id = int(_env_ids([env_id], 1)[0])
        self._check_process()
        while True:
            with self._lock:
                block = self._block or self._start_block(row, rows=False)
                if block is not None:
                    block.add(row, self._first_env + env_id, self.version)
                    self._record_added(block, 1)
                    return
            self._await_room()

    def extend(
        self, batch: Mapping[str, ArrayLike], env_ids: ArrayLike | None = None, priorities: ArrayLike | None = None
    ) -> None:
        """Copy rows, arrays `[n, ...]` by key, into batches; raises what `add` raises, possibly after adding some rows.

        Args:
            batch: An array per key.
            env_ids: Integers `[n]`, as in `add`.
            priorities: float `[n]`, for prioritized replays.
        """
        arrays: Mapping[str, NDArray[Any]] = {name: np.asarray(values) for name, values in batch.items()}
        count, is_valid = row_count(arrays), False
        envs = None if env_ids is None and not self._first_env else self._first_env + _env_ids(env_ids, count)
        weights = None if priorities is None else checked_priorities(np.arange(count), priorities, label="extend")[1]
        start = 0
        self._check_process()
        while start < count:
            with self._lock:
                block = self._block or self._start_block(arrays, rows=True)
                if block is not None:
                    arrays, is_valid = arrays if is_valid else block.conform(arrays), True
                    rows_slice = slice(start, start + min(block.room, count - start))
                    block.extend(
                        {name: array[rows_slice] for name, array in arrays.items()},
                        None if envs is None else envs[rows_slice],
                        None if weights is None else weights[rows_slice],
                        self.version,
                    )
                    self._record_added(block, rows_slice.stop - start)
                    start = rows_slice.stop
                    continue
            self._await_room()

    def interrupt(self, *, lost_rows: bool = False) -> None:
        """Start a new episode with the next row of each environment, for example after environments were rebuilt.

        Args:
            lost_rows: As for `ReplayBuffer.interrupt`; applies to all later interruptions as well.
        """
        self._first_env += INTERRUPTION
        if lost_rows:
            self._first_env |= LOST_ROWS

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every row added before is in the buffer.

        Args:
            timeout_s: Maximum wait in seconds; the writer's default if None.

        Raises:
            ReplayTimeoutError: It took longer; the rows are kept and still being sent.
            ReplayClosedError: The writer was closed before all rows had arrived.
            TrieyeError: The server permanently rejected a batch.
        """
        self._check_process()
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        if not self._sender.await_acknowledged(self._num_rows, wait_s):
            raise self._overdue("flush()", wait_s)

    def close(self) -> None:
        """Send pending rows and stop the thread. Idempotent.

        The server unregisters the writer: if the server dies later, rows that no snapshot contains are not resent.

        Raises:
            ReplayTimeoutError: The server did not accept the rows in time; nothing more is sent.
        """
        if self._is_closed or self._pid != os.getpid():
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._sender.stop()

    def stats(self) -> dict[str, float]:
        """Return counts as plain numbers, ready for logging."""
        return {"added": self._num_rows, **self._sender.stats()}

    def _start_block(self, row: Mapping[str, Any], *, rows: bool) -> Block | None:
        """Start a block; return None if there is no room for one."""
        if self._is_closed:
            raise ReplayClosedError(f"the writer of replay {self.channel.name!r} is closed; create a new one")
        columns = self._columns or [Column.from_value(name, value, rows=rows) for name, value in row.items()]
        self._block = self._sender.new_block(lambda: Block(rows_of_a_block(self._flush_rows, columns), columns))
        return self._block

    def _record_added(self, block: Block, count: int) -> None:
        self._columns = self._columns or list(block.columns.values())
        self._num_rows += count
        if not block.room:
            self._block = None
            self._sender.send(block)

    def _send_partial_block(self) -> None:
        """Queue the rows collected so far for sending."""
        with self._lock:
            block = self._block
            if block is not None and block.count:
                self._block = None
                self._sender.send(block)

    def _await_room(self) -> None:
        if not self._sender.await_room(self.timeout_s):
            raise self._overdue("add()", self.timeout_s)

    def _overdue(self, call: str, wait_s: float) -> ReplayTimeoutError:
        return ReplayTimeoutError(
            f"replay {self.channel.name!r}: {call} waited {wait_s:g} s, and "
            f"{self._num_rows - self._sender.num_acknowledged} rows are not acknowledged: "
            f"{self._sender.trouble or 'it does not answer'}"
        )

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ReplayClosedError(
                "a writer does not survive a fork; send it to the child process pickled, or create one there"
            )


def rows_of_a_block(flush_rows: int, columns: Iterable[Column]) -> int:
    """Return the number of rows per batch: `flush_rows`, or fewer to stay within `MAX_BLOCK_BYTES`."""
    row_bytes = sum(column.dtype.itemsize * math.prod(column.shape) for column in columns)
    return max(min(flush_rows, MAX_BLOCK_BYTES // max(row_bytes, 1)), 1)


def _env_ids(env_ids: ArrayLike | None, count: int) -> NDArray[np.int64]:
    envs = row_integers("env_ids", env_ids, count)
    if count and not 0 <= envs.min() <= envs.max() < INTERRUPTION:
        raise ConfigurationError(f"env_ids are from {envs.min()} to {envs.max()}; expected numbers from 0 to 2**40 - 1")
    return envs
