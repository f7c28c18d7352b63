"""Reader: draws rows from a table of a replay server, and tells it new priorities."""

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
from trieye.replay.remote.channel import Channel, Client, Deadline, ask, poll_s
from trieye.replay.remote.draws import FarRows, NearRows
from trieye.replay.remote.messages import DEFAULT_TABLE
from trieye.replay.remote.server import ReplayServer
from trieye.replay.samplers.base import Draw, Ids, paired

MAX_CALLS = 2
MAX_WAITING_ROWS = 1 << 16
NO_DRAW = Draw(np.empty(0, np.int64), np.empty(0, np.float32))
"""What is decided before rows are copied: nothing, as the decision may have to be made again while they are."""


class Reader(Client):
    """Draws as a `ReplayBuffer` does, from a buffer that other processes fill.

    On the machine of the server it copies the rows itself, out of the server's memory; the server only says which, for
    several batches at a time. Rows that were overwritten before they were copied are drawn anew, and counted. On other
    machines the batches travel. Other processes make a reader of their own out of what is sent to them.
    """

    def __init__(
        self,
        channel: Channel[ReplayServer],
        table: str = DEFAULT_TABLE,
        *,
        ahead: int = 8,
        timeout_s: float = 60.0,
        attach: bool = True,
    ) -> None:
        """Make a reader.

        Args:
            channel: The way to the server.
            table: Name of the table.
            ahead: Batches that are decided with one call. Priorities and rows that come meanwhile count from the next
                call on, and a limiter counts all of them as drawn. With 1, each is decided when it is asked for.
            timeout_s: How long a call waits for rows or for the server, seconds.
            attach: Read the server's memory if it can be reached.

        Raises:
            ConfigurationError: `ahead` is below 1.
        """
        if ahead < 1:
            raise ConfigurationError(f"reader: ahead is {ahead}; at least 1 batch must be asked for")
        super().__init__(channel, table, timeout_s=timeout_s, ahead=ahead, attach=attach)
        self._rows: NearRows | FarRows = (NearRows if attach else FarRows)(channel, table, ahead, timeout_s)
        self._updates = Updates(channel, table, timeout_s)
        self._num_sampled = 0
        self._on_devices = DeviceBatches()
        self._lock = threading.Lock()  # guards `_rows`, the count, `_on_devices`: `iter_batches` draws in a thread
        self._updates_lock = threading.Lock()  # guards `_updates`; never taken together with the other
        self._is_closed = False

    def sample(
        self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None, device: str | None = None
    ) -> Batch:
        """Draw `n` rows; waits until there are any, or until a limiter lets them go.

        Args:
            n: Number of rows, or of sequences.
            out: An earlier batch of the same `n` and `keys`, whose memory is written again.
            keys: The keys wanted; all if None.
            device: Hand out torch tensors on this device, as `ReplayBuffer.sample`; NumPy arrays if None.

        Raises:
            ReplayTimeoutError: There was nothing to draw for `timeout_s`, or the server was away for so long.
            ReplayClosedError: The reader is closed.
            ConfigurationError: `n` is below 1, a key or the device is unknown, or `out` is of another size, or given
                with a device.
        """
        self._check_open()
        if n < 1:
            raise ConfigurationError(f"sample({n}): at least 1 row must be asked for")
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
        """Yield batches of `n` rows for ever.

        Args:
            n: Number of rows, or of sequences.
            keys: The keys wanted; all if None.
            prefetch: Batches that a thread draws and copies ahead; each is valid until the next one is asked for. With
                0 there is no thread, and batches have memory of their own.
            device: Hand out torch tensors on this device, as `sample`; NumPy arrays if None.
        """
        if not prefetch:
            return iter(partial(self.sample, n, keys=keys, device=device), None)
        return Prefetcher(
            lambda: NO_DRAW, lambda _, out: self.sample(n, out=out, keys=keys), depth=prefetch, device=device
        )

    def update_priorities(self, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send the priorities of rows that were drawn, without waiting for the server.

        Raises:
            ConfigurationError: The lengths differ, or an earlier update was refused.
            ReplayTimeoutError: More than 65 536 of them wait for a server that does not answer.
        """
        self._check_open()
        with self._updates_lock:
            self._updates.add(self._rows.generation, ids, priorities)

    def flush(self) -> None:
        """Return when all priorities have arrived; raises what `update_priorities` raises."""
        with self._updates_lock:
            self._updates.flush()

    def wait(self, min_size: int, timeout_s: float | None = None) -> None:
        """Return when the table holds so many rows.

        Raises:
            ReplayTimeoutError: It does not in that time.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        size = 0
        deadline = Deadline(
            wait_s, lambda: f"table {self.table!r} of {self._channel.name!r} came to {size} of {min_size} rows"
        )
        while True:
            size = deadline.answer(self._channel, ReplayServer.await_rows, self.table, min_size, poll_s(wait_s))
            if size >= min_size:
                return
            deadline.check()

    def set_version(self, version: int) -> None:
        """Tell which version of the model the rows come from that are added from now on."""
        ask(self._channel, self.timeout_s, ReplayServer.set_version, self.table, version)

    def stats(self) -> dict[str, float]:
        """Return the counts of the table and those of this reader, as plain numbers.

        `reader_attached` is 1 if it copies the rows itself, out of the server's memory.
        """
        found = ask(self._channel, self.timeout_s, ReplayServer.stats, self.table)
        return {
            **found,
            "reader_sampled": self._num_sampled,
            "reader_attached": isinstance(self._rows, NearRows) and self._rows.generation != "",
            "reader_redrawn": self._rows.num_redrawn if isinstance(self._rows, NearRows) else 0,
            "reader_lost_updates": self._updates.num_lost,
        }

    def close(self) -> None:
        """Send what is left of the priorities and let go of the memory; a second call does nothing."""
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._rows = FarRows(self._channel, self.table, 1, 1.0)  # lets go of the memory

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
            raise ReplayClosedError(f"the reader of table {self.table!r} is closed; make a new one")


class Updates:
    """Sends priorities while few calls are under way, and otherwise collects them for the next one.

    Args:
        channel: The way to the server.
        table: Name of the table.
        timeout_s: How long to wait at most when too many have been collected.

    Attributes:
        num_lost: Rows whose priorities were lost because the server could not be reached.
    """

    def __init__(self, channel: Channel[ReplayServer], table: str, timeout_s: float) -> None:
        self.num_lost = 0
        self._channel, self._table, self._timeout_s = channel, table, timeout_s
        self._waiting: list[tuple[Ids, NDArray[np.float64]]] = []
        self._generation = ""
        self._calls: deque[tuple[int, Future[None]]] = deque()

    def add(self, generation: str, ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send priorities, float `[n]`, of rows, int64 `[n]`.

        Raises:
            ConfigurationError: The lengths differ, or an earlier update was wrong.
            ReplayTimeoutError: Too many wait for a server that does not answer.
        """
        known, values = paired(ids, priorities)
        if generation != self._generation:
            self._generation, self._waiting = generation, []
        self._waiting.append((known.astype(np.int64), values.copy()))  # sent later
        self._note_ended()
        if sum(len(held) for held, _ in self._waiting) > MAX_WAITING_ROWS:
            self._end_oldest()
        if len(self._calls) < MAX_CALLS:
            self._send()

    def flush(self) -> None:
        """Return when all have arrived; raises what `add` raises."""
        while self._waiting or self._calls:
            if self._waiting:
                self._send()
            self._end_oldest()

    def _send(self) -> None:
        ids, priorities = (np.concatenate(arrays) for arrays in zip(*self._waiting, strict=True))
        self._waiting = []
        call = self._channel.begin(ReplayServer.update_priorities, self._table, self._generation, ids, priorities)
        self._calls.append((len(ids), call))

    def _note_ended(self) -> None:
        while self._calls and self._calls[0][1].done():
            self._end_oldest()

    def _end_oldest(self) -> None:
        deadline = Deadline(self._timeout_s, lambda: f"{self._channel.name!r} took no priorities")
        count, call = self._calls.popleft()
        try:
            deadline.result(call)
        except ConnectionError:
            self.num_lost += count
        except ReplayTimeoutError:
            self._calls.appendleft((count, call))
            raise
