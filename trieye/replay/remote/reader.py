"""Reader: draws rows from a table of a replay server and sends priority updates."""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, ReplayClosedError, ReplayTimeoutError
from trieye.replay.batch import Batch
from trieye.replay.prefetch import DeviceBatches, Prefetcher
from trieye.replay.remote.channel import Client, Deadline, ReplayChannel, ask, poll_s
from trieye.replay.remote.draws import FarRows, NearRows
from trieye.replay.remote.messages import DEFAULT_TABLE
from trieye.replay.remote.server import ReplayServer
from trieye.replay.samplers.base import Ids, SampledIds, paired

MAX_CALLS = 2
MAX_WAITING_ROWS = 1 << 16
NO_DRAW = SampledIds(np.empty(0, np.int64), np.empty(0, np.float32))
"""Placeholder for the draw of a prefetcher: the draw happens with the copy, since it may have to be repeated."""


class Reader(Client):
    """Draws like a `ReplayBuffer`, from a buffer that other processes fill.

    On the server's machine, the reader copies rows directly from shared memory; the server only chooses them, for
    several batches per call. Rows that were overwritten before they were copied are redrawn and counted. On other
    machines, the server sends whole batches. A pickled reader becomes a new reader in the process that receives it.
    """

    def __init__(
        self,
        channel: ReplayChannel[ReplayServer],
        table: str = DEFAULT_TABLE,
        *,
        ahead: int = 8,
        timeout_s: float = 60.0,
        attach: bool = True,
    ) -> None:
        """Create a reader.

        Args:
            channel: Connection to the server.
            table: Name of the table.
            ahead: Batches drawn per call. Later priorities and rows affect only the next call, and a limiter counts all
                of these batches as drawn. With 1, each batch is drawn when it is requested.
            timeout_s: Maximum wait for rows or for the server, in seconds.
            attach: Read the server's shared memory if it is accessible.

        Raises:
            ConfigurationError: `ahead` is below 1.
        """
        if ahead < 1:
            raise ConfigurationError(f"reader: ahead is {ahead}; it must be at least 1 batch")
        super().__init__(channel, table, timeout_s=timeout_s, ahead=ahead, attach=attach)
        self._rows: NearRows | FarRows = (NearRows if attach else FarRows)(channel, table, ahead, timeout_s)
        self._updates = Updates(channel, table, timeout_s)
        self._num_sampled = 0
        self._on_devices = DeviceBatches()
        self._lock = threading.Lock()  # guards `_rows`, the count, `_on_devices`: `iter_batches` draws in a thread
        self._updates_lock = threading.Lock()  # guards `_updates`; never held together with the other lock
        self._is_closed = False

    def sample(
        self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None, device: str | None = None
    ) -> Batch:
        """Draw `n` rows; wait until the table has rows and its limiter permits the draw.

        Args:
            n: Number of rows or sequences.
            out: An earlier batch of the same `n` and `keys`, whose memory is overwritten.
            keys: The keys to return; all if None.
            device: Return torch tensors on this device, as for `ReplayBuffer.sample`; NumPy arrays if None.

        Raises:
            ReplayTimeoutError: No draw was possible for `timeout_s`, or the server was unreachable for that long.
            ReplayClosedError: The reader is closed.
            ConfigurationError: `n` is below 1, a key or the device is unknown, or `out` has another size or is combined
                with a device.
        """
        self._check_open()
        if n < 1:
            raise ConfigurationError(f"sample({n}): n must be at least 1")
        with self._lock:
            if device is None:
                return self._sample(n, out, keys)
            signature = n, None if keys is None else tuple(keys)
            return self._on_devices.make(
                device, out, signature, lambda: NO_DRAW, lambda _, out: self._sample(n, out, keys)
            )

    def sample_many(self, k: int, n: int, keys: Sequence[str] | None = None) -> list[Batch]:
        """Draw `k` batches of `n` rows; raises what `sample` raises."""
        return [self.sample(n, keys=keys) for _ in range(k)]

    def iter_batches(
        self, n: int, *, keys: Sequence[str] | None = None, prefetch: int = 2, device: str | None = None
    ) -> Iterator[Batch]:
        """Yield batches of `n` rows forever.

        Args:
            n: Number of rows or sequences.
            keys: The keys to return; all if None.
            prefetch: Number of batches that a thread draws and copies ahead; each is valid until the next one is
                requested. With 0 no thread is started, and each batch owns its memory.
            device: Return torch tensors on this device, as for `sample`; NumPy arrays if None.
        """
        if not prefetch:
            return iter(partial(self.sample, n, keys=keys, device=device), None)
        return Prefetcher(
            lambda: NO_DRAW, lambda _, out: self.sample(n, out=out, keys=keys), depth=prefetch, device=device
        )

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send the priorities of drawn rows, without waiting for the server.

        Raises:
            ConfigurationError: The lengths differ, or an earlier update was rejected.
            ReplayTimeoutError: More than 65 536 priorities wait for a server that does not answer.
        """
        self._check_open()
        with self._updates_lock:
            self._updates.add(self._rows.generation, ids, priorities)

    def flush(self) -> None:
        """Wait until all priorities have arrived; raises what `update_priorities` raises."""
        with self._updates_lock:
            self._updates.flush()

    def wait(self, min_size: int, timeout_s: float | None = None) -> None:
        """Wait until the table has `min_size` rows.

        Raises:
            ReplayTimeoutError: It has fewer rows after the timeout.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        size = 0
        deadline = Deadline(
            wait_s, lambda: f"table {self.table!r} of {self._channel.name!r} reached {size} of {min_size} rows"
        )
        while True:
            size = deadline.answer(self._channel, ReplayServer.await_rows, self.table, min_size, poll_s(wait_s))
            if size >= min_size:
                return
            deadline.check()

    def set_version(self, version: int) -> None:
        """Set the model version of rows added from now on."""
        ask(self._channel, self.timeout_s, ReplayServer.set_version, self.table, version)

    def stats(self) -> dict[str, float]:
        """Return the counts of the table and of this reader, as plain numbers.

        `reader_attached` is 1 if the reader copies rows from the server's shared memory.
        """
        table_stats = ask(self._channel, self.timeout_s, ReplayServer.stats, self.table)
        return {
            **table_stats,
            "reader_sampled": self._num_sampled,
            "reader_attached": isinstance(self._rows, NearRows) and self._rows.generation != "",
            "reader_redrawn": self._rows.num_redrawn if isinstance(self._rows, NearRows) else 0,
            "reader_lost_updates": self._updates.num_lost,
        }

    def close(self) -> None:
        """Send pending priorities and release the memory. Idempotent."""
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._rows = FarRows(self._channel, self.table, 1, 1.0)  # releases the memory

    def _sample(self, n: int, out: Batch | None, keys: Sequence[str] | None) -> Batch:
        deadline = Deadline(self.timeout_s, lambda: self._describe(n))
        batch = self._rows.sample(n, out, keys, deadline)
        if batch is None:
            self._rows = FarRows(self._channel, self.table, self._options["ahead"], self.timeout_s)
            batch = self._rows.sample(n, out, keys, deadline)
        self._num_sampled += n
        return batch

    def _describe(self, n: int) -> str:
        return f"table {self.table!r} of {self._channel.name!r} had nothing to draw for sample({n})"

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReplayClosedError(f"the reader of table {self.table!r} is closed; create a new one")


