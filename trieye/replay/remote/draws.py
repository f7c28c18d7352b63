"""Where the rows of a reader come from: shared memory on the same machine, or the server's own copies."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np

from trieye.exceptions import ConfigurationError
from trieye.replay.batch import Batch
from trieye.replay.remote.channel import Channel, Deadline, poll_s
from trieye.replay.remote.messages import Plan
from trieye.replay.remote.server import ReplayServer
from trieye.replay.rows.store import AttachedReplay
from trieye.replay.samplers.base import Draw, spliced

Found = TypeVar("Found")
Item = TypeVar("Item")
Sent = tuple[str, Batch]


class Ahead(Generic[Found, Item]):
    """A short queue of what one kind of call returns several of; one call is under way while half of it is left.

    Args:
        begin: Begins a call.
        unpack: Returns the items of its result, or why there is none yet.
        low: Number of items at which the next call begins.
    """

    def __init__(
        self, begin: Callable[[], "Future[Found]"], unpack: Callable[[Found], Sequence[Item] | str], low: int
    ) -> None:
        self._begin, self._unpack, self._low = begin, unpack, low
        self._items: deque[Item] = deque()
        self._call: Future[Found] | None = None

    def next(self, deadline: Deadline) -> Item:
        """Return the next item.

        Raises:
            ReplayTimeoutError: There was none in time.
            TrieyeError: What the server raised.
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
            found = deadline.result(call)
        except ConnectionError as error:
            self._call = None
            deadline.pause(str(error))
            return
        except Exception:
            if call.done():
                self._call = None
            raise
        self._call = None
        items = self._unpack(found)
        if isinstance(items, str):
            deadline.check(items)
        else:
            self._items.extend(items)


def _low(ahead: int) -> int:
    """Return how few batches are left when more are decided on; of single ones none before it is asked for."""
    return ahead // 2 if ahead > 1 else -1


class NearRows:
    """Copies the rows that the server decides on; the server's process does nothing else for them.

    Args:
        channel: The way to the server.
        table: Name of the table.
        ahead: Batches that are decided with one call.
        timeout_s: How long the reader waits at most, seconds.

    Attributes:
        generation: Of the memory that is attached; empty before the first draw.
        num_redrawn: Rows that were overwritten before they were copied, and drawn anew.
    """

    def __init__(self, channel: Channel[ReplayServer], table: str, ahead: int, timeout_s: float) -> None:
        self.generation, self.num_redrawn = "", 0
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._view: AttachedReplay
        self._plans: dict[int, Ahead[Plan | str, tuple[str, Draw]]] = {}

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Draw rows; return None if the server's memory cannot be read from here.

        Raises:
            ReplayTimeoutError: There was nothing to draw in time.
            ConfigurationError: A key is unknown, or `out` is of another size.
        """
        while True:
            generation, draw = self._next(n, deadline)
            if generation != self.generation:
                found = self._attach(generation, deadline)
                if found is None:
                    return None
                if not found:  # decided by a server that died since, and whose memory was never seen here
                    continue
            batch = self._copied(draw, out, keys, deadline)
            if batch is not None:
                return batch

    def _next(self, n: int, deadline: Deadline) -> tuple[str, Draw]:
        if not self.generation:  # one only, in case it cannot be copied from here
            return _draws(self._plan(n, deadline))[0]
        plans = self._plans.get(n)
        if plans is None:
            plans = self._plans[n] = Ahead(
                lambda: self._channel.begin(ReplayServer.plan, self._table, self._num_ahead, n, self._poll_s),
                lambda found: found if isinstance(found, str) else _draws(found),
                _low(self._num_ahead),
            )
        return plans.next(deadline)

    def _attach(self, generation: str, deadline: Deadline) -> bool | None:
        """Look at the memory of a generation; return False if it is gone, and None if it cannot be seen from here."""
        for _ in range(2):  # at the second time, a server that just died is told from one on another machine
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

    def _copied(self, draw: Draw, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Copy rows until none of them was overwritten meanwhile; return None if the memory changed instead."""
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
        """Return one draw, decided now."""
        while True:
            plan = deadline.answer(self._channel, ReplayServer.plan, self._table, 1, n, self._poll_s, again)
            if isinstance(plan, Plan):
                return plan
            deadline.check(plan)


def _draws(plan: Plan) -> list[tuple[str, Draw]]:
    return [(plan.generation, draw) for draw in plan.draws()]


class FarRows:
    """Asks the server for whole batches, several at a time.

    Args:
        channel: The way to the server.
        table: Name of the table.
        ahead: Batches that come with one call.
        timeout_s: How long the reader waits at most, seconds.

    Attributes:
        generation: Of the memory that the rows came from; empty before the first draw.
    """

    def __init__(self, channel: Channel[ReplayServer], table: str, ahead: int, timeout_s: float) -> None:
        self.generation = ""
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._batches: dict[tuple[int, tuple[str, ...] | None], Ahead[list[Sent] | str, Sent]] = {}

    def sample(self, n: int, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch:
        """Draw rows.

        Raises:
            ReplayTimeoutError: There was nothing to draw in time.
            ConfigurationError: A key is unknown, or `out` is of another size.
        """
        wanted = None if keys is None else tuple(keys)
        batches = self._batches.get((n, wanted))
        if batches is None:
            batches = self._batches[n, wanted] = Ahead(
                lambda: self._channel.begin(
                    ReplayServer.batches, self._table, self._num_ahead, n, wanted, self._poll_s
                ),
                lambda found: found,
                _low(self._num_ahead),
            )
        self.generation, batch = batches.next(deadline)
        # what was sent is read-only
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
