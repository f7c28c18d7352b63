"""Readers of a fragment buffer: their waiting queue and their leases."""

import math
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from trieye.exceptions import LeaseExpiredError
from trieye.replay.fragments.fragment import Chunk, Lease
from trieye.replay.fragments.payloads import uncount

ABSENCE_S = 1.0
"""Time for which a reader that waits in several calls keeps its place between two of them."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A reader's request in the queue.

    Attributes:
        num_chunks: Number of chunks requested.
        requested_at: Arrival time in seconds of the buffer's clock.
        wake: Makes the reader check again; returns False if the reader no longer exists.
        reader: Name of a reader that waits in several calls; empty for one that waits in a single call.
        gone_at: Time at which the reader loses its place; infinite during a call.
    """

    num_chunks: int
    requested_at: float
    wake: Callable[[], bool]
    reader: str = ""
    gone_at: float = math.inf


class ReaderQueue:
    """A FIFO queue of readers: only the first may take chunks, so small requests cannot starve a large one.

    A woken reader takes its chunks itself, so a reader that timed out before has taken nothing.
    """

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def num_wanted(self) -> int:
        """Number of chunks that the first reader requests; 0 without readers."""
        return self._tickets[0].num_chunks if self._tickets else 0

    def join(self, ticket: Ticket) -> None:
        """Add a reader at the end, or at the place that it kept."""
        for index, old_ticket in enumerate(self._tickets):
            if ticket.reader and ticket.reader == old_ticket.reader:
                ticket.requested_at = old_ticket.requested_at
                self._tickets[index] = ticket
                return
        self._tickets.append(ticket)

    def is_first(self, ticket: Ticket) -> bool:
        """Return True if no reader is ahead of this one, and a later call has not replaced its ticket."""
        return bool(self._tickets) and self._tickets[0] is ticket

    def position(self, ticket: Ticket) -> int:
        """Return the number of readers ahead of this one."""
        return sum(1 for _ in takewhile(lambda other: other is not ticket, self._tickets))

    def pause(self, ticket: Ticket, now: float) -> None:
        """Keep the place of a reader for its next call."""
        ticket.gone_at, ticket.wake = now + ABSENCE_S, lambda: True

    def leave(self, ticket: Ticket) -> None:
        """Remove a reader, unless its place is kept."""
        if ticket in self._tickets and ticket.gone_at == math.inf:
            self._tickets.remove(ticket)

    def remove(self, reader: str) -> None:
        """Remove a reader by its name."""
        self._tickets = deque(ticket for ticket in self._tickets if ticket.reader != reader)

    def sweep(self, now: float) -> None:
        """Remove readers that did not return for their next call."""
        if any(ticket.gone_at <= now for ticket in self._tickets):
            self._tickets = deque(ticket for ticket in self._tickets if ticket.gone_at > now)

    def wake_first(self, num_available: int) -> None:
        """Let the first reader check again if `num_available` chunks may be enough for it."""
        while 0 < self.num_wanted <= num_available and not self._tickets[0].wake():
            self._tickets.popleft()

    def wake_all(self) -> None:
        """Let every reader check again, as after closing the buffer."""
        for ticket in list(self._tickets):
            ticket.wake()


class Leases:
    """Open leases, ordered by expiry, earliest first."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._rows: OrderedDict[str, tuple[Lease, float]] = OrderedDict()  # each with its expiry
        self.pinned: Counter[int] = Counter()  # number of leases on each chunk, by chunk id
        self._prefix = secrets.token_hex(4)  # makes lease ids of an earlier process invalid
        self._count = 0

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, chunks: tuple[Chunk, ...], now: float) -> Lease:
        """Open a lease on chunks."""
        self._count += 1
        lease = Lease(f"{self._prefix}-{self._count}", chunks)
        self._rows[lease.id] = lease, now + self._ttl_s
        self.pinned.update(chunk.id for chunk in chunks)
        return lease

    def read(self, lease_id: str, now: float) -> Lease:
        """Return a lease and restart its expiry.

        Raises:
            LeaseExpiredError: The lease was released, has expired, or never existed here.
        """
        lease, _ = self._rows.pop(lease_id, (None, 0.0))
        if lease is None:
            raise LeaseExpiredError(
                f"lease {lease_id!r} is not open: it was released, expired after lease_ttl_s={self._ttl_s:g}, or "
                f"belongs to another buffer ({len(self._rows)} are open); fetch again"
            )
        self._rows[lease_id] = lease, now + self._ttl_s
        return lease

    def close(self, lease_id: str) -> tuple[Chunk, ...]:
        """Close a lease and return its chunks; none if it is not open."""
        if lease_id not in self._rows:
            return ()
        lease, _ = self._rows.pop(lease_id)
        for chunk in lease.chunks:
            uncount(self.pinned, chunk.id)
        return lease.chunks

    def expired(self, now: float) -> list[str]:
        """Return the ids of expired leases."""
        return [lease.id for lease, _ in takewhile(lambda row: row[1] <= now, self._rows.values())]
