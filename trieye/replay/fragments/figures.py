"""Figures: what a fragment buffer counts for its metrics."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

_MAX_BAR = 16  # of the histogram; there may be no bound on staleness


class Figures:
    """Totals over the life of the buffer, and what was seen since the last reset.

    Attributes:
        dropped: Fragments by the reason why they went without ever being handed out.
        totals: Fragments and chunks added, chunks handed out, gaps, fragments pushed back, leases that ran out.
    """

    def __init__(self, now: float) -> None:
        self.dropped: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.reset(now)

    def reset(self, now: float) -> None:
        """Begin a new period."""
        self._since = now
        self._inserted_before = self.totals["fragments"]
        self._uses: list[int] = [0, 0]  # sum, number of chunks
        self._staleness: Counter[int] = Counter()
        self._waits: list[float] = [0.0, 0.0, 0.0]  # sum, longest, number

    def left(self, num_uses: int) -> None:
        """Count a chunk that left after so many uses."""
        self._uses[0] += num_uses
        self._uses[1] += 1

    def handed_out(self, staleness: int) -> None:
        """Count a chunk that was handed out."""
        self.totals["sampled"] += 1
        self._staleness[staleness] += 1

    def waited(self, seconds: float) -> None:
        """Count a reader that waited so long for its chunks."""
        self._waits = [self._waits[0] + seconds, max(self._waits[1], seconds), self._waits[2] + 1]

    def metrics(self, now: float) -> dict[str, float]:
        """Return the figures of the period, and the totals; what has no value is left out."""
        found: dict[str, float] = {f"replay/dropped/{reason}": count for reason, count in self.dropped.items()}
        for name in ("gaps", "pushed_back", "expired_leases"):
            found[f"replay/{name}"] = self.totals[name]
        if now > self._since:
            found["replay/inserts_per_s"] = (self.totals["fragments"] - self._inserted_before) / (now - self._since)
        if self.totals["chunks"]:
            found["replay/samples_per_insert"] = self.totals["sampled"] / self.totals["chunks"]
        if self._uses[1]:
            found["replay/reuse_mean"] = self._uses[0] / self._uses[1]
        if self._waits[2]:
            found["replay/wait_s_mean"] = self._waits[0] / self._waits[2]
            found["replay/wait_s_max"] = self._waits[1]
        if count := self._staleness.total():
            found["replay/staleness_mean"] = sum(age * num for age, num in self._staleness.items()) / count
            found["replay/staleness_max"] = max(self._staleness)
            for age, num in sorted(self._staleness.items()):
                bar = f"replay/staleness/{age if age < _MAX_BAR else f'{_MAX_BAR}_or_more'}"
                found[bar] = found.get(bar, 0) + num
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        return {"dropped": dict(self.dropped), "totals": dict(self.totals)}

    def load_state_dict(self, state: Mapping[str, Any], now: float) -> None:
        """Take over totals, and begin a new period."""
        self.dropped, self.totals = Counter(state["dropped"]), Counter(state["totals"])
        self.reset(now)
