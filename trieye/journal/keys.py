"""What the journal took already: the last number of each sender, and the keys that are used once."""

from trieye.exceptions import SequenceGapError

MAX_CALLS = 100_000
"""Keys that are remembered; a call is repeated within seconds, not after so many others."""


class TakenKeys:
    """Knows which batches, and which keys that are used once, the journal has taken.

    Attributes:
        clients: Number and position of the last batch of each sender.
        calls: Position of each key that is used once, in the order of the positions.
    """

    def __init__(self) -> None:
        self.clients: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, int] = {}

    def has(self, client: str, seq: int | None) -> bool:
        """Tell whether the journal took a batch before, or, without `seq`, a key.

        Raises:
            SequenceGapError: The journal has not taken the batch before this one.
        """
        if seq is None:
            return bool(client) and client in self.calls
        expected = self.clients.get(client, (0, 0))[0] + 1
        if seq > expected:
            raise SequenceGapError(f"batch {seq} of client {client!r} came, but {expected} is next", expected)
        return seq < expected

    def add(self, client: str, seq: int, pos: int) -> None:
        """Remember a batch that the journal took, or a key that is used once, whose `seq` is 0."""
        if seq:
            self.clients[client] = (seq, pos)
        elif client:
            self.calls[client] = pos
            if len(self.calls) > MAX_CALLS:
                del self.calls[next(iter(self.calls))]

    def since(self, pos: int) -> tuple[list[tuple[str, int, int]], list[tuple[int, str]]]:
        """Return rows of `clients` and rows of `calls` for the records after a position."""
        clients = [(client, *held) for client, held in sorted(self.clients.items()) if held[1] > pos]
        return clients, [(at, call) for call, at in self.calls.items() if at > pos]

    @property
    def oldest_call(self) -> int:
        """Position of the oldest key that is remembered; 0 if there is none."""
        return next(iter(self.calls.values()), 0)
