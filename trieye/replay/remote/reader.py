"""Reader: draws rows of a replay server, copied from shared memory or sent by the server, and sends priorities."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from trieye.exceptions import ConfigurationError, ReplayClosedError
from trieye.replay.batch import Batch
from trieye.replay.prefetch import DeviceBatches, Prefetcher
from trieye.replay.remote.channel import Deadline, ReplayChannel, ReplayUser, poll_s
from trieye.replay.remote.messages import Drawn
from trieye.replay.remote.replay_server import ReplayServer
from trieye.replay.rows.store import AttachedReplay
from trieye.replay.samplers.base import SampledIds, paired, spliced

MAX_UPDATES = 64
ID_BITS = 48
"""Bits of a row id; the ids of a reader's batches have the number of the rows' generation above them."""

NO_DRAW = SampledIds(np.empty(0, np.int64), np.empty(0, np.float32))
"""Placeholder for the draw of a prefetcher: the draw happens with the copy, since it may have to be repeated."""

Item = TypeVar("Item", bound=SampledIds | Batch)
Answer: TypeAlias = Future[Drawn[Item] | str]
"""The response to a call that draws; text states why there are no rows yet."""


class Reader(ReplayUser[ReplayServer]):
    """Draws like a `ReplayBuffer`, from a buffer that other processes fill.

    On the server's machine, the reader copies rows directly from shared memory; the server only chooses them, for
    several batches per call. Rows that were overwritten before they were copied are redrawn and counted. On other
    machines, the server sends whole batches. A pickled reader becomes a new reader in the process that receives it.

    After a restart of the server, which reuses row ids, batches have ids that differ from all earlier ones, so
    priorities of earlier batches are ignored and counted. Such ids are valid only for the reader that sampled them.
    """

    def __init__(
        self,
        channel: ReplayChannel[ReplayServer],
        *,
        ahead: int = 8,
        timeout_s: float = 60.0,
        attach: bool = True,
    ) -> None:
        """Create a reader.

        Args:
            channel: Connection to the server.
            ahead: Batches drawn per call. Later priorities and rows affect only the next call, and a limiter counts all
                of these batches as drawn. With 1, each batch is drawn when it is requested.
            timeout_s: Maximum wait for rows or for the server, in seconds.
            attach: Read the server's shared memory if it is accessible.

        Raises:
            ConfigurationError: `ahead` is below 1.
        """
        if ahead < 1:
            raise ConfigurationError(f"reader: ahead is {ahead}; it must be at least 1 batch")
        super().__init__(channel, timeout_s=timeout_s, ahead=ahead, attach=attach)
        self._rows: RowSource = (NearRows if attach else FarRows)(channel, ahead, timeout_s)
        self._updates = Updates(channel, timeout_s)
        self._num_sampled = 0
        self._generations: list[str] = []  # of all batches; only grows, so it is read without the lock
        self._on_devices = DeviceBatches()
        self._lock = threading.Lock()  # guards `_rows`, the count, `_on_devices`: `iter_batches` draws in a thread
        self._updates_lock = threading.Lock()  # guards `_updates`; never held together with the other lock
        self._is_closed = False

    def sample(
        self, n: int, out: Batch | None = None, keys: Sequence[str] | None = None, device: str | None = None
    ) -> Batch:
        """Draw `n` rows; wait until the replay has rows and its limiter permits the draw.

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
            ReplayTimeoutError: 64 updates wait for a server that does not answer.
        """
        self._check_open()
        with self._updates_lock:
            self._updates.add(self._generations, ids, priorities)

    def flush(self) -> None:
        """Wait until all priorities have arrived; raises what `update_priorities` raises."""
        with self._updates_lock:
            self._updates.flush()

    def wait(self, min_size: int, timeout_s: float | None = None) -> None:
        """Wait until the replay has `min_size` rows.

        Raises:
            ReplayTimeoutError: It has fewer rows after the timeout.
        """
        wait_s = self.timeout_s if timeout_s is None else timeout_s
        size = 0
        deadline = Deadline(wait_s, lambda: f"replay {self.channel.name!r} reached {size} of {min_size} rows")
        while True:
            size = deadline.answer(self.channel, ReplayServer.await_rows, min_size, poll_s(wait_s))
            if size >= min_size:
                return
            deadline.check(f"{min_size - size} rows are missing")

    def set_version(self, version: int) -> None:
        """Set the model version of rows added from now on."""
        self.ask(ReplayServer.set_version, version)

    def stats(self) -> dict[str, float]:
        """Return the counts of the replay and of this reader, as plain numbers.

        `reader_attached` is 1 if the reader copies rows from the server's shared memory.
        """
        return {
            **self.ask(ReplayServer.stats),
            "reader_sampled": self._num_sampled,
            "reader_attached": isinstance(self._rows, NearRows) and self._rows.generation != "",
            "reader_redrawn": self._rows.num_redrawn,
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
            self._rows = FarRows(self.channel, 1, 1.0)  # releases the memory

    def _sample(self, n: int, out: Batch | None, keys: Sequence[str] | None) -> Batch:
        deadline = Deadline(self.timeout_s, lambda: f"replay {self.channel.name!r} had nothing to draw for sample({n})")
        batch = self._rows.sample(n, out, keys, deadline)
        if batch is None:
            self._rows = FarRows(self.channel, self._options["ahead"], self.timeout_s)
            batch = self._rows.sample(n, out, keys, deadline)
        if self._rows.generation not in self._generations:
            self._generations.append(self._rows.generation)
        if number := self._generations.index(self._rows.generation):
            batch.ids[batch.ids >= 0] += number << ID_BITS
        self._num_sampled += n
        return batch

    def _check_open(self) -> None:
        if self._is_closed:
            raise ReplayClosedError(f"the reader of replay {self.channel.name!r} is closed; create a new one")


class Updates:
    """Sends priorities; a limited number of calls is in flight.

    Args:
        channel: Connection to the server.
        timeout_s: Maximum wait in seconds for a call when too many are in flight.

    Attributes:
        num_lost: Rows whose priorities were lost because the server was unreachable.
    """

    def __init__(self, channel: ReplayChannel[ReplayServer], timeout_s: float) -> None:
        self.num_lost = 0
        self._channel, self._timeout_s = channel, timeout_s
        self._calls: deque[tuple[int, Future[None]]] = deque()

    def add(self, generations: Sequence[str], ids: ArrayLike, priorities: ArrayLike) -> None:
        """Send priorities, float `[n]`, of rows, int64 `[n]`, whose upper bits number the generations.

        Raises:
            ConfigurationError: The lengths differ, or an earlier update was rejected.
            ReplayTimeoutError: The server does not answer, and too many calls are in flight.
        """
        all_ids, values = paired(ids, priorities)
        row_ids = all_ids.astype(np.int64)
        numbers = (row_ids >> ID_BITS).clip(0)
        for number in np.unique(numbers).tolist():
            while self._calls and (self._calls[0][1].done() or len(self._calls) >= MAX_UPDATES):
                self._finish_oldest()
            generation, is_in = "".join(generations[number : number + 1]), numbers == number
            row_ids_in = row_ids[is_in] - (number << ID_BITS)
            call = self._channel.begin(ReplayServer.update_priorities, generation, row_ids_in, values[is_in])
            self._calls.append((len(row_ids_in), call))

    def flush(self) -> None:
        """Wait until all priorities have arrived; raises what `add` raises."""
        while self._calls:
            self._finish_oldest()

    def _finish_oldest(self) -> None:
        deadline = Deadline(self._timeout_s, lambda: f"{self._channel.name!r} accepted no priorities")
        count, call = self._calls[0]
        try:
            deadline.result(call)
        except ConnectionError:
            self.num_lost += count
        finally:
            if call.done():
                self._calls.popleft()


class ReadAheadQueue(Generic[Item]):
    """A short queue of draws or batches, of which each call returns several; a low-water mark starts the next call.

    Args:
        begin: Starts a call.
        low: Low-water mark: number of remaining items that triggers the next call.
    """

    def __init__(self, begin: Callable[[], Answer[Item]], low: int) -> None:
        self._begin: Callable[[], Answer[Item]] = begin
        self._low = low
        self._items: deque[tuple[str, Item]] = deque()
        self._call: Answer[Item] | None = None

    def next(self, deadline: Deadline) -> tuple[str, Item]:
        """Return the next item and the generation of its rows.

        Raises:
            ReplayTimeoutError: There was none in time.
            TrieyeError: Raised by the server.
        """
        while not self._items or (self._call is not None and self._call.done()):
            self._fetch(deadline)
        generation, item = self._items.popleft()
        if self._call is None and len(self._items) <= self._low:
            self._call = self._begin()
        item.ids, item.weights = item.ids.copy(), item.weights.copy()  # received arrays are read-only
        item.mask = None if item.mask is None else item.mask.copy()
        return generation, item

    def _fetch(self, deadline: Deadline) -> None:
        self._call = call = self._call or self._begin()
        try:
            result = deadline.result(call)
        except ConnectionError as error:
            deadline.pause(str(error))
            return
        finally:
            if call.done():  # otherwise the next attempt waits for it
                self._call = None
        if isinstance(result, str):
            deadline.check(result)
        else:
            if self._items and self._items[0][0] != result[0]:  # drawn before the server was restored
                self._items.clear()
            self._items.extend((result[0], item) for item in result[1])


class RowSource(ABC):
    """Draws rows, several batches per call.

    Args:
        channel: Connection to the server.
        ahead: Batches drawn per call.
        timeout_s: Maximum wait of the reader in seconds.

    Attributes:
        generation: Generation of the memory that the rows came from; empty before the first draw.
        num_redrawn: Rows that were overwritten before they were copied, and redrawn.
    """

    def __init__(self, channel: ReplayChannel[ReplayServer], ahead: int, timeout_s: float) -> None:
        self.generation, self.num_redrawn = "", 0
        self._channel, self._num_ahead, self._poll_s = channel, ahead, poll_s(timeout_s)
        self._low = ahead // 2 if ahead > 1 else -1  # with -1, each batch is drawn on request
        self._queues: dict[Any, ReadAheadQueue[Any]] = {}

    @abstractmethod
    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Draw rows; return None if the server's memory is not accessible from this process.

        Raises:
            ReplayTimeoutError: No draw was possible in time.
            ConfigurationError: A key is unknown, or `out` has another size.
        """

    def _ahead(self, signature: Any, begin: Callable[[], Answer[Item]]) -> ReadAheadQueue[Item]:
        """Return the queue of draws with this signature."""
        if signature not in self._queues:
            self._queues[signature] = ReadAheadQueue(begin, self._low)
        return self._queues[signature]


