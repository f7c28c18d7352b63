"""Outbox: the batches of a writer, until the server has them and will not lose them any more."""

from collections import deque
from dataclasses import dataclass

from trieye.replay.remote.block import Block
from trieye.replay.remote.messages import Ack, Rows


@dataclass(slots=True)
class Parcel:
    """A batch that goes to the server as it is, however often.

    Attributes:
        first: Number of its first row, counted over the life of the writer.
        block: The memory of its rows.
        rows: The rows.
        was_taken: Whether the server has acknowledged it once.
    """

    first: int
    block: Block
    rows: Rows
    was_taken: bool = False

    @property
    def end(self) -> int:
        """Number of the row after its last one."""
        return self.first + len(self.rows)


class Outbox:
    """Decides what is sent next; plain data without threads or clock.

    Up to `max_inflight` batches are under way at a time. When one of them was not taken, nothing more is sent until all
    those have been answered, and then everything again from where the server is. Batches that were taken are kept until
    they are in a snapshot, the oldest ones only as long as they fit into `keep_bytes`.

    Attributes:
        end: Number of rows put in so far.
        taken: Number of them that the server has.
        num_resent: Batches that were taken and had to be sent again, because the server died.
        num_gone: Rows that the server lost and that were not kept here any more.
        kept_bytes: Memory of the batches that were taken and are kept all the same.
        num_inflight: Batches under way.
        spare: Blocks that are not needed any more, for new rows.
    """

    def __init__(self, *, max_inflight: int, keep_bytes: int) -> None:
        self.end = self.taken = self.num_resent = self.num_gone = self.kept_bytes = self.num_inflight = 0
        self._max_inflight, self._keep_bytes = max_inflight, keep_bytes
        self.spare: deque[Block] = deque(maxlen=max_inflight + 1)
        self._kept: deque[Parcel] = deque()
        self._pending: deque[Parcel] = deque()  # not known to be taken; the first ones were sent
        self._num_sent = 0
        self._is_back = False

    @property
    def oldest(self) -> int:
        """Number of the oldest row that can still be sent."""
        return next((parcels[0].first for parcels in (self._kept, self._pending) if parcels), self.end)

    @property
    def next_size(self) -> int:
        """Rows of the oldest batch that the server is not known to have; 0 if there is none."""
        return len(self._pending[0].rows) if self._pending else 0

    @property
    def num_waiting(self) -> int:
        """Rows that the server is not known to have."""
        return self.end - self.taken

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return self._num_sent < len(self._pending)

    @property
    def is_held_up(self) -> bool:
        """Whether something was not taken, and every batch under way has been answered: `go_back` comes next."""
        return self._is_back and not self.num_inflight

    def put(self, block: Block) -> None:
        """Put a batch at the end; nobody changes it from now on."""
        self._pending.append(Parcel(self.end, block, block.rows()))
        self.end += block.count

    def next(self) -> Parcel | None:
        """Return the batch to send now, which is under way from now on; None if there is none, or not now."""
        if self._is_back or self.num_inflight >= self._max_inflight or not self.has_unsent:
            return None
        self._num_sent += 1
        self.num_inflight += 1
        return self._pending[self._num_sent - 1]

    def answered(self, parcel: Parcel, ack: Ack) -> int:
        """Take note of an answer; return how many batches were taken for the first time."""
        self.num_inflight -= 1
        if ack.end < parcel.end:
            self._is_back = True
            return 0
        return self._note(ack)

    def failed(self) -> None:
        """Take note that a batch got no answer; the server may have it."""
        self.num_inflight -= 1
        self._is_back = True

    def go_back(self, ack: Ack) -> int:
        """Send next what follows the rows that the server has; return how many batches were taken for the first time.

        Only while nothing is under way.
        """
        self._is_back, self._num_sent = False, 0
        while self._kept and self._kept[-1].end > ack.end:
            self.kept_bytes -= self._kept[-1].block.size_bytes
            self._pending.appendleft(self._kept.pop())
            self.num_resent += 1
        # rows that the server lost and that are not kept any more are waited for no longer
        self.taken = max(ack.end, self.oldest)
        self.num_gone = max(self.num_gone, ack.lost + self.taken - ack.end)
        return self._note(ack)

    def _note(self, ack: Ack) -> int:
        num_new = 0
        self.num_gone = max(self.num_gone, ack.lost)
        while self._pending and self._pending[0].end <= ack.end:
            parcel = self._pending.popleft()
            self._num_sent = max(self._num_sent - 1, 0)
            num_new += not parcel.was_taken
            parcel.was_taken = True
            self.kept_bytes += parcel.block.size_bytes
            self._kept.append(parcel)
        self.taken = max(self.taken, ack.end)
        while self._kept and (self._kept[0].end <= ack.saved or self.kept_bytes > self._keep_bytes):
            block = self._kept.popleft().block
            self.kept_bytes -= block.size_bytes
            self.spare.append(block)
        return num_new
