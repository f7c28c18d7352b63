"""WaitingLine: readers that wait for chunks, served in the order in which they came."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


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