class NearRows(RowSource):
    """Copies the rows that the server chooses from shared memory; the server does no other work for them."""

    _view: AttachedReplay

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Draw and copy rows; see `RowSource`."""
        while True:
            generation, draw = self._next(n, deadline)
            if generation != self.generation:
                is_attached = self._attach(generation, deadline)
                if is_attached is None:
                    return None
                if not is_attached:  # drawn by a server that has died since, whose memory was never attached
                    continue
            batch = self._copied(draw, out, keys, deadline)
            if batch is not None:
                return batch

    def _next(self, n: int, deadline: Deadline) -> tuple[str, SampledIds]:
        if not self.generation:  # a single draw, in case it cannot be copied from here
            return self._draw(n, deadline)
        draws = self._ahead(n, lambda: self._channel.begin(ReplayServer.plan, self._num_ahead, n, self._poll_s))
        return draws.next(deadline)

    def _attach(self, generation: str, deadline: Deadline) -> bool | None:
        """Attach the memory of a generation; return False if it is gone, and None if it is not accessible from here."""
        for _ in range(2):  # the second attempt distinguishes a server that just died from one on another machine
            current_generation, handle = deadline.answer(self._channel, ReplayServer.memory)
            if current_generation != generation:
                return False
            if handle is None:
                return None
            try:
                self._view = AttachedReplay(handle)
            except ConfigurationError:
                continue
            self.generation = generation
            return True
        return None

    def _copied(
        self, draw: SampledIds, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline
    ) -> Batch | None:
        """Copy rows until none were overwritten during the copy; return None if the memory changed instead."""
        while (batch := self._view.rows(draw, out, keys)) is None:
            stale = self._view.lost(draw)
            count = int(np.count_nonzero(stale))
            self.num_redrawn += count
            deadline.check("rows are overwritten faster than they can be copied")
            generation, fresh_draw = self._draw(count, deadline, again=True)
            if generation != self.generation:
                return None
            draw = spliced(draw, stale, fresh_draw)
        return batch

    def _draw(self, n: int, deadline: Deadline, *, again: bool = False) -> tuple[str, SampledIds]:
        """Return one draw, made now, and the generation of its rows."""
        return ReadAheadQueue(lambda: self._channel.begin(ReplayServer.plan, 1, n, self._poll_s, again), -1).next(
            deadline
        )


class FarRows(RowSource):
    """Requests whole batches from the server."""

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch:
        """Draw rows; see `RowSource`."""
        signature = n, None if keys is None else tuple(keys)
        queue: ReadAheadQueue[Batch] = self._ahead(
            signature, lambda: self._channel.begin(ReplayServer.batches, self._num_ahead, *signature, self._poll_s)
        )
        generation, batch = queue.next(deadline)
        if generation != self.generation:  # the other queues have batches from before the server was restored
            self.generation, self._queues = generation, {signature: queue}
        if out is None:
            batch.data = {key: np.array(array) for key, array in batch.data.items()}
            return batch
        out.check(n, batch.ids.shape, batch)
        for key, array in batch.data.items():
            np.copyto(out.data[key], array)
        batch.data, batch.records = out.data, out.records
        return batch
