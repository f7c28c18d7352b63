"""Exactly-once delivery: the numbered batches of a writer, and the server's acknowledged row counts."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trieye.replay.remote.messages import Block, RowBatch

MAX_CLIENTS = 10_000
"""Maximum number of remembered writers; the longest silent ones are forgotten first."""


@dataclass(frozen=True, slots=True)
class Ack:
    """A table's progress with the rows of one writer.

    Attributes:
        end: Number of its rows added to the buffer so far.
        saved: Number of its rows in a snapshot.
        refused: Why the batch was not added; empty if it was.
        lost: Number of its rows that were lost with the server and that the writer no longer had.
    """

    end: int
    saved: int = 0
    refused: str = ""
    lost: int = 0


@dataclass(slots=True)
class Parcel:
    """A numbered batch, unchanged in every attempt to send it.

    Attributes:
        first: Number of its first row, counted over the lifetime of the writer.
        block: The memory of its rows.
        rows: The rows.
        was_acknowledged: Whether the server has acknowledged it.
    """

    first: int
    block: Block
    rows: RowBatch
    was_acknowledged: bool = False

    @property
    def end(self) -> int:
        """Number of the row after its last one."""
        return self.first + len(self.rows)


class Outbox:
    """Chooses the next batch to send, without threads or a clock.

    Up to `max_inflight` batches are in flight. If one is not added, sending stops until all batches in flight are
    answered, then restarts from the server's position. Acknowledged batches are retained until a snapshot contains
    them; the oldest are discarded when they exceed `keep_bytes`.

    Attributes:
        end: Number of rows queued so far.
        num_acknowledged: Number of those rows that the server has.
        num_resent: Acknowledged batches that were sent again because the server died.
        num_gone: Rows that the server lost and that were no longer retained here.
        kept_bytes: Memory of the acknowledged batches that are retained.
        num_inflight: Batches in flight.
        spare: Unused blocks, for new rows.
    """

    def __init__(self, *, max_inflight: int, keep_bytes: int) -> None:
        self.end = self.num_acknowledged = self.num_resent = self.num_gone = self.kept_bytes = self.num_inflight = 0
        self._max_inflight, self._keep_bytes = max_inflight, keep_bytes
        self.spare: deque[Block] = deque(maxlen=max_inflight + 1)
        self._retained: deque[Parcel] = deque()
        self._pending: deque[Parcel] = deque()  # unacknowledged; the first `_num_sent` were sent
        self._num_sent = 0
        self._is_back = False

    @property
    def oldest(self) -> int:
        """Number of the oldest row that can still be sent."""
        return next((parcels[0].first for parcels in (self._retained, self._pending) if parcels), self.end)

    @property
    def next_size(self) -> int:
        """Number of rows in the oldest unacknowledged batch; 0 without one."""
        return len(self._pending[0].rows) if self._pending else 0

    @property
    def num_waiting(self) -> int:
        """Number of unacknowledged rows."""
        return self.end - self.num_acknowledged

    @property
    def is_held_up(self) -> bool:
        """Whether a batch was not added and every batch in flight has been answered; `go_back` must follow."""
        return self._is_back and not self.num_inflight

    def put(self, block: Block) -> None:
        """Queue a batch, which must not change afterwards."""
        self._pending.append(Parcel(self.end, block, block.rows()))
        self.end += block.count

    def next(self) -> Parcel | None:
        """Return the next batch to send and mark it as in flight; None if nothing can be sent now."""
        if self._is_back or self.num_inflight >= self._max_inflight or self._num_sent == len(self._pending):
            return None
        self._num_sent += 1
        self.num_inflight += 1
        return self._pending[self._num_sent - 1]

    def answered(self, parcel: Parcel, ack: Ack) -> int:
        """Process an answer; return the number of newly acknowledged batches."""
        self.num_inflight -= 1
        if ack.end < parcel.end:
            self._is_back = True
            return 0
        return self._process(ack)

    def failed(self) -> None:
        """Record that a batch got no answer; the server may have it."""
        self.num_inflight -= 1
        self._is_back = True

    def go_back(self, ack: Ack) -> int:
        """Continue after the rows that the server has; return the number of newly acknowledged batches.

        Call it only if no batch is in flight.
        """
        self._is_back, self._num_sent = False, 0
        while self._retained and self._retained[-1].end > ack.end:
            self.kept_bytes -= self._retained[-1].block.size_bytes
            self._pending.appendleft(self._retained.pop())
            self.num_resent += 1
        # stop waiting for rows that the server lost and that are no longer retained
        self.num_acknowledged = max(ack.end, self.oldest)
        self.num_gone = max(self.num_gone, ack.lost + self.num_acknowledged - ack.end)
        return self._process(ack)

    def _process(self, ack: Ack) -> int:
        num_new = 0
        self.num_gone = max(self.num_gone, ack.lost)
        while self._pending and self._pending[0].end <= ack.end:
            parcel = self._pending.popleft()
            self._num_sent = max(self._num_sent - 1, 0)
            num_new += not parcel.was_acknowledged
            parcel.was_acknowledged = True
            self.kept_bytes += parcel.block.size_bytes
            self._retained.append(parcel)
        self.num_acknowledged = max(self.num_acknowledged, ack.end)
        while self._retained and (self._retained[0].end <= ack.saved or self.kept_bytes > self._keep_bytes):
            block = self._retained.popleft().block
            self.kept_bytes -= block.size_bytes
            self.spare.append(block)
        return num_new


class AcknowledgedCounts:
    """Number of acknowledged rows of each writer, by the writer's name.

    A writer numbers its rows from 0 and sends them in batches with fixed boundaries, so the number of a batch's first
    row distinguishes new, duplicate and early batches.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.num_lost = 0
        """Acknowledged rows that are lost: after the server died, no writer had them any more."""

    def __len__(self) -> int:
        return len(self._ends)

    def ack(self, client: str, refused: str = "") -> Ack:
        """Return a writer's progress, and why its batch was not added."""
        return Ack(self._ends.get(client, 0), self._saved.get(client, 0), refused, self._lost.get(client, 0))

    def judge(self, client: str, first: int, oldest: int) -> Literal["next", "duplicate", "early"]:
        """Classify a batch.

        Args:
            client: The writer.
            first: Number of the first row of the batch.
            oldest: Number of the oldest row that the writer can still send.
        """
        end = self._ends.get(client, 0)
        if first < end:
            return "duplicate"
        return "next" if first in {end, oldest} else "early"

    def record(self, client: str, first: int, count: int) -> None:
        """Record an added batch."""
        gap = first - self._ends.pop(client, 0)
        if gap:
            self._lost[client] = self._lost.get(client, 0) + gap
            self.num_lost += gap
        self._ends[client] = first + count  # moves the writer to the end of the dict, which is ordered by activity
        if len(self._ends) > MAX_CLIENTS:
            self.forget(next(iter(self._ends)))

    def forget(self, client: str) -> None:
        """Forget a writer that sends nothing more."""
        for numbers in (self._ends, self._saved, self._lost):
            numbers.pop(client, None)

    def are_saved(self, ends: Mapping[str, int]) -> None:
        """Record that a snapshot contains these ends, which `state_dict` returned."""
        self._saved = {client: end for client, end in ends.items() if client in self._ends}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return {"ends": dict(self._ends), "lost": dict(self._lost), "num_lost": self.num_lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot; all rows that it contains are saved."""
        self._ends = {str(client): int(end) for client, end in state["ends"].items()}
        self._saved = dict(self._ends)
        self._lost = {str(client): int(lost) for client, lost in state["lost"].items()}
        self.num_lost = int(state["num_lost"])
