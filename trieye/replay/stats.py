"""Counts: what happened to a replay buffer, and the metrics made of it."""

import time
from collections.abc import Mapping

from trieye.replay.rows.store import RowStore
from trieye.replay.samplers.base import Draw


class Counts:
    """Counts over a buffer's life, and rates since they were last asked for.

    Attributes:
        sampled: Rows handed out.
        late_updates: Priorities that came for rows which were overwritten by then.
        lost: Rows that a restore could not bring back, as their files were damaged.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.late_updates = 0
        self.lost = 0
        self._asked: tuple[float, int] | None = None  # monotonic seconds, and rows added by then
        self._stale: tuple[float, int, float] | None = None  # sum of versions behind, rows, most versions behind

    def was_stale(self, draw: Draw) -> None:
        """Take note of how many versions the rows of a draw were behind."""
        behind, rows, most = self._stale or (0.0, 0, 0.0)
        behind += draw.info["staleness_mean"] * len(draw)
        self._stale = behind, rows + len(draw), max(most, draw.info["staleness_max"])

    def stats(self, capacity: int, store: RowStore | None) -> dict[str, float]:
        """Return the counts, and those of the rows, as plain numbers."""
        return {
            "size": 0 if store is None else store.total - store.low,
            "capacity": capacity,
            "added": 0 if store is None else store.total,
            "sampled": self.sampled,
            "late_updates": self.late_updates,
            "lost": self.lost,
            "size_bytes": 0 if store is None else store.size_bytes,
        }

    def metrics(self, store: RowStore | None) -> dict[str, float]:
        """Return metrics by name; what is not known yet is left out. Rates are those since the last call."""
        added = 0 if store is None else store.total
        metrics = {
            "replay/size": float(0 if store is None else store.total - store.low),
            "replay/dropped/late_update": float(self.late_updates),
            "replay/dropped/damaged": float(self.lost),
        }
        now = time.monotonic()
        if self._asked is not None and now > self._asked[0]:
            metrics["replay/inserts_per_s"] = (added - self._asked[1]) / (now - self._asked[0])
        if added:
            metrics["replay/samples_per_insert"] = self.sampled / added
        if self._stale is not None:
            behind, rows, most = self._stale
            metrics |= {"replay/staleness_mean": behind / rows, "replay/staleness_max": most}
        self._asked, self._stale = (now, added), None
        return metrics

    def state_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"sampled": self.sampled, "late_updates": self.late_updates, "lost": self.lost}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Take over counts that were saved."""
        self.sampled, self.late_updates = int(state["sampled"]), int(state["late_updates"])
        self.lost = int(state.get("lost", 0))
