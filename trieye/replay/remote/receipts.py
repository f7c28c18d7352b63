"""Receipts: which rows of each writer a table has taken, so that none is taken twice."""

from collections.abc import Mapping
from typing import Any, Literal

MAX_CLIENTS = 10_000
"""Writers that are remembered; beyond that, those that were silent for longest are forgotten."""


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

    def end(self, client: str) -> int:
        """Return how many rows of a writer were taken."""
        return self._ends.get(client, 0)

    def saved(self, client: str) -> int:
        """Return how many of them a snapshot holds."""
        return self._saved.get(client, 0)

    def lost(self, client: str) -> int:
        """Return how many were taken once and are gone."""
        return self._lost.get(client, 0)

    def judge(self, client: str, first: int, oldest: int) -> Literal["next", "known", "early"]:
        """Tell what to do with a batch.

        Args:
            client: The writer.
            first: Number of the first row of the batch.
            oldest: Number of the oldest row that the writer can still send.
        """
        end = self.end(client)
        if first < end:
            return "known"
        return "next" if first in {end, oldest} else "early"

    def take(self, client: str, first: int, count: int) -> None:
        """Note that a batch was taken."""
        gap = first - self._ends.pop(client, 0)
        if gap:
            self._lost[client] = self.lost(client) + gap
            self.num_lost += gap
        self._ends[client] = first + count  # at the end of the dict: the order is that of the last words
        if len(self._ends) > MAX_CLIENTS:
            self.forget(next(iter(self._ends)))

    def forget(self, client: str) -> None:
        """Forget a writer that will send nothing more."""
        self._ends.pop(client, None)
        self._saved.pop(client, None)
        self._lost.pop(client, None)

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
