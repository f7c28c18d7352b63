"""Delivery: the numbered batches of a writer, and the receipts by which each is taken once."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trieye.replay.remote.messages import Block, Rows

MAX_CLIENTS = 10_000
"""Writers that are remembered; beyond that, those that were silent for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Ack:
    """How far a table has come with the rows of one writer.

    Attributes:
        end: Number of its rows that are in the ring, or went through it.
        saved: Number of its rows that a snapshot holds.
        refused: Why nothing was taken this time; empty otherwise.
        lost: Number of its rows that were in the ring before the server died, and that nobody kept.
    """

    end: int
    saved: int = 0
    refused: str = ""
    lost: int = 0


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
    def is_held_up(self) -> bool:
        """Whether something was not taken, and every batch under way has been answered: `go_back` comes next."""
        return self._is_back and not self.num_inflight

    def put(self, block: Block) -> None:
        """Put a batch at the end; nobody changes it from now on."""
        self._pending.append(Parcel(self.end, block, block.rows()))
        self.end += block.count

    def next(self) -> Parcel | None:
        """Return the batch to send now, which is under way from now on; None if there is none, or not now."""
        if self._is_back or self.num_inflight >= self._max_inflight or self._num_sent == len(self._pending):
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


class Receipts:
    """How many rows of each writer were taken, by the writer's name.

    A writer numbers its rows from 0 on and sends them in batches whose borders never change; so the number of the
    first row tells whether a batch is the next one, one that came before, or one that comes too early.
    """

    def __init__(self) -> None:
        self._ends: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._lost: dict[str, int] = {}
        self.num_lost = 0
        """Rows that were taken once and are gone: after the death of the server no writer had them any more."""

    def __len__(self) -> int:
        return len(self._ends)

    def ack(self, client: str, refused: str = "") -> Ack:
        """Tell a writer how far it has come, and why nothing was taken this time."""
        return Ack(self._ends.get(client, 0), self._saved.get(client, 0), refused, self._lost.get(client, 0))

    def judge(self, client: str, first: int, oldest: int) -> Literal["next", "known", "early"]:
        """Tell what to do with a batch.

        Args:
            client: The writer.
            first: Number of the first row of the batch.
            oldest: Number of the oldest row that the writer can still send.
        """
        end = self._ends.get(client, 0)
        if first < end:
            return "known"
        return "next" if first in {end, oldest} else "early"

    def take(self, client: str, first: int, count: int) -> None:
        """Note that a batch was taken."""
        gap = first - self._ends.pop(client, 0)
        if gap:
            self._lost[client] = self._lost.get(client, 0) + gap
            self.num_lost += gap
        self._ends[client] = first + count  # at the end of the dict: the order is that of the last words
        if len(self._ends) > MAX_CLIENTS:
            self.forget(next(iter(self._ends)))

    def forget(self, client: str) -> None:
        """Forget a writer that will send nothing more."""
        for numbers in (self._ends, self._saved, self._lost):
            numbers.pop(client, None)

    def are_saved(self, ends: Mapping[str, int]) -> None:
        """Note that a snapshot holds what had been taken when `state_dict` returned these ends."""
        self._saved = {client: end for client, end in ends.items() if client in self._ends}

    def state_dict(self) -> dict[str, Any]:
        """Return what goes into a snapshot."""
        return {"ends": dict(self._ends), "lost": dict(self._lost), "num_lost": self.num_lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a snapshot was taken; all that it holds is saved."""
        self._ends = {str(client): int(end) for client, end in state["ends"].items()}
        self._saved = dict(self._ends)
        self._lost = {str(client): int(lost) for client, lost in state["lost"].items()}
        self.num_lost = int(state["num_lost"])