class Updates:
    """Sends priorities while few calls are in flight, and otherwise collects them for the next call.

    Args:
        channel: Connection to the server.
        table: Name of the table.
        timeout_s: Maximum wait in seconds when too many have been collected.

    Attributes:
        num_lost: Rows whose priorities were lost because the server was unreachable.
    """

    def __init__(self, channel: ReplayChannel[ReplayServer], table: str, timeout_s: float) -> None:
        self.num_lost = 0
        self._channel, self._table, self._timeout_s = channel, table, timeout_s
        self._waiting: list[tuple[Ids, NDArray[np.float64]]] = []
        self._generation = ""
        self._calls: deque[tuple[int, Future[None]]] = deque()

    def add(self, generation: str, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send priorities, float `[n]`, of rows, int64 `[n]`.

        Raises:
            ConfigurationError: The lengths differ, or an earlier update was rejected.
            ReplayTimeoutError: Too many priorities wait for a server that does not answer.
        """
        row_ids, values = paired(ids, priorities)
        if generation != self._generation:
            self._generation, self._waiting = generation, []
        self._waiting.append((row_ids.astype(np.int64), values.copy()))  # sent later
        self._finish_completed()
        if sum(len(waiting_ids) for waiting_ids, _ in self._waiting) > MAX_WAITING_ROWS:
            self._finish_oldest()
        if len(self._calls) < MAX_CALLS:
            self._send()

    def flush(self) -> None:
        """Wait until all priorities have arrived; raises what `add` raises."""
        while self._waiting or self._calls:
            if self._waiting:
                self._send()
            self._finish_oldest()

    def _send(self) -> None:
        ids, priorities = (np.concatenate(arrays) for arrays in zip(*self._waiting, strict=True))
        self._waiting = []
        call = self._channel.begin(ReplayServer.update_priorities, self._table, self._generation, ids, priorities)
        self._calls.append((len(ids), call))

    def _finish_completed(self) -> None:
        while self._calls and self._calls[0][1].done():
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        deadline = Deadline(self._timeout_s, lambda: f"{self._channel.name!r} accepted no priorities")
        count, call = self._calls.popleft()
        try:
            deadline.result(call)
        except ConnectionError:
            self.num_lost += count
        except ReplayTimeoutError:
            self._calls.appendleft((count, call))
            raise
