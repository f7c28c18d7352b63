"""Readers of a fragment buffer: the line in which they wait, and the leases that they hold."""

import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from trieye.exceptions import LeaseExpiredError
from trieye.replay.fragments.fragment import Chunk, Lease


@dataclass(eq=False, slots=True)
class Ticket:
    """A reader's place in the line.

    Attributes:
        num_chunks: How many it wants.
        began: When it came, in seconds of the buffer's clock.
        wake: Makes it look again; returns False if nobody is there any more.
    """

    num_chunks: int
    began: float
    wake: Callable[[], bool]


class WaitingLine:
    """Only the first may take something, so that a large request is not starved by small ones.

    A reader takes its chunks itself when it was woken: one that gave up before has taken nothing.
    """

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def num_wanted(self) -> int:
        """How many chunks the first reader wants; 0 if nobody waits."""
        return self._tickets[0].num_chunks if self._tickets else 0

    def join(self, ticket: Ticket) -> None:
        """Add a reader at the end."""
        self._tickets.append(ticket)

    def place(self, ticket: Ticket) -> int:
        """Return how many are before a reader."""
        return self._tickets.index(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Take a reader out."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def wake_first(self, num_available: int) -> None:
        """Let the first reader look again, if so many chunks may be enough for it."""
        while 0 < self.num_wanted <= num_available and not self._tickets[0].wake():
            self._tickets.popleft()

    def wake_all(self) -> None:
        """Let every reader look, as when the buffer is closed."""
        for ticket in list(self._tickets):
            ticket.wake()


@dataclass(slots=True)
class _Row:
    lease: Lease
    serials: list[int]
    expires: float


class Leases:
    """Open leases, the one that runs out first at the front."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._rows: OrderedDict[str, _Row] = OrderedDict()
        self._pins: Counter[int] = Counter()
        self._prefix = secrets.token_hex(4)  # ids of an earlier process must not mean anything here
        self._count = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def pinned(self) -> Counter[int]:
        """How many leases hold each chunk, by its id."""
        return self._pins

    def open(self, chunks: tuple[Chunk, ...], serials: list[int], now: float) -> Lease:
        """Make a lease on chunks, whose fragments have these serial numbers."""
        self._count += 1
        lease = Lease(f"{self._prefix}-{self._count}", chunks)
        self._rows[lease.id] = _Row(lease, serials, now + self._ttl_s)
        self._pins.update(chunk.id for chunk in chunks)
        return lease

    def read(self, lease_id: str, now: float) -> Lease:
        """Return a lease, and let its time begin anew.

        Raises:
            LeaseExpiredError: It was released, ran out, or never existed here.
        """
        row = self._rows.get(lease_id)
        if row is None:
            raise LeaseExpiredError(
                f"lease {lease_id!r} is not open: it was released, ran out after lease_ttl_s={self._ttl_s:g}, or "
                f"belongs to another buffer ({len(self._rows)} are open); fetch again"
            )
        row.expires = now + self._ttl_s
        self._rows.move_to_end(lease_id)
        return row.lease

    def close(self, lease_id: str) -> list[int] | None:
        """End a lease and return the serial numbers that it held; None if it is not open."""
        row = self._rows.pop(lease_id, None)
        if row is None:
            return None
        for chunk in row.lease.chunks:
            self._pins[chunk.id] -= 1
            if not self._pins[chunk.id]:
                del self._pins[chunk.id]
        return row.serials

    def expired(self, now: float) -> list[str]:
        """Return the ids of the leases that ran out."""
        found = []
        for lease_id, row in self._rows.items():
            if row.expires > now:
                break
            found.append(lease_id)
        return found
