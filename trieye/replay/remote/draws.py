"""Row sources of a reader: shared memory on the same machine, or batches sent by the server."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.remote.channel import Deadline, ReplayChannel, poll_s
from trieye.replay.remote.messages import Plan
from trieye.replay.remote.server import ReplayServer
from trieye.replay.rows.attached import AttachedReplay
from trieye.replay.samplers.base import SampledIds, spliced

CallResult = TypeVar("CallResult")
Item = TypeVar("Item")
SentBatch = tuple[str, Batch]


class ReadAheadQueue(Generic[CallResult, Item]):
    """A short queue of items that calls return several at a time; it starts the next call at a low-water mark.

    Args:
        begin: Starts a call.
        unpack: Returns the items of its result, or why there are none yet.
        low: Low-water mark: number of remaining items that triggers the next call.
    """

    def __init__(
        self, begin: Callable[[], "Future[CallResult]"], unpack: Callable[[CallResult], Sequence[Item] | str], low: int
    ) -> None:
        self._begin, self._unpack, self._low = begin, unpack, low
        self._items: deque[Item] = deque()
        self._call: Future[CallResult] | None = None

    def next(self, deadline: Deadline) -> Item:
        """Return the next item.

        Raises:
            ReplayTimeoutError: There was none in time.
            TrieyeError: Raised by the server.
        """
        while not self._items:
            self._fetch(deadline)
        item = self._items.popleft()
        if self._call is None and len(self._items) <= self._low:
            self._call = self._begin()
        return item

    def _fetch(self, deadline: Deadline) -> None:
        call = self._call or self._begin()
        self._call = call
        try:
            result = deadline.result(call)
        except ConnectionError as error:
            self._call = None
            deadline.pause(str(error))
            return
        except Exception:
            if call.done():
                self._call = None
            raise
        self._call = None
        items = self._unpack(result)
        if isinstance(items, str):
            deadline.check(items)
        else:
            self._items.extend(items)


def _low(ahead: int) -> int:
    """Return the low-water mark of drawn batches; -1 if each batch is drawn on request."""
    return ahead // 2 if ahead > 1 else -1


class NearRows:
    """Copies the rows that the server chooses from shared memory; the server does no other work for them.

    Args:
        channel: Connection to the server.
        table: Name of the table.
        ahead: Batches drawn per call.
        timeout_s: Maximum wait of the reader in seconds.

    Attributes:
        generation: Generation of the attached memory; empty before the first draw.
        num_redrawn: Rows that were overwritten before they were copied, and redrawn.
    """

    def __init__(self, channel: ReplayChannel[ReplayServer], table: str, ahead: int, timeout_s: float) -> None:
        self.generation, self.num_redrawn = "", 0
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._view: AttachedReplay
        self._plans: dict[int, ReadAheadQueue[Plan | str, tuple[str, SampledIds]]] = {}

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Draw rows; return None if the server's memory is not accessible from this process.

        Raises:
            ReplayTimeoutError: No draw was possible in time.
            ConfigurationError: A key is unknown, or `out` has another size.
        """
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
            return _draws(self._plan(n, deadline))[0]
        plans = self._plans.get(n)
        if plans is None:
            plans = self._plans[n] = ReadAheadQueue(
                lambda: self._channel.begin(ReplayServer.plan, self._table, self._num_ahead, n, self._poll_s),
                lambda result: result if isinstance(result, str) else _draws(result),
                _low(self._num_ahead),
            )
        return plans.next(deadline)

    def _attach(self, generation: str, deadline: Deadline) -> bool | None:
        """Attach the memory of a generation; return False if it is gone, and None if it is not accessible from here."""
        for _ in range(2):  # the second attempt distinguishes a server that just died from one on another machine
            memory = deadline.answer(self._channel, ReplayServer.memory, self._table)
            if memory.generation != generation:
                return False
            if memory.handle is None:
                return None
            try:
                self._view = AttachedReplay(memory.handle)
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
            fresh = self._plan(count, deadline, again=True)
            if fresh.generation != self.generation:
                return None
            draw = spliced(draw, stale, fresh.draws()[0])
        return batch

    def _plan(self, n: int, deadline: Deadline, *, again: bool = False) -> Plan:
        """Return one draw, made now."""
        while True:
            plan = deadline.answer(self._channel, ReplayServer.plan, self._table, 1, n, self._poll_s, again)
            if isinstance(plan, Plan):
                return plan
            deadline.check(plan)


def _draws(plan: Plan) -> list[tuple[str, SampledIds]]:
    return [(plan.generation, draw) for draw in plan.draws()]


class FarRows:
    """Requests whole batches from the server, several per call.

    Args:
        channel: Connection to the server.
        table: Name of the table.
        ahead: Batches per call.
        timeout_s: Maximum wait of the reader in seconds.

    Attributes:
        generation: Generation of the memory that the rows came from; empty before the first draw.
    """

    def __init__(self, channel: ReplayChannel[ReplayServer], table: str, ahead: int, timeout_s: float) -> None:
        self.generation = ""
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._batches: dict[tuple[int, tuple[str, ...] | None], ReadAheadQueue[list[SentBatch] | str, SentBatch]] = {}

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch:
        """Draw rows.

        Raises:
            ReplayTimeoutError: No draw was possible in time.
            ConfigurationError: A key is unknown, or `out` has another size.
        """
        selected_keys = None if keys is None else tuple(keys)
        batches = self._batches.get((n, selected_keys))
        if batches is None:
            batches = self._batches[n, selected_keys] = ReadAheadQueue(
                lambda: self._channel.begin(
                    ReplayServer.batches, self._table, self._num_ahead, n, selected_keys, self._poll_s
                ),
                lambda result: result,
                _low(self._num_ahead),
            )
        self.generation, batch = batches.next(deadline)
        # received arrays are read-only
        batch.ids, batch.weights = batch.ids.copy(), batch.weights.copy()
        batch.mask = None if batch.mask is None else batch.mask.copy()
        if out is None:
            batch.data = {key: np.array(array) for key, array in batch.data.items()}
            return batch
        out.check(n, batch.ids.shape, batch)
        for key, array in batch.data.items():
            np.copyto(out.data[key], array)
        batch.data, batch.records = out.data, out.records
        return batch
