"""Retention: which of the saved states are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Mode = Literal["max", "min"]


class Saved(Protocol):
    """What the choice looks at."""

    @property
    def step(self) -> int:
        """Global step of the state."""


SavedT = TypeVar("SavedT", bound=Saved)


@dataclass(frozen=True)
class Retention:
    """Which states are kept: the newest, the best, and one every so many steps.

    Attributes:
        keep_last: Newest states kept; 0 = all.
        keep_best: Best states kept besides, by their objective.
        keep_every_steps: A state whose step is a multiple of it stays for ever; 0 = none.
        mode: Whether a higher or a lower objective is better.
    """

    keep_last: int = 0
    keep_best: int = 1
    keep_every_steps: int = 0
    mode: Mode = "max"

    def surplus(self, saved: Sequence[SavedT], ranked: Sequence[SavedT]) -> list[SavedT]:
        """Return the states to delete; the newest one is never among them.

        Args:
            saved: All states, the oldest first.
            ranked: Those that say how good they are, the best first.
        """
        if not self.keep_last:
            return []
        best = ranked[: self.keep_best]
        every = self.keep_every_steps
        older = saved[: -self.keep_last]
        return [state for state in older if state not in best and not (every and state.step % every == 0)]
