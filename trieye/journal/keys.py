"""AcceptedKeys: detects repeated batches and calls by the last batch number of each sender and the keys of calls."""

from trieye.exceptions import SequenceGapError

MAX_CALLS = 100_000
"""Number of retained keys; a call is repeated within seconds, long before as many others arrive."""


class AcceptedKeys:
    """Batches and keys of calls that the journal has accepted.

    Attributes:
        clients: Number and position of the last batch of each sender.
        calls: Position of each key of a call, in ascending order of positions.
    """

    def __init__(self) -> None:
        self.clients: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, int] = {}

    def has(self, client: str, seq: int | None) -> bool:
        """Return whether the journal has accepted a batch already, or, without `seq`, a key.

        Raises:
            SequenceGapError: The journal does not have the sender's previous batch.
        """
        if seq is None:
            return bool(client) and client in self.calls
        expected = self.clients.get(client, (0, 0))[0] + 1
        if seq > expected:
            raise SequenceGapError(f"client {client!r} sent batch {seq}, but batch {expected} is next", expected)
        return seq < expected

    def add(self, client: str, seq: int, pos: int) -> None:
        """Add an accepted batch, or the key of a call if `seq` is 0."""
        if seq:
            self.clients[client] = (seq, pos)
        elif client:
            self.calls[client] = pos
            if len(self.calls) > MAX_CALLS:
                del self.calls[next(iter(self.calls))]

    def since(self, pos: int) -> tuple[list[tuple[str, int, int]], list[tuple[int, str]]]:
        """Return the rows of `clients` and of `calls` for the entries after a position."""
        clients = [(client, *last) for client, last in sorted(self.clients.items()) if last[1] > pos]
        return clients, [(at, call) for call, at in self.calls.items() if at > pos]

    @property
    def oldest_call(self) -> int:
        """Position of the oldest retained key; 0 without any."""
        return next(iter(self.calls.values()), 0)
