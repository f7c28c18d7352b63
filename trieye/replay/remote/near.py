"""NearRows: rows of a table on the same machine, copied by the reader itself out of shared memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trieye.exceptions import ConfigurationError
from trieye.replay.attached import AttachedReplay
from trieye.replay.batch import Batch
from trieye.replay.remote.ahead import Ahead
from trieye.replay.remote.calls import Deadline, poll_s
from trieye.replay.remote.channel import Channel
from trieye.replay.remote.messages import Memory, Plan, below
from trieye.replay.samplers.base import Draw, spliced


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

    def __init__(self, channel: Channel, table: str, ahead: int, timeout_s: float) -> None:
        self.generation = ""
        self.num_redrawn = 0
        self._channel, self._table, self._num_ahead = channel, table, ahead
        self._poll_s = poll_s(timeout_s)
        self._view: AttachedReplay
        self._plans: dict[int, Ahead[tuple[str, Draw]]] = {}

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
                lambda: self._channel.begin("plan", self._table, self._num_ahead, n, self._poll_s),
                lambda found: found if isinstance(found, str) else _draws(found),
                self._num_ahead // 2,
            )
        return plans.next(deadline)

    def _attach(self, generation: str, deadline: Deadline) -> bool | None:
        """Look at the memory of a generation; return False if it is gone, and None if it cannot be seen from here."""
        for _ in range(2):  # at the second time, a server that just died is told from one on another machine
            memory = self._memory(deadline)
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

    def _memory(self, deadline: Deadline) -> Memory:
        while True:
            try:
                memory: Memory = deadline.result(self._channel.begin("memory", self._table))
            except ConnectionError as error:
                deadline.pause(str(error))
            else:
                return memory

    def _copied(self, draw: Draw, out: Batch | None, keys: Sequence[str] | None, deadline: Deadline) -> Batch | None:
        """Copy rows until none of them was overwritten meanwhile; return None if the memory changed instead."""
        while (batch := self._view.rows(draw, out, keys)) is None:
            stale = self._stale(draw)
            count = int(np.count_nonzero(stale))
            self.num_redrawn += count
            deadline.check("rows are overwritten faster than they can be copied")
            fresh = self._plan(count, deadline)
            if fresh.generation != self.generation:
                return None
            draw = spliced(draw, stale, fresh.draws()[0])
        return batch

    def _stale(self, draw: Draw) -> NDArray[np.bool_]:
        """Return bool `[n]`, which rows or sequences are overwritten; all if it is something that they are made of."""
        counters = self._view.counters()
        stale = below(draw, max(counters["low"], counters["writing_until"] - self._view.capacity))
        return stale if stale.any() else np.ones(len(draw), np.bool_)

    def _plan(self, n: int, deadline: Deadline) -> Plan:
        """Return one draw, decided now."""
        while True:
            try:
                plan: Plan | str = deadline.result(self._channel.begin("plan", self._table, 1, n, self._poll_s))
            except ConnectionError as error:
                deadline.pause(str(error))
                continue
            if isinstance(plan, Plan):
                return plan
            deadline.check(plan)


def _draws(plan: Plan) -> list[tuple[str, Draw]]:
    return [(plan.generation, draw) for draw in plan.draws()]
