"""What the journal took already: the last number of each sender, and the keys that are used once."""

from itertools import islice

from trieye.exceptions import SequenceGapError

MAX_CALLS = 100_000
"""Keys that are remembered; a call is repeated within seconds, not after so many others."""


class TakenKeys:
    """Knows which batches and calls were taken.

    Attributes:
        clients: Number and position of the last batch of each sender.
        calls: Position of each key that is used once, in the order of the positions.
    """

    def __init__(self) -> None:
        self.clients: dict[str, tuple[int, int]] = {}
        self.calls: dict[str, int] = {}
        self._new_clients: set[str] = set()
        self._new_calls: list[tuple[int, str]] = []

    def has(self, client: str, seq: int | None) -> bool:
        """Tell whether something was taken before.

        Raises:
            SequenceGapError: What comes before it was not.
        """
        if seq is None:
            return bool(client) and client in self.calls
        expected = self.clients.get(client, (0, 0))[0] + 1
        if seq > expected:
            raise SequenceGapError(f"batch {seq} of client {client!r} came, but {expected} is next", expected)
        return seq < expected

    def add(self, client: str, seq: int, pos: int) -> None:
        """Remember what was taken; `seq` is 0 for a key that is used once."""
        if seq:
            self.clients[client] = (seq, pos)
            self._new_clients.add(client)
        elif client:
            self.calls[client] = pos
            self._new_calls.append((pos, client))
            if len(self.calls) > MAX_CALLS:
                del self.calls[next(iter(self.calls))]

    def unsaved(self) -> tuple[list[tuple[str, int, int]], list[tuple[int, str]], int]:
        """Return what `saved` was not told yet: rows of `clients`, rows of `calls`, and the oldest call's position."""
        clients = [(client, *self.clients[client]) for client in sorted(self._new_clients)]
        return clients, self._new_calls[-MAX_CALLS:], next(islice(self.calls.values(), 1), 0)

    def saved(self) -> None:
        """Note that all is stored."""
        self._new_clients.clear()
        self._new_calls.clear()
