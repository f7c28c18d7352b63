"""Updates: new priorities on their way to a server, which nobody waits for."""

from collections import deque
from concurrent.futures import Future

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trieye.exceptions import ConfigurationError, ReplayTimeoutError
from trieye.replay.remote.calls import Deadline
from trieye.replay.remote.channel import Channel
from trieye.replay.samplers.base import Ids

MAX_CALLS = 2
MAX_WAITING_ROWS = 1 << 16


class Updates:
    """Sends priorities while few calls are under way, and otherwise collects them for the next one.

    Args:
        channel: The way to the server.
        table: Name of the table.
        timeout_s: How long to wait at most when too many have been collected.

    Attributes:
        num_lost: Rows whose priorities were lost because the server could not be reached.
    """

    def __init__(self, channel: Channel, table: str, timeout_s: float) -> None:
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
        known, values = np.asarray(ids), np.array(priorities, np.float64)
        if known.shape != values.shape or known.ndim != 1:
            raise ConfigurationError(
                f"update_priorities: {known.shape} ids and {values.shape} priorities; both must be [n]"
            )
        if generation != self._generation:
            self._generation, self._waiting = generation, []
        self._waiting.append((known.astype(np.int64), values))
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
        call = self._channel.begin("update_priorities", self._table, self._generation, ids, priorities)
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
